"""The sections of a report, and lines about DataLoader workers."""

from __future__ import annotations

from leakscope.findings.facts import NOT_JUDGED, Origin, Severity
from leakscope.findings.model import (
    Finding,
    Findings,
    LoaderMemory,
    Unjudged,
    UnjudgedReason,
    WhyUnjudged,
    WorkerLine,
    WorkerLineKind,
)
from leakscope.run.model import Run
from leakscope.run.rows import EndKind, MadeBy
from leakscope.units import bytes_text, plural
from leakscope.verdict import Returned, Verdict


def leaks(findings: Findings) -> tuple[Finding, ...]:
    """What decides the verdict, whoever's code closes or keeps it."""
    return findings.leaks


def avoidable(findings: Findings) -> tuple[Finding, ...]:
    """Memory that lies there for longer than it is needed, the largest first."""
    found = [f for f in findings.findings if f.severity == Severity.AVOIDABLE]
    return tuple(sorted(found, key=lambda f: -f.retained_bytes))


def notes(findings: Findings) -> tuple[Finding, ...]:
    """The application's findings that decide nothing."""
    return tuple(f for f in findings.findings if f.origin != Origin.LIBRARY and f.severity == Severity.NOTE)


def library(findings: Findings) -> tuple[Finding, ...]:
    """What libraries hold without leaking it."""
    return tuple(f for f in findings.findings if f.origin == Origin.LIBRARY and f.severity == Severity.NOTE)


def is_fault(unjudged: Unjudged) -> bool:
    """Whether a rule failed, which the reader must know whatever the verdict is."""
    faults = (UnjudgedReason.RAISED, UnjudgedReason.NOT_LOADED, UnjudgedReason.NO_SOURCE)
    return isinstance(unjudged.why, WhyUnjudged) and unjudged.why.reason in faults


def is_worth_telling(unjudged: Unjudged) -> bool:
    """Whether something else than a run that was too short kept a rule from judging, which "why" says already."""
    short = (UnjudgedReason.TOO_FEW_LOOKS, UnjudgedReason.NO_STEP)
    return not (isinstance(unjudged.why, WhyUnjudged) and unjudged.why.reason in short)


def steps_of(run: Run) -> int:
    """Steps of the rank that took most."""
    return max((max(rank.ended.steps, len(rank.steps)) for rank in run.ranks), default=0)


def of_block(run: Run) -> bool:
    """Whether it was one block of code, without steps."""
    return run.made_by == MadeBy.BLOCK


def again_text(run: Run) -> str:
    """What to do once something is mended: `run the same command again`."""
    return "run the same command again" if run.made_by == MadeBy.COMMAND else "run it again"


def so_far_text(run: Run) -> str:
    """`the run goes on, after 40 steps`, of one that was read before its end; else ""."""
    on = any(rank.ended.how == EndKind.RUNNING for rank in run.ranks)
    return f"the run goes on, after {plural(steps_of(run), 'step')}" if on else ""


def exit_text(run: Run, findings: Findings) -> str:
    """` (exit status 23)`; "" where no command ends with it, and of a run that has not ended
    ` (so far: the run goes on, after 40 steps)`. Where nothing could be judged it names what makes that a failure.
    """
    if told := so_far_text(run):
        return f" (so far: {told})"
    if run.made_by != MadeBy.COMMAND or findings.returned == Returned.NOT:
        return ""
    passed = findings.verdict == Verdict.INCONCLUSIVE and not findings.exit_status
    choice = f", {NOT_JUDGED} with --fail-on-inconclusive" if passed and findings.returned == Returned.OWN else ""
    return f" (exit status {findings.exit_status}{choice})"


_KINDS = {
    WorkerLineKind.OTHER_COPIES: "copies of other memory of the parent's, which each full collection writes to",
    WorkerLineKind.OWN: "what they have allocated since they were first read",
    WorkerLineKind.MAPPED: "files and shared memory of theirs alone",
    WorkerLineKind.BEGAN: "what they had when they were first read",
}


def loader_text(loader: LoaderMemory) -> str:
    """`2 workers over Images (train.py:14 main), forked, started 3 times: 93.0 MiB of their own at most`."""
    started = loader.started
    how = {"fork": "forked"}.get(started.method, f"started by {started.method}")
    at = f" ({started.started_at})" if started.started_at else ""
    times = f", started {loader.lives} times" if loader.lives > 1 else ""
    kept = ", persistent" if started.persistent else ""
    return (
        f"{plural(started.workers, 'worker')} over {started.dataset}{at}, {how}{times}{kept}: "
        f"{bytes_text(loader.unique_bytes)} of their own at most, at step {loader.step}"
    )


def worker_line_text(line: WorkerLine) -> str:
    """`copies of self.samples of Images`."""
    return f"copies of `{line.holder}`" if line.kind == WorkerLineKind.COPIES else _KINDS[line.kind]


def loader_notes(loader: LoaderMemory) -> tuple[str, ...]:
    """What else there is to know: batches on their way, what is given back, pinned copies."""
    told = []
    if loader.sent_bytes:
        bound = f" of {loader.most_sent} at most" if loader.most_sent is not None else ""
        told.append(
            f"batches on their way{bound} (prefetch_factor x num_workers): {bytes_text(loader.sent_bytes)} in shared "
            "memory at most; bounded, no leak"
        )
    if loader.gives_back:
        told.append("workers end with each epoch and give back what they had")
    elif loader.started.persistent:
        told.append("persistent_workers: what workers have is kept from epoch to epoch")
    if loader.pinned_bytes is not None:
        told.append(f"a thread pins each batch in the parent: {bytes_text(loader.pinned_bytes)} pinned at most")
    return tuple(told)


def loader_lines(loader: LoaderMemory) -> tuple[str, ...]:
    """All of a loader's lines, and what else there is to know, each a text."""
    lines = (f"{bytes_text(line.bytes)}: {worker_line_text(line)}" for line in loader.lines if line.bytes)
    return (*lines, *loader_notes(loader))


def loader_in_short(loader: LoaderMemory) -> str:
    """A loader in a line: its workers, and the largest of the lines."""
    largest = loader.lines[0]
    return f"{loader_text(loader)}; {bytes_text(largest.bytes)} are {worker_line_text(largest)}"
