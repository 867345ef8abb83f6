"""Searches for edits that fix the leaks of a run: candidates in order, each proved by a repetition."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from leakscope.errors import LeakscopeError
from leakscope.findings.model import Finding, Findings
from leakscope.findings.source.index import Sources
from leakscope.fix.candidates import candidates
from leakscope.fix.files import SourceFiles
from leakscope.fix.model import Candidate, applied
from leakscope.fix.proof import Aspect, Proof, Refusal, memory_figures_differ
from leakscope.fix.rerun import Evidence, Repeater, TooSlow, read_launch, steps_to_repeat
from leakscope.process.written_files import restore_written_files
from leakscope.run.fixes import Fix, LeakFix, Try
from leakscope.run.model import Run
from leakscope.verdict import Verdict

TRIES = 30
"""Default of `--tries`."""
MINUTES = 15.0
"""Default of `--minutes`."""
_LONGEST_S = 120.0
"""Seconds of a recording that is repeated whole; of a longer one only the first steps are."""
_LIMIT_FACTOR = 4.0
_LIMIT_S = 60.0
"""Seconds that a repetition may take in any case, and its limit in times of the one without edits. Heuristic."""

Progress = Callable[[str], object]


@dataclass
class _Search:
    """The state of a search."""

    repeater: Repeater
    proof: Proof
    waiting: dict[str, list[Candidate]]
    """Fingerprint of each leak that is not fixed, mapped to the candidates that are not tried."""
    ends: float
    """Time by `time.monotonic` at which the search stops."""
    tries_left: int
    progress: Progress
    fixed: dict[str, Candidate] = field(default_factory=dict)
    """Fingerprint of each leak that is gone, mapped to the edit that fixed it."""
    tries: list[Try] = field(default_factory=list)
    last: Evidence | None = None
    """The repetition that proves `fixed`."""

    @property
    def leaks(self) -> Mapping[str, Finding]:
        """The leaks, largest first."""
        return {leak.fingerprint: leak for leak in self.proof.base.findings.leaks}

    def run(self) -> None:
        """Try candidates until every leak is fixed, none is left, or a limit is reached."""
        first = self._first_of_each()
        if len(first) > 1:
            self._try_together(first)
        for fingerprint in list(self.waiting):
            while self._is_open(fingerprint) and self.waiting[fingerprint]:
                candidate = self.waiting[fingerprint].pop(0)
                if not candidate.conflicts(self.fixed.values()):
                    self._try({fingerprint: candidate})

    def _is_open(self, fingerprint: str) -> bool:
        return fingerprint not in self.fixed and self.tries_left > 0 and time.monotonic() < self.ends

    def _first_of_each(self) -> dict[str, Candidate]:
        """The first candidate of each leak, as far as they can be combined."""
        first: dict[str, Candidate] = {}
        for fingerprint, waiting in self.waiting.items():
            if waiting and not waiting[0].conflicts(first.values()):
                first[fingerprint] = waiting[0]
        return first

    def _try_together(self, first: Mapping[str, Candidate]) -> None:
        """Try the first candidates of all leaks at once: mostly they are right, and one repetition proves them all.

        Those whose leak is gone are tried again without the others.
        """
        refusals = self._try(first)
        staying = {refusal.fingerprint for refusal in refusals}
        if refusals and staying >= {""}:
            return
        for fingerprint in staying & first.keys():  # each has been tried
            self.waiting[fingerprint].pop(0)
        gone = {fingerprint: first[fingerprint] for fingerprint in first if fingerprint not in staying}
        if refusals and gone:
            self._try(gone)

    def _try(self, added: Mapping[str, Candidate]) -> list[Refusal]:
        """Try some candidates beside those that are proved; a refusal without a fingerprint concerns them all."""
        chosen = {**self.fixed, **added}
        title = "; ".join(dict.fromkeys(candidate.title for candidate in added.values()))
        number = len(self.tries) + 1
        began = time.monotonic()
        texts = applied(tuple(dict.fromkeys(chosen.values())), self.repeater.files.texts)
        evidence: Evidence | None = None
        try:
            evidence = self.repeater.run(f"try_{number:02d}", texts, self._limit_s())
            if self.proof.needs_another(evidence):
                self._repeat_without_edits()
            refusals = self.proof.refusals(evidence, [self.leaks[fingerprint] for fingerprint in chosen])
            if not refusals and self.proof.slower([evidence]):
                self._repeat_without_edits()
                slower = self.proof.slower([evidence, self.repeater.run("again", texts, self._limit_s())])
                refusals = [] if slower is None else [slower]
        except TooSlow:
            refusals = [Refusal(Aspect.TIME, "it takes too long")]
        except LeakscopeError as error:
            refusals = [Refusal(Aspect.EXIT, str(error))]
        self.tries_left -= 1
        self.tries.append(
            Try(
                title=title,
                leaks=tuple(added),
                where=next(iter(added.values())).where,
                refused="; ".join(dict.fromkeys(refusal.text for refusal in refusals)),
                seconds=time.monotonic() - began,
            )
        )
        self.progress(f"{number}: {title}: {self.tries[-1].refused or 'verified'}")
        if not refusals and evidence is not None:
            self.fixed, self.last = chosen, evidence
            self._also_gone(evidence, next(iter(added.values())))
        return refusals

    def _repeat_without_edits(self) -> None:
        if self.proof.again is None:
            self.proof.again = self.repeater.run("without_edits_2", {}, self._limit_s())

    def _also_gone(self, evidence: Evidence, candidate: Candidate) -> None:
        """Leaks that an edit of another one has fixed too, by the same proof."""
        left = {leak.fingerprint for leak in evidence.findings.leaks}
        for fingerprint in [one for one in self.leaks if one not in left and one not in self.fixed]:
            gone = [self.leaks[one] for one in (*self.fixed, fingerprint)]
            if not self.proof.refusals(evidence, gone):
                self.fixed[fingerprint] = candidate

    def _limit_s(self) -> float:
        return min(max(_LIMIT_S, _LIMIT_FACTOR * self.proof.base.seconds), max(self.ends - time.monotonic(), 1.0))


@dataclass(frozen=True)
class FoundFixes:
    """The result of a search, and the files it applies to."""

    fix: Fix
    files: SourceFiles
    texts: Mapping[str, str]
    """File name to text with all proved edits."""

    def apply(self) -> None:
        """Write the edits to the user's files.

        Raises:
            LeakscopeError: A file has changed, has uncommitted changes, or cannot be written; nothing is written then.

        """
        self.files.apply(self.texts)


def find_fixes(
    run: Run,
    findings: Findings,
    *,
    tries: int = TRIES,
    minutes: float = MINUTES,
    steps: int | None = None,
    progress: Progress = lambda _: None,
) -> FoundFixes:
    """Find edits that fix the leaks of a recorded run, and prove them by repeating the run with edited copies.

    Nothing is written but to the folder `fix` of the run; files that the script writes are restored.

    Args:
        run: The run.
        findings: Its findings.
        tries: Maximum number of repetitions with edits.
        minutes: Maximum duration of the search.
        steps: The step after which repetitions stop, if not as recorded.
        progress: Called with a line after each repetition.

    Returns:
        The edits that were proved, and what was tried for each leak.

    Raises:
        LeakscopeError: The run cannot be repeated.

    """
    folder = Path(run.folder)
    launch = read_launch(folder)
    files = SourceFiles.of(run, Path(launch.folder))
    if not files.files:
        problem = next(iter(files.problems.values()), "the run has no source")
        raise LeakscopeError(f"no source file of the run can be edited: {problem}")
    work = folder / "fix"
    for interrupted in work.glob("*"):
        restore_written_files(interrupted)
    shutil.rmtree(work, ignore_errors=True)
    until = steps if steps is not None else steps_to_repeat(run, launch.options, _LONGEST_S)
    with closing(Repeater(run, launch, files, work, until)) as repeater:
        try:
            return _searched(repeater, run, findings, tries, minutes, progress)
        finally:
            shutil.rmtree(work, ignore_errors=True)


def _searched(
    repeater: Repeater, run: Run, findings: Findings, tries: int, minutes: float, progress: Progress
) -> FoundFixes:
    files, launch = repeater.files, repeater.launch
    ends = time.monotonic() + 60 * minutes
    base = _base(repeater, run, findings, ends)
    progress(f"repeated without edits in {base.seconds:.0f} s")
    sources = Sources({name: text.removesuffix("\n").split("\n") for name, text in files.texts.items()})
    problems: list[str] = []
    waiting = {leak.fingerprint: candidates(leak, sources, problems.append) for leak in base.findings.leaks}
    found = {fingerprint: bool(waiting[fingerprint]) for fingerprint in waiting}
    search = _Search(repeater, Proof(base), waiting, ends, tries, progress)
    search.run()
    _, differ = launch.variables()
    texts = applied(tuple(dict.fromkeys(search.fixed.values())), files.texts)
    leaked = base.findings.leaks
    is_counted = 2 * sum(leak.counted_bytes for leak in leaked) > sum(leak.retained_bytes for leak in leaked)
    result = Fix(
        leaks=tuple(_leak_fix(leak, search, found, files) for leak in base.findings.leaks),
        tries=tuple(search.tries),
        patch=files.patch(texts).decode(errors="surrogateescape"),
        is_deterministic=search.proof.is_deterministic,
        steps=repeater.steps,
        compared_steps=sum(row.tensors > 0 for rank in base.run.ranks for row in rank.training),
        notes=(*_notes(differ, search, launch.by_launcher, run), *dict.fromkeys(problems)),
        before=_curve(base, is_counted),
        after=() if search.last is None else _curve(search.last, is_counted),
        is_counted=is_counted,
    )
    return FoundFixes(result, files, texts)


def _base(repeater: Repeater, run: Run, findings: Findings, ends: float) -> Evidence:
    """The repetition without edits. Raises LeakscopeError if it does not show what was recorded."""
    try:
        base = repeater.run("without_edits", {}, max(ends - time.monotonic(), 1.0))
    except TooSlow:
        raise LeakscopeError("the run cannot be repeated within --minutes; give more, or fewer --steps") from None
    recorded = next((rank.ended.status for rank in run.ranks if rank.ended.status), 0)
    if base.status and base.status != recorded:
        raise LeakscopeError(f"the run cannot be repeated: {base.error}")
    names = {leak.fingerprint for leak in findings.leaks}
    if not names & {leak.fingerprint for leak in base.findings.leaks}:
        again = "no leak" if base.findings.verdict == Verdict.CLEAN else "other leaks"
        raise LeakscopeError(f"the run cannot be repeated: it shows {again} the second time")
    return base


def _leak_fix(leak: Finding, search: _Search, found: Mapping[str, bool], files: SourceFiles) -> LeakFix:
    candidate = search.fixed.get(leak.fingerprint)
    refused = [one for one in search.tries if leak.fingerprint in one.leaks and one.refused]
    diff = ""
    if candidate is not None:
        diff = files.patch(applied([candidate], files.texts)).decode(errors="surrogateescape")
        why = ""
    elif not found[leak.fingerprint]:
        why = _why_no_candidate(leak, files)
    elif search.waiting[leak.fingerprint]:
        why = f"stopped after {len(search.tries)} tries"
    else:
        why = f"{len(refused)} edits were tried and refused"
    return LeakFix(leak.fingerprint, leak.subject or str(leak.rule), candidate.title if candidate else "", diff, why)


def _why_no_candidate(leak: Finding, files: SourceFiles) -> str:
    places = [reference.where for reference in leak.cut.references] if leak.cut is not None else []
    for place in places:
        name = place.rpartition(":")[0]
        if name in files.problems:
            return files.problems[name]
        if name.startswith("<"):
            return "the reference is in a library"
    return "no edit is known for it"


def _notes(differ: Sequence[str], search: _Search, by_launcher: bool, run: Run) -> Iterator[str]:
    unrestored = search.repeater.unrestored
    skipped = max((row.skipped for rank in search.proof.base.run.ranks for row in rank.training), default=0)
    if skipped:
        yield f"up to {skipped} tensors a step could not be compared"
    if search.last is not None and memory_figures_differ(search.proof.base, search.last):
        yield "figures of memory on stdout differ with the edit"
    if differ:
        yield f"environment variables are not as recorded: {_first(differ)}"
    if unrestored:
        yield f"files that the script writes could not be restored: {_first(unrestored)}"
    if by_launcher:
        yield f"the ranks were started with `leakscope run --ranks {run.expected_ranks}` in place of the launcher"


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (" and others" if len(names) > _NAMED else "")


_NAMED = 3
"""Maximum names in a note."""


def _curve(evidence: Evidence, is_counted: bool) -> tuple[tuple[int, int], ...]:
    """(step, bytes of tensors, or all that are counted, on all ranks) at the snapshots that all ranks have."""
    found: dict[int, list[int]] = {}
    for rank in evidence.run.ranks:
        for snapshot in rank.heap_snapshots:
            if snapshot.occasion == "step":
                size = snapshot.counted_bytes if is_counted else None
                found.setdefault(snapshot.step, []).append(snapshot.explained_bytes if size is None else size)
    return tuple((step, sum(sizes)) for step, sizes in sorted(found.items()) if len(sizes) == len(evidence.run.ranks))
