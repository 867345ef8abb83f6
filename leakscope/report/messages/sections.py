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
    """Findings that decide the verdict, of the application and of libraries."""
    return findings.leaks


def avoidable(findings: Findings) -> tuple[Finding, ...]:
    """Memory kept longer than needed, largest first."""
    found = [f for f in findings.findings if f.severity == Severity.AVOIDABLE]
    return tuple(sorted(found, key=lambda f: -f.retained_bytes))


def notes(findings: Findings) -> tuple[Finding, ...]:
    """Findings of the application that do not affect the verdict."""
    return tuple(f for f in findings.findings if f.origin != Origin.LIBRARY and f.severity == Severity.NOTE)


def library(findings: Findings) -> tuple[Finding, ...]:
    """Memory that libraries hold without leaking it."""
    return tuple(f for f in findings.findings if f.origin == Origin.LIBRARY and f.severity == Severity.NOTE)


def is_fault(unjudged: Unjudged) -> bool:
    """Whether a rule failed, which is reported with any verdict."""
    faults = (UnjudgedReason.RAISED, UnjudgedReason.NOT_LOADED, UnjudgedReason.NO_SOURCE)
    return isinstance(unjudged.why, WhyUnjudged) and unjudged.why.reason in faults


def is_worth_telling(unjudged: Unjudged) -> bool:
    """Whether a rule could not judge for another reason than a short run, which "why" already states."""
    short = (UnjudgedReason.TOO_FEW_LOOKS, UnjudgedReason.NO_STEP)
    return not (isinstance(unjudged.why, WhyUnjudged) and unjudged.why.reason in short)


def steps_of(run: Run) -> int:
    """Steps of the rank with the most."""
    return max((max(rank.ended.steps, len(rank.steps)) for rank in run.ranks), default=0)


def of_block(run: Run) -> bool:
    """Whether the run is one block of code without steps."""
    return run.made_by == MadeBy.BLOCK


def again_text(run: Run) -> str:
    """What to do after a fix: `rerun the same command`."""
    return "rerun the same command" if run.made_by == MadeBy.COMMAND else "rerun"


def so_far_text(run: Run) -> str:
    """`still running after 40 steps` for a run read before its end; else ""."""
    on = any(rank.ended.how == EndKind.RUNNING for rank in run.ranks)
    return f"still running after {plural(steps_of(run), 'step')}" if on else ""


def exit_text(run: Run, findings: Findings) -> str:
    """` (exit status 23)`, or ` (still running after 40 steps)`; "" if no command exits with it.

    For an inconclusive run it names the option that makes it a failure.
    """
    if told := so_far_text(run):
        return f" ({told})"
    if run.made_by != MadeBy.COMMAND or findings.returned == Returned.NOT:
        return ""
    passed = findings.verdict == Verdict.INCONCLUSIVE and not findings.exit_status
    choice = f", {NOT_JUDGED} with --fail-on-inconclusive" if passed and findings.returned == Returned.OWN else ""
    return f" (exit status {findings.exit_status}{choice})"


_KINDS = {
    WorkerLineKind.OTHER_COPIES: "copies of other memory of the parent process (each full collection writes to it)",
    WorkerLineKind.OWN: "allocated since the first reading",
    WorkerLineKind.MAPPED: "files and shared memory mapped by no other process",
    WorkerLineKind.BEGAN: "allocated before the first reading",
}


def loader_text(loader: LoaderMemory) -> str:
    """`2 workers of Images (train.py:14 main), forked, started 3 times: at most 93.0 MiB unique memory, at step 8`."""
    started = loader.started
    how = {"fork": "forked"}.get(started.method, f"started with {started.method}")
    at = f" ({started.started_at})" if started.started_at else ""
    times = f", started {loader.lives} times" if loader.lives > 1 else ""
    kept = ", persistent" if started.persistent else ""
    return (
        f"{plural(started.workers, 'worker')} of {started.dataset}{at}, {how}{times}{kept}: "
        f"at most {bytes_text(loader.unique_bytes)} unique memory, at step {loader.step}"
    )


def worker_line_text(line: WorkerLine) -> str:
    """`copies of self.samples of Images`."""
    return f"copies of `{line.holder}`" if line.kind == WorkerLineKind.COPIES else _KINDS[line.kind]


def loader_notes(loader: LoaderMemory) -> tuple[str, ...]:
    """Notes about prefetched batches, memory that is returned, and pinned copies."""
    told = []
    if loader.sent_bytes:
        bound = f"at most {loader.most_sent} " if loader.most_sent is not None else ""
        told.append(
            f"{bound}prefetched batches (prefetch_factor x num_workers): at most {bytes_text(loader.sent_bytes)} in "
            "shared memory; bounded, not a leak"
        )
    if loader.gives_back:
        told.append("workers exit after each epoch and return their memory")
    elif loader.started.persistent:
        told.append("persistent_workers: workers keep their memory between epochs")
    if loader.pinned_bytes is not None:
        told.append(f"a thread pins each batch in the parent process: at most {bytes_text(loader.pinned_bytes)} pinned")
    return tuple(told)


def loader_lines(loader: LoaderMemory) -> tuple[str, ...]:
    """All lines and notes of a loader."""
    lines = (f"{bytes_text(line.bytes)}: {worker_line_text(line)}" for line in loader.lines if line.bytes)
    return (*lines, *loader_notes(loader))


def loader_in_short(loader: LoaderMemory) -> str:
    """Workers of a loader and their largest line, as one line."""
    largest = loader.lines[0]
    return f"{loader_text(loader)}; {bytes_text(largest.bytes)} {worker_line_text(largest)}"
