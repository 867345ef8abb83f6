"""What is there to say about each rank?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from leakscope.findings.comm.matching import CommState, comm_states
from leakscope.findings.counters import counted_rate
from leakscope.findings.model import Findings, RankSummary
from leakscope.record.kinds import EndKind
from leakscope.record.model import Ended, Rank, Run
from leakscope.report.wording import (
    comm_notes,
    ended_badly,
    ended_text,
    error_text,
    is_hung,
    leaks,
    plural,
    processes_text,
)
from leakscope.units import bytes_text, seconds_text


@dataclass(frozen=True)
class RankStory:
    """Figures and sentences of one rank, ready to be set in a table."""

    number: int
    ended: str
    badly: bool
    how: EndKind
    ending: tuple[str, ...]
    """What ranks that ended in the same way have in common, however many steps that took them."""
    error: str
    """What `ended` does not say of it."""
    stack: tuple[str, ...]
    printed_by_python: bool
    """Whether the stack is a traceback, which Python has printed as well."""
    opens_the_report: bool
    """Whether its end is what `failure_text` tells of a run of one rank."""
    log: str
    steps: int
    counted_bytes: int | None
    """At the last look, else at the last step."""
    growth_per_step: float | None
    """Of the counted bytes, over the steps after warm-up."""
    explained_bytes: int | None
    leaked_bytes: int
    """Held by this rank's leaks at their last sighting."""
    predicted_bytes: int | None
    """What the last look said a collection would free."""
    gc_freed_bytes: int | None
    gc: str
    """What the gc diff at the end found, beside the prediction; "" where none was taken."""
    own_collections: str
    """The program's own collections; "" where it had none."""
    looking: str
    """What looking cost."""
    summary: RankSummary
    categories: Mapping[str, int]
    notes: tuple[str, ...]
    not_read: tuple[str, ...]
    """What looks could not judge."""


def rank_stories(run: Run, findings: Findings) -> tuple[RankStory, ...]:
    """One story for each rank of the run, lost ones included, in order."""
    states = comm_states(run)
    leaked = _leaked(findings)
    return tuple(_story(rank, run, findings, states.get(rank.number), leaked.get(rank.number, 0)) for rank in run.ranks)


def _story(rank: Rank, run: Run, findings: Findings, state: CommState | None, leaked: int) -> RankStory:
    of_comm = comm_notes(state) if state is not None else ()
    summary = findings.ranks.get(rank.number, RankSummary())
    diff = rank.gc_diff
    freed = sum(diff.freed_bytes) if diff is not None else summary.freed_by_gc_bytes
    return RankStory(
        number=rank.number,
        ended=ended_text(rank),
        badly=ended_badly(rank),
        how=rank.ended.how,
        ending=_ending(rank.ended),
        error=error_text(rank),
        stack=rank.ended.stack,
        printed_by_python=rank.ended.how == EndKind.RAISED,
        opens_the_report=ended_badly(rank) and not is_hung(rank),
        log=rank.ended.log,
        steps=max(rank.ended.steps, len(rank.steps)),
        counted_bytes=_counted(rank, summary),
        growth_per_step=_growth(rank, run.warmup_of(rank)),
        explained_bytes=summary.explained_bytes if rank.looks or summary.explained_bytes else None,
        leaked_bytes=leaked,
        predicted_bytes=None if diff is None else diff.predicted_bytes,
        gc_freed_bytes=freed,
        gc=_gc(rank, summary),
        own_collections=_own_collections(rank),
        looking=_looking(rank),
        summary=summary,
        categories=summary.categories,
        notes=(*(each.why for each in rank.recording_ended), *rank.notes, *_processes(rank), *of_comm),
        not_read=tuple(text for look in rank.looks for text in look.unjudged),
    )


def _ending(ended: Ended) -> tuple[str, ...]:
    """With the type of an error, not its text, which names addresses and sizes."""
    error = ended.error.partition(":")[0] if ended.how == EndKind.RAISED else ""
    return ended.how, str(ended.status), error, "no step" if ended.steps == 0 else ""


def _processes(rank: Rank) -> tuple[str, ...]:
    if not rank.processes or not rank.steps:
        return ()
    return (f"the script started {processes_text(rank.processes)}; they are not seen, start them with --ranks instead",)


def _counted(rank: Rank, summary: RankSummary) -> int | None:
    if summary.counted_bytes is not None or not rank.steps:
        return summary.counted_bytes
    return rank.steps[-1].counted_bytes


def counted_steps(rank: Rank) -> list[tuple[int, int]]:
    """(step, counted bytes), all of the device that was counted last."""
    counted = [s for s in rank.steps if s.counted_bytes is not None]
    return [
        (s.number, s.counted_bytes)
        for s in counted
        if s.counted_on == counted[-1].counted_on and s.counted_bytes is not None
    ]


def _growth(rank: Rank, warmup: int) -> float | None:
    """As the verdict tells it; over all steps where they are few."""
    rate = counted_rate(rank, warmup)
    counted = [(number, size) for number, size in counted_steps(rank) if number > warmup]
    if rate is not None or not counted or counted[-1][0] == counted[0][0]:
        return rate
    return (counted[-1][1] - counted[0][1]) / (counted[-1][0] - counted[0][0])


def _leaked(findings: Findings) -> Mapping[int, int]:
    """Of each rank, the bytes of its leaks at their last sightings there."""
    total: Counter[int] = Counter()
    for finding in leaks(findings):
        last = {s.rank: s.bytes for s in sorted(finding.sightings, key=lambda sighting: sighting.step)}
        total.update(last)
    return total


def _gc(rank: Rank, summary: RankSummary) -> str:
    diff = rank.gc_diff
    if diff is None:
        if summary.freed_by_gc_bytes is None:
            return ""
        return f"collecting freed {bytes_text(summary.freed_by_gc_bytes)} in {seconds_text(summary.gc_seconds)}"
    generations = " + ".join(bytes_text(freed) for freed in diff.freed_bytes[:3])
    text = f"collecting freed {bytes_text(sum(diff.freed_bytes))} in {seconds_text(sum(diff.seconds))}"
    if len(diff.freed_bytes) > 1:
        full = f"; {plural(diff.collections, 'full collection')} until nothing more went" if diff.collections else ""
        text += f" (generations 0, 1, 2: {generations}{full})"
    return f"{text}; predicted {bytes_text(diff.predicted_bytes)}"


def _own_collections(rank: Rank) -> str:
    collections = [c for step in rank.steps for c in step.collections]
    if not collections:
        return ""
    full = sum(c.is_full for c in collections)
    freed = sum(c.freed_bytes or 0 for c in collections)
    cost = seconds_text(sum(c.seconds for c in collections))
    count = plural(len(collections), "collection")
    return f"the program's own gc: {count} ({full} full), {cost}, {bytes_text(freed)} freed"


def looking_text(run: Run) -> str:
    """`4 looks (960.0 ms)`, of the rank that looked for longest; "" where none did."""
    spent = max(((sum(look.seconds for look in rank.looks), len(rank.looks)) for rank in run.ranks), default=(0.0, 0))
    return f"{plural(spent[1], 'look')} ({seconds_text(spent[0])})" if spent[1] else ""


def _looking(rank: Rank) -> str:
    if not rank.looks:
        return ""
    spent = sum(look.seconds for look in rank.looks)
    stopped = sum(look.stopped_seconds for look in rank.looks)
    count = plural(len(rank.looks), "look")
    return f"{count}, {seconds_text(spent)} in all, the program stood still for {seconds_text(stopped)}"
