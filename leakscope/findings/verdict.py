"""The verdict of a run, leaks, clean or inconclusive, and its reason, from the growth breakdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from leakscope.findings.breakdown import (
    GAP,
    OVERHEAD,
)
from leakscope.findings.capacity import at_end_of_run
from leakscope.findings.counters import (
    counted_rate,
    counted_steps,
    late_growth,
    rate_at_end,
)
from leakscope.findings.facts import (
    EmptiedLater,
    RuleName,
    Severity,
)
from leakscope.findings.grouping import JUDGED, judged_snapshots
from leakscope.findings.growth import MIN_SNAPSHOTS
from leakscope.findings.model import (
    NO_GROWTH,
    Finding,
    LedgerInterval,
    LineKind,
    RankGrowth,
    Reason,
    Unjudged,
    Why,
    by_kind,
    grown_of,
)
from leakscope.findings.rules.native_hold import UnattributedFacts
from leakscope.findings.source.scopes import like_in
from leakscope.findings.thresholds import Thresholds
from leakscope.run.model import Rank, Run, Step
from leakscope.run.rank_end import NAME as ENDED
from leakscope.run.rows import (
    CommOperation,
    ContextsAtStep,
    DeviceBlocks,
    EndKind,
    Occasion,
    RecordingEnded,
    StepsBy,
    StepSourceKind,
)
from leakscope.verdict import Verdict

Ledgers = Mapping[int, tuple[LedgerInterval, ...]]

_CUT_SHORT = {EndKind.KILLED: Reason.KILLED, EndKind.HUNG: Reason.HUNG, EndKind.LOST: Reason.KILLED}
_STEPS_TO_JUDGE = 8
"""Steps after warm-up that are enough for a verdict. Heuristic."""
_MIN_STEPS_SINCE_SNAPSHOT = 3
"""Steps since the last heap snapshot below which growth in the counters of the steps must also appear between two
snapshots. Three rises of a ten-step run are undisturbed; a thread that releases memory shortly before or after the
end of a step turns all three into rises. A ten-step run has its last snapshot one step before its end, so at 1 this
would not apply to it; at 8 growth that begins in the last steps of a short run would be missed.
"""
_KNOWN = 0.5
"""Share of a late growth that findings must account for. At 0.9 garbage awaiting gc is a growth of its own, at 0.1 a
small list hides a leak ten times as large.
"""
_ROWS = (CommOperation, ContextsAtStep, DeviceBlocks, StepsBy, RecordingEnded)
_EVIDENCE = (*(f"{kind.FILE}.jsonl" for kind in _ROWS), ENDED)
"""Files in which each line may show a leak, or its absence."""
_SNAPSHOT_FILES = tuple(f"heap_{occasion}_" for occasion in JUDGED)
"""Prefixes of the files from which growth is read: some may be missing."""
_UNKNOWN = (LineKind.UNATTRIBUTED, LineKind.GRAD_NODES, LineKind.BLOCKS)
"""Lines of the breakdown without a holder."""
_AT_REST = (LineKind.RESTED, LineKind.GARBAGE, LineKind.OBJECTS)
"""Lines of memory that no single holder gained."""


def verdict_of(
    run: Run,
    shown: Sequence[Finding],
    apart: Sequence[Finding],
    unjudged: Sequence[Unjudged],
    open_cases: Sequence[str],
    ledgers: Ledgers,
    garbage: int,
) -> tuple[Verdict, Why]:
    """Return (verdict, why). `apart` are the suppressed findings; `open_cases` name what grew without being decidable;
    `garbage` is the bytes awaiting gc at the last snapshots.
    """
    leaks = [f for f in shown if f.is_leak]
    if leaks:
        at_end = at_end_of_run(run, leaks)
        return Verdict.LEAKS, Why(
            reason=Reason.LEAKS,
            count=len(leaks),
            bytes_at_end=at_end.bytes,
            full_at_step=at_end.full_at_step,
            bytes=sum(f.retained_bytes for f in leaks),
            bytes_per_step=sum(f.bytes_per_step for f in leaks if not f.freed_late),
            freed_late=round(sum(f.bytes_per_step for f in leaks if f.freed_late)),
            horizon=run.horizon,
        )
    ranks = [rank for rank in run.ranks if _left_something(rank)]
    damaged = _damaged(run)
    if (
        damaged is None
        and ranks
        and any(snapshot.occasion == Occasion.BLOCK for rank in ranks for snapshot in rank.heap_snapshots)
    ):
        return Verdict.CLEAN, _suppressed(apart, None) or Why(reason=Reason.CLEAN_BLOCK)
    grown = _most(_grown(rank, run, ledgers) for rank in ranks)
    unknown = _why_not_judged(run, unjudged, ledgers, garbage)
    if unknown is None and damaged is not None:
        unknown = replace(damaged, grown=grown)
    if unknown is None and open_cases:
        unknown = Why(reason=Reason.TOO_FEW_SNAPSHOTS, detail=open_cases[0], grown=grown)
    if unknown is None:
        unknown = _unbalanced(run, shown, ledgers) or _began_late(run, [*shown, *apart])
    if unknown is not None:
        return Verdict.INCONCLUSIVE, unknown
    grew = any(f.bytes_per_step > 0 for f in shown)
    rose = grown is not None and grown.bytes >= NO_GROWTH * grown.steps
    hidden = grown is not None and grown.bytes - by_kind(grown.lines)[LineKind.APART] >= NO_GROWTH * grown.steps
    if (grew or hidden) and any(snapshot.hides for rank in ranks for snapshot in rank.heap_snapshots):
        return Verdict.INCONCLUSIVE, Why(reason=Reason.HIDDEN, grown=grown)
    notes = sum(f.severity == Severity.NOTE for f in shown)
    known = _suppressed(apart, grown)
    if known is not None:
        return Verdict.CLEAN, replace(known, notes=notes)
    if rose:
        return Verdict.CLEAN, Why(reason=Reason.BALANCED, count=notes, grown=grown)
    reason = Reason.LITTLE_GREW if grew else Reason.NOTHING_GREW
    horizon = run.horizon if run.min_bytes is None else 0
    return Verdict.CLEAN, Why(reason=reason, count=notes, grown=grown, horizon=horizon)


def _suppressed(apart: Sequence[Finding], grown: RankGrowth | None) -> Why | None:
    """The suppressed leaks; None if there are none."""
    leaks = [f for f in apart if f.is_leak]
    sources = dict.fromkeys(f.suppressed_by.source for f in leaks if f.suppressed_by is not None)
    if not leaks:
        return None
    return Why(
        reason=Reason.SUPPRESSED,
        count=len(leaks),
        bytes=sum(f.retained_bytes for f in leaks),
        bytes_per_step=sum(f.bytes_per_step for f in leaks if not f.freed_late),
        detail=" and ".join(filter(None, sources)),
        grown=grown,
    )


def _why_not_judged(run: Run, unjudged: Sequence[Unjudged], ledgers: Ledgers, garbage: int) -> Why | None:
    """Why growth could not be judged, with what was counted; None if it could."""
    ranks = [rank for rank in run.ranks if _left_something(rank)]
    if not ranks:
        return Why(reason=Reason.NOTHING_RECORDED)
    grown = _most(_grown(rank, run, ledgers) for rank in ranks)
    lost = next((rank for rank in ranks if rank.recording_ended and not _has_last_snapshot(rank)), None)
    if lost is not None:
        return Why(
            reason=Reason.RECORDING_ENDED,
            rank=lost.number,
            is_only_rank=len(run.ranks) == 1,
            detail=lost.recording_ended[0].why,
            grown=_grown(lost, run, ledgers) or grown,
            garbage=garbage,
        )
    if not any(rank.steps for rank in ranks):
        return replace(_no_step(run, ranks), garbage=garbage)
    for rank in run.ranks:
        reason = _CUT_SHORT.get(rank.ended.how)
        if reason is not None:
            own = _grown(rank, run, ledgers) or grown
            return Why(
                reason=reason,
                rank=rank.number,
                ended=rank.ended,
                is_only_rank=len(run.ranks) == 1,
                count=len(judged_snapshots(rank, run.warmup_of(rank))),
                grown=own,
                garbage=garbage,
            )
    short = [u for u in unjudged if u.rule == RuleName.STEP_GROWTH]
    stepped = {rank.number for rank in ranks if rank.steps}
    if short and stepped <= {u.rank for u in short}:
        steps = run.warmup + _STEPS_TO_JUDGE
        seen = any(judged_snapshots(rank, run.warmup_of(rank)) for rank in ranks)
        enough = all(len(rank.steps) >= steps for rank in ranks if rank.steps)
        return Why(
            reason=Reason.NO_SNAPSHOTS if enough and not seen else Reason.TOO_FEW_STEPS,
            unjudged=short[0].why,
            is_only_rank=True,
            steps=steps,
            count=max(len(rank.steps) for rank in ranks),
            grown=grown,
            garbage=garbage,
        )
    return _grew_unjudged(run, ranks, short, ledgers)


def _grew_unjudged(run: Run, ranks: Sequence[Rank], short: Sequence[Unjudged], ledgers: Ledgers) -> Why | None:
    """The rank that grew most among those that ended before growth could be judged; None if none grew."""
    why = {u.rank: u.why for u in short}
    grown = [(rank, _grown(rank, run, ledgers)) for rank in ranks if rank.steps and rank.number in why]
    min_per_step = Thresholds(run.min_bytes).for_counters
    grew = [(rank, more) for rank, more in grown if more is not None and more.bytes >= min_per_step * more.steps]
    if not grew:
        return None
    rank, most = max(grew, key=lambda each: each[1].per_step)
    return Why(
        reason=Reason.TOO_FEW_STEPS,
        rank=rank.number,
        unjudged=why[rank.number],
        steps=run.warmup + _STEPS_TO_JUDGE,
        count=len(rank.steps),
        grown=most,
    )


def verdicts_of_ranks(run: Run, verdict: Verdict, shown: Sequence[Finding]) -> dict[int, Verdict]:
    """The verdict on each rank; that of the run is the worst of them.

    A rank that could not be judged and did not grow is as clean as the run.
    """
    leaking = {number for f in shown if f.severity == Severity.LEAK for number in f.ranks}
    unjudged = Verdict.CLEAN if verdict == Verdict.CLEAN else Verdict.INCONCLUSIVE
    return {
        rank.number: Verdict.LEAKS if rank.number in leaking else Verdict.CLEAN if was_judged(run, rank) else unjudged
        for rank in run.ranks
    }


def _left_something(rank: Rank) -> bool:
    """Whether the rank has recorded anything, even without its end."""
    return rank.ended.how != EndKind.LOST or bool(rank.steps or rank.heap_snapshots)


def was_judged(run: Run, rank: Rank) -> bool:
    """Whether continued growth on this rank would have been seen: it has enough snapshots, up to its end."""
    if rank.ended.how in _CUT_SHORT or (rank.recording_ended and not _has_last_snapshot(rank)):
        return False
    enough = len(judged_snapshots(rank, run.warmup_of(rank))) >= MIN_SNAPSHOTS
    block = any(snapshot.occasion == Occasion.BLOCK for snapshot in rank.heap_snapshots)
    return (enough or block) and not _files_missed(run, rank)


def _damaged(run: Run) -> Why | None:
    """The first rank with an omission that could have shown a leak; None if there is none."""
    for rank in run.ranks:
        files = _files_missed(run, rank)
        if files:
            more = len(run.ranks) > 1
            return Why(reason=Reason.DAMAGED, rank=rank.number, is_only_rank=not more, detail=", ".join(files[:3]))
    return None


def _files_missed(run: Run, rank: Rank) -> list[str]:
    """Omitted files that could have shown a leak."""
    files = [name for name in rank.damaged if name in _EVIDENCE]
    if "steps.jsonl" in rank.damaged and not rank.steps:
        files.append("steps.jsonl")
    if len(judged_snapshots(rank, run.warmup_of(rank))) < MIN_SNAPSHOTS:
        files += [name for name in rank.damaged if name.startswith(_SNAPSHOT_FILES)]
    return files


def _has_last_snapshot(rank: Rank) -> bool:
    """Whether everything was recorded except its end."""
    return any(snapshot.occasion in (Occasion.LAST, Occasion.END) for snapshot in rank.heap_snapshots)


def _no_step(run: Run, ranks: Sequence[Rank]) -> Why:
    """What should have ended a step and did not."""
    sources = (rank.step_source for rank in ranks)
    named = [source for source in sources if source is not None and source.clock == StepSourceKind.FUNCTION]
    processes = tuple(process for rank in ranks for process in rank.processes)
    if named:
        missing = all(source.missing for source in named)
        name, script = named[0].name, run.command[0] if run.command else ""
        if missing:
            near = like_in(name, run.sources, script)
            return Why(reason=Reason.FUNCTION_MISSING, detail=name, near=near)
        return Why(reason=Reason.FUNCTION_SILENT, detail=name)
    return Why(reason=Reason.SPAWNED if processes else Reason.NO_STEP, processes=processes)


def _unbalanced(run: Run, shown: Sequence[Finding], ledgers: Ledgers) -> Why | None:
    """Growth that continues and is attributed to nothing that may grow; None if all of it is attributed."""
    noted = [f.facts for f in shown if f.fingerprint == GAP and isinstance(f.facts, UnattributedFacts)]
    shapes = any(facts.shapes_are_new for facts in noted)
    kinds = _AT_REST if noted and not shapes else (*_AT_REST, *_UNKNOWN)  # the note says that it stopped later
    found = []
    for rank in run.ranks:
        grown = _grown(rank, run, ledgers)
        if grown is None or not grown.snapshots or not grown.is_counted:
            continue
        sizes = by_kind(grown.lines)
        unknown = sum(sizes[kind] for kind in kinds)
        at_end = rate_at_end(rank, run.warmup_of(rank))
        if at_end is None:
            continuing = 0.0 if grown.until is not None else unknown / grown.steps
        else:  # including growth after the last snapshot
            continuing = at_end - (grown.bytes - unknown) / grown.steps
            if rank.steps[-1].number - grown.to_step < _MIN_STEPS_SINCE_SNAPSHOT:
                continuing = min(continuing, _fastest(ledgers[rank.number], kinds))
        overhead = OVERHEAD * (grown.bytes - unknown) / grown.steps
        if continuing >= max(Thresholds.of(run, rank).for_counters, overhead, 1):
            found.append(grown)
    most = _most(found)
    if most is None or not shapes:
        return None if most is None else Why(reason=Reason.UNBALANCED, grown=most)
    seen, full = max((facts.shapes, facts.full_at_step) for facts in noted)
    return Why(reason=Reason.NEW_SHAPES, grown=most, count=seen, steps=full)


def _fastest(intervals: Sequence[LedgerInterval], kinds: Sequence[LineKind]) -> float:
    """Maximum bytes per step by which lines of these kinds grew between two heap snapshots.

    Over all intervals together, the first snapshot may be high with garbage of the start, or the last one low.
    """
    return max(
        sum(by_kind(interval.lines)[kind] for kind in kinds) / max(interval.to_step - interval.from_step, 1)
        for interval in intervals
        if interval.counted_on == intervals[-1].counted_on
    )


def _began_late(run: Run, findings: Sequence[Finding]) -> Why | None:
    """Growth that began after the last heap snapshot and that no finding accounts for; None if there is none."""
    found = []
    for rank in run.ranks:
        warmup = run.warmup_of(rank)
        late = late_growth(rank, warmup, max((snapshot.step for snapshot in judged_snapshots(rank, warmup)), default=0))
        if late is None:
            continue
        first, last, rate = late
        known = sum(f.bytes_per_step for f in findings if rank.number in f.ranks)
        if known < _KNOWN * rate:
            size = (last.counted_bytes or 0) - (first.counted_bytes or 0)
            found.append(RankGrowth(rank.number, size, first.number, last.number, 0, rate))
    most = _most(found)
    return None if most is None else Why(reason=Reason.UNBALANCED, grown=most)


def _grown(rank: Rank, run: Run, ledgers: Ledgers) -> RankGrowth | None:
    """Counted growth of a rank, from its snapshots or, with too few, from the counters of its steps."""
    grown = grown_of(rank.number, ledgers.get(rank.number, ()))
    rate = counted_rate(rank, run.warmup_of(rank))
    if grown is not None:
        return replace(grown, per_step=rate) if grown.is_counted and rate is not None else grown
    counted = counted_steps(rank)
    counted = [step for step in counted if step.number > run.warmup_of(rank)] or counted
    if len(counted) <= 1:
        return _to_end(rank, counted)
    first, last = counted[0], counted[-1]
    size = (last.counted_bytes or 0) - (first.counted_bytes or 0)
    per_step = size / (last.number - first.number) if rate is None else rate
    return RankGrowth(rank.number, size, first.number, last.number, 0, per_step)


def _to_end(rank: Rank, counted: Sequence[Step]) -> RankGrowth | None:
    """Counted growth between a single step and the end of the main code; None if either was not counted."""
    end = next((snapshot for snapshot in rank.heap_snapshots if snapshot.occasion == Occasion.END), None)
    if not counted or end is None or end.counted_bytes is None or end.counted_on != counted[0].counted_on:
        return None
    size = end.counted_bytes - (counted[0].counted_bytes or 0)
    return RankGrowth(rank.number, size, counted[0].number, end.step, 0, 0.0, to_end=True)


def _most(grown: Iterable[RankGrowth | None]) -> RankGrowth | None:
    """The rank with the most growth per step."""
    known = [one for one in grown if one is not None]
    most = max(known, key=lambda one: (one.per_step, -one.rank), default=None)
    return most and replace(most, among=len(known))


_CLEAN = (Reason.NOTHING_GREW, Reason.LITTLE_GREW, Reason.BALANCED)


def while_filling(verdict: Verdict, why: Why, shown: Sequence[Finding]) -> tuple[Verdict, Why]:
    """A clean verdict that names what grows until a line of the source empties it; inconclusive if that line may never
    run.
    """
    filling = [(f, f.settled_by) for f in shown if isinstance(f.settled_by, EmptiedLater)]
    if verdict != Verdict.CLEAN or not filling:
        return verdict, why
    most, emptied = min(filling, key=lambda each: (each[1].is_decided, -each[0].bytes_per_step))
    if emptied.is_decided and why.reason not in _CLEAN:
        return verdict, why
    reported = replace(
        why,
        reason=Reason.FILLING,
        detail=most.cut.written if most.cut is not None else most.subject,
        bytes_per_step=most.bytes_per_step,
        emptied=emptied,
    )
    return (Verdict.CLEAN if emptied.is_decided else Verdict.INCONCLUSIVE), reported


def avoidable_over(shown: Sequence[Finding], limit: int | None) -> int | None:
    """Avoidable bytes of all ranks if above the limit; each storage is in one finding only."""
    total = sum(f.retained_bytes for f in shown if f.severity == Severity.AVOIDABLE)
    return total if limit is not None and total > limit else None
