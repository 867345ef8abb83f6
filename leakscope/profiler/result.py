"""The result of a block or loop: its run, findings and report, with or without a folder."""

from __future__ import annotations

import sys
from collections.abc import Collection
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING

from leakscope.errors import LeakscopeError
from leakscope.findings.judge import LEAKS_FOUND, Policy
from leakscope.findings.judge import judge as findings_of
from leakscope.findings.model import Findings, Reason, Why
from leakscope.originals import Path, os
from leakscope.run.rows import MadeBy
from leakscope.units import bytes_text
from leakscope.verdict import Returned

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from leakscope.heap.growth import Gains
    from leakscope.heap.liveness import Liveness
    from leakscope.recorder.accelerator import Counter
    from leakscope.run.fixes import Fix
    from leakscope.run.model import HeapSnapshot, Rank, Run
    from leakscope.run.rows import Occasion


def take_snapshot(
    step: int,
    occasion: Occasion,
    counter: Counter | None = None,
    gains: Gains | None = None,
    explained: Callable[[Liveness], None] | None = None,
    made_at: Mapping[int, str] | None = None,
) -> HeapSnapshot:
    """Take a heap snapshot of this process; its own memory is not counted.

    Args:
        step: Number of the step it belongs to.
        occasion: What triggered it.
        counter: Counter of allocated bytes.
        gains: Growth of containers over earlier snapshots; None to not track it.
        explained: Called with the analyzed heap while the process is paused.
        made_at: Address of each storage to its allocation site.

    """
    from leakscope.heap.snapshot import SnapshotContext, take_heap_snapshot
    from leakscope.recorder.accelerator import Counter

    counter = counter or Counter()
    counted = counter.read().bytes
    with counter.ours(most=sys.maxsize):  # the snapshot itself is kept: megabytes with thousands of live tensors
        known = SnapshotContext(counted, counter.device, made_at=made_at or {}, gains=gains, explained=explained)
        return take_heap_snapshot(step, occasion, known)


def why_no_snapshot() -> str:
    """Why no heap snapshot of this process can be taken; "" if it can."""
    from leakscope.process.torch_compat import RecordingPart, lacks, sentences

    return "; ".join(sentences()) if lacks(RecordingPart.SNAPSHOTS) else ""


def run_of_rank(rank: Rank, made_by: MadeBy, warmup: int = 0, min_bytes: int = 0) -> Run:
    """A run with this process as its one rank."""
    from leakscope._version import __version__
    from leakscope.native import heap_reader
    from leakscope.run.model import Run

    torch = sys.modules.get("torch")
    return Run(
        command=(Path(sys.argv[0]).name,),
        ranks=(rank,),
        expected_ranks=1,
        device=rank.heap_snapshots[-1].counted_on if rank.heap_snapshots else "cpu",
        torch="" if torch is None else str(torch.__version__),
        leakscope=__version__,
        heap_reader=heap_reader(),
        warmup=warmup,
        min_bytes=min_bytes,
        made_by=made_by,
    )


@dataclass(frozen=True, repr=False)
class Result(Findings):
    """The findings of a run together with the run. Prints as the text report, and displays as HTML in a notebook.

    >>> import leakscope
    >>> with leakscope.watch() as block:
    ...     pass
    >>> block.findings.verdict.value, block.findings.leaks
    ('clean', ())
    """

    run: Run = field(kw_only=True)
    """What was recorded."""

    @classmethod
    def of(cls, run: Run, findings: Findings) -> Result:
        """Combine findings with their run.

        Args:
            run: What was recorded.
            findings: What `leakscope.findings.judge` found in it.

        Returns:
            The same findings as a `Result`.

        """
        values = {each.name: getattr(findings, each.name) for each in fields(Findings)}
        return cls(**{**values, "returned": Returned.NOT}, run=run)

    def __str__(self) -> str:
        from leakscope.report import FORMATS

        return FORMATS["text"](self.run, self)

    def _repr_html_(self) -> str:
        """What a notebook shows: one fragment without a script; everything that came from the run is escaped."""
        from leakscope.report.notebook import render

        return render(self.run, self)

    def to_json(self) -> str:
        """The content of `findings.json`, whose schema ships with the package (`leakscope/report/formats`)."""
        from leakscope.report import FORMATS

        return FORMATS["json"](self.run, self)

    def fix(self, *, tries: int | None = None, minutes: float | None = None, steps: int | None = None) -> Fix:
        """Find edits that fix the leaks, and prove each by repeating the run with edited copies, as `leakscope fix`.

        The result is also written into the run's folder, as `fix.json` and `fix.patch`. Source files are not changed,
        and files that the script writes are restored.

        Args:
            tries: Maximum number of edits to try; None for that of the command.
            minutes: Maximum duration of the search; None for that of the command.
            steps: The step after which repetitions stop; None for that of the recording.

        Returns:
            The verified edits, and what was tried for each leak.

        Raises:
            LeakscopeError: The run was not recorded by `leakscope run`, or cannot be repeated.

        """
        from leakscope.fix import MINUTES, TRIES, find_fixes
        from leakscope.run.writer import write_fix

        if self.run.made_by != MadeBy.COMMAND or not self.run.folder:
            raise LeakscopeError("only a run that `leakscope run` recorded can be repeated")
        found = find_fixes(self.run, self, tries=tries or TRIES, minutes=minutes or MINUTES, steps=steps).fix
        write_fix(Path(self.run.folder), found)
        return found

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write a report to a file or a folder.

        The suffix selects the format, as in `leakscope report --as`: `.html`, `.txt`, `.json`, `.md`, `.sarif`, `.xml`
        (JUnit) or `.trace.json`. A path without a suffix, or one that ends in a slash, is a folder, which is created
        and gets `report.html` and `findings.json`. Existing files are replaced atomically.

        Args:
            path: File or folder.

        Returns:
            The path.

        Raises:
            LeakscopeError: No format has that suffix, or the file cannot be written.

        """
        from leakscope.report import FORMATS, write
        from leakscope.run.descriptors import write_whole_for_all

        target = Path(path)
        try:
            if str(path).endswith(("/", os.sep)) or not target.suffix or target.is_dir():
                target.mkdir(parents=True, exist_ok=True)
                write(self.run, self, target)
            else:
                name = _format_of(target.name)
                write_whole_for_all(target, FORMATS[name](self.run, self).encode(errors="backslashreplace"))
        except OSError as error:
            why = error.strerror or type(error).__name__
            raise LeakscopeError(f"cannot write {target}: {why}") from None
        return target


def _format_of(name: str) -> str:
    """The format with the longest suffix that the name ends with. Raises LeakscopeError."""
    from leakscope.report.formats import format_named, format_names

    forms = [format_named(each) for each in format_names()]
    fitting = [form for form in forms if name.lower().endswith(form.suffix)]
    if not fitting:
        suffixes = ", ".join(form.suffix for form in forms)
        raise LeakscopeError(f"unknown suffix: {name}; use one of {suffixes}, or a folder")
    return max(fitting, key=lambda form: len(form.suffix)).name


def judge(
    run: Run,
    *,
    suppress: Collection[str] = (),
    baseline: Collection[str] = (),
    leak_exit_code: int = LEAKS_FOUND,
    ignore_library: bool = False,
    fail_on_avoidable: int | None = None,
    fail_on_inconclusive: bool = False,
) -> Result:
    """Judge a recorded run: its verdict, and each distinct leak.

    Args:
        run: What `read_run` returned, or `Profiler.run`.
        suppress: Patterns of leaks to suppress: fingerprints, rules, references or places, with `*` for any text. They
            add to `run.suppressions`.
        baseline: Fingerprints of known leaks to suppress.
        leak_exit_code: The `exit_status` if there are leaks.
        ignore_library: Report leaks in third-party libraries, but do not fail on them.
        fail_on_avoidable: Bytes of avoidable memory above which `exit_status` is `leak_exit_code` too; None for never.
        fail_on_inconclusive: Set `exit_status` to 2 if the run is inconclusive.

    Returns:
        The findings, with the run.

    >>> from pathlib import Path
    >>> import leakscope
    >>> run = leakscope.read_run(Path("sample_runs/p2p_pipeline/stage-backward-cycle"))
    >>> found = leakscope.judge(run)
    >>> found.verdict.value, found.exit_status, str(found.findings[0].rule)
    ('leaks', 23, 'tensor-cycle')
    >>> leakscope.judge(run, suppress=["tensor-cycle"]).verdict.value
    'clean'

    """
    policy = Policy(
        suppress=suppress,
        baseline=baseline,
        leak_exit_code=leak_exit_code,
        ignore_library=ignore_library,
        fail_on_avoidable=fail_on_avoidable,
        fail_on_inconclusive=fail_on_inconclusive,
    )
    return Result.of(run, findings_of(run, policy))


class LeaksFound(AssertionError):
    """Raised by `watch` and `check` with `fail=True`; the message contains the reference path of each leak.

    >>> import torch, leakscope
    >>> kept = []
    >>> try:
    ...     leakscope.check(lambda: kept.append(torch.ones(256)), repeats=3, fail=True)
    ... except leakscope.LeaksFound as error:
    ...     error.findings.leaks[0].rule.value
    'step-growth'

    """

    findings: Result
    """All findings of the block."""

    def __init__(self, message: str, findings: Result) -> None:
        super().__init__(message)
        self.findings = findings


def sum_text(run: Run, findings: Findings, left: Why, allowance: int) -> str:
    """`2 tensor leaks, 3.00 KiB left behind by 3 repeats, each of them a step (1 to 3), 1.00 KiB allowed`."""
    from leakscope.report.verdict_text import why_text

    steps = [step.number for rank in run.ranks for step in rank.steps]
    by = f" by {len(steps)} repeats, each of them a step ({steps[0]} to {steps[-1]})" if steps else ""
    allowed = f", {bytes_text(allowance)} allowed" if allowance else ""
    return f"{why_text(replace(findings, why=left))}{by}{allowed}"


def raise_leaks(found: Result, allowance: int) -> None:
    """Raise LeaksFound if the leaks hold more than `allowance` bytes."""
    from leakscope.report.text.page import render_in_test

    left = left_behind(found)
    if left.bytes > allowance:
        text = f"{sum_text(found.run, found, left, allowance)}\n\n{render_in_test(found.run, found)}"
        raise LeaksFound(text, found)


def left_behind(findings: Findings) -> Why:
    """The number of leaks and their bytes."""
    held = sum(finding.retained_bytes for finding in findings.leaks)
    return Why(reason=Reason.LEFT_BEHIND, count=len(findings.leaks), bytes=held)
