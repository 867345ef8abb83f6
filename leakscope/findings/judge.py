"""Judges a run: growth, rules and cuts of each rank by itself, then merge, breakdown and verdict over all."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import permutations

from leakscope.findings.backward_hint import see
from leakscope.findings.breakdown import (
    BreakdownParts,
    SnapshotMemory,
    breakdown_of_rank,
    breakdown_parts,
    bytes_a_node,
    gap_findings,
    scattered_findings,
    snapshot_memories,
)
from leakscope.findings.build import judge_candidate
from leakscope.findings.candidates import Candidate, candidates_among, candidates_of
from leakscope.findings.categories import alive_at_end, garbage_of, summary
from leakscope.findings.counters import AlsoGrows, also_grows, counted_rate, step_times
from leakscope.findings.facts import (
    NOT_JUDGED,
    AliveAtEnd,
    AlsoFreed,
    FreedBy,
    OnlyTensorsFreed,
    Origin,
    RuleName,
    RunFacts,
    Severity,
)
from leakscope.findings.gc_advice import gc_advice
from leakscope.findings.grouping import groups_over, judged_snapshots
from leakscope.findings.growth import MIN_SNAPSHOTS
from leakscope.findings.judged import JudgedCandidate, Source
from leakscope.findings.known_leaks import TYPES, issue_of
from leakscope.findings.library import kept_by_library
from leakscope.findings.merge import (
    decide_severities,
    merge_by_fingerprint,
    merge_findings,
    severity_then_size,
    with_one_cut,
)
from leakscope.findings.model import (
    NO_GROWTH,
    Cut,
    Finding,
    Findings,
    RankSummary,
    Unjudged,
    UnjudgedReason,
    WhyUnjudged,
)
from leakscope.findings.nontensor import (
    noun_of_array,
    with_arrays_for_storages,
    with_nodes_for_storages,
    with_objects_for_storages,
)
from leakscope.findings.oom import Shortage, device_failures, out_of_memory, shortage_of
from leakscope.findings.peak import drag
from leakscope.findings.rules.allocator import allocator_findings
from leakscope.findings.rules.dist_autograd_context import beyond_contexts, context_findings, with_contexts
from leakscope.findings.rules.hook_pileup import HookFacts, collects_hooks, is_of_one_like
from leakscope.findings.rules.idle_memory import idle_findings
from leakscope.findings.rules.late_release import late_release_findings, late_release_unjudged
from leakscope.findings.rules.native_hold import native_findings
from leakscope.findings.rules.object_growth import counted_series, make_of_objects
from leakscope.findings.rules.p2p_buffer import dropped_work_findings
from leakscope.findings.rules.rank_skew import held_at_last, skew_findings
from leakscope.findings.rules.retained_graph import of_nodes, report_with_tensors
from leakscope.findings.rules.rule import rules_of_others
from leakscope.findings.rules.worker_copies import copies_findings
from leakscope.findings.rules.worker_growth import worker_growth_findings
from leakscope.findings.source.lines import find_lines
from leakscope.findings.source.stores import is_made_from_itself, variable_of
from leakscope.findings.suppressions import Known, known_of, suppression_of, unused
from leakscope.findings.thresholds import Thresholds
from leakscope.findings.verdict import avoidable_over, verdict_of, verdicts_of_ranks, while_filling
from leakscope.findings.workers import LoaderMemory, loaders_of
from leakscope.run.model import HeapSnapshot, Rank, Run
from leakscope.run.operations import column
from leakscope.run.rows import Direction, Occasion
from leakscope.run.suppression import Suppression
from leakscope.verdict import Verdict

LEAKS_FOUND = 23
"""Exit status if leaks are found; seldom used by scripts and shells."""


@dataclass(frozen=True)
class Policy:
    """Which findings count, and what fails the run."""

    suppress: Collection[str] = ()
    """Patterns of leaks to suppress, in addition to `Run.suppressions`."""
    baseline: Collection[str] = ()
    """Fingerprints of known leaks."""
    leak_exit_code: int = LEAKS_FOUND
    """Exit status if there are leaks."""
    ignore_library: bool = False
    """Whether leaks in third-party libraries are notes."""
    fail_on_avoidable: int | None = None
    """Bytes of avoidable memory above which the run fails; None for never."""
    fail_on_inconclusive: bool = False
    """Whether an inconclusive run fails, with exit status 2."""


@dataclass(frozen=True)
class OpenCase:
    """A finding that would be a leak if more snapshots had seen it grow."""

    fingerprint: str
    """Fingerprint of the finding that includes it."""
    written: str
    """What grows, as written in code."""


@dataclass(frozen=True)
class JudgedRank:
    """The result of judging one rank by itself, without its heaps."""

    number: int
    findings: tuple[Finding, ...]
    unjudged: tuple[Unjudged, ...]
    open_cases: tuple[OpenCase, ...]
    parts: BreakdownParts
    summary: RankSummary
    held: Mapping[int, int] | None
    """As returned by `held_at_last`."""
    garbage: int
    """Bytes awaiting gc at the last snapshot."""
    listed: tuple[AliveAtEnd, ...]
    shortage: Shortage
    device_failures: tuple[RunFacts, ...]
    drag: tuple[RunFacts, ...]
    loaders: tuple[LoaderMemory, ...] = ()
    also_grows: tuple[AlsoGrows, ...] = ()


def judge(run: Run, policy: Policy = Policy()) -> Findings:
    """The verdict of a run, and each distinct leak in it."""
    return judge_together(run, [judge_rank(run, rank) for rank in run.ranks], policy)


def judge_rank(run: Run, rank: Rank) -> JudgedRank:
    """Judge one rank by itself, given what holds for the whole run."""
    warmup, thresholds = run.warmup_of(rank), Thresholds.of(run, rank)
    snapshots = judged_snapshots(rank, warmup)
    groups, memories = groups_over(snapshots), snapshot_memories(rank, snapshots, warmup)
    growing = [_unless_accumulated(each, run.sources) for each in candidates_among(rank, groups)]
    tensors = [judge_candidate(each, thresholds) for each in growing]
    nodes = _judge_nodes(rank, snapshots, memories, warmup, thresholds)
    arrays = _judge_arrays(rank, warmup, thresholds)
    decide_severities([*tensors, *nodes], thresholds)
    for one in arrays:
        one.decide_severity()
    problems = dict.fromkeys(problem for one in (*tensors, *arrays, *nodes) for problem in one.problems)
    others = [*arrays, *_judge_objects(rank, warmup, thresholds)]
    for one in (*tensors, *nodes, *others):
        if isinstance(one.facts, HookFacts):
            one.facts = replace(one.facts, step_seconds=step_times(rank, warmup))
    open_cases = {one: _grows_as(one) for one in (*tensors, *nodes, *others) if one.is_open}

    gaps = native_findings(rank, snapshots, thresholds.for_counters)
    if gaps is None:
        gaps = gap_findings(
            rank, snapshots, _without_nodes(memories) if nodes else memories, warmup, thresholds.for_counters
        )
    scattered = scattered_findings(rank, groups, growing, warmup, thresholds)
    report_with_tensors(nodes, tensors)
    findings = _merge_by_cut([*tensors, *nodes], others)
    by_library = kept_by_library(rank, snapshots, findings, thresholds)
    of_memory = (
        *beyond_contexts(gaps, findings),
        *scattered,
        *allocator_findings(rank, snapshots),
        *by_library.values(),
        *late_release_findings(rank, thresholds.for_counters, by_library),
        *idle_findings(rank, thresholds.for_counters, findings),
        *worker_growth_findings(rank, thresholds.for_counters),
        *copies_findings(rank, thresholds.for_counters),
    )
    every = _with_hints([*findings, *of_memory], rank, snapshots)
    named: dict[str, tuple[int, ...]] = {}
    for finding in every:
        named[finding.fingerprint] = (*named.get(finding.fingerprint, ()), *finding.storages.get(rank.number, ()))
    return JudgedRank(
        number=rank.number,
        findings=every,
        unjudged=(*_unjudged(rank, snapshots), *problems, *late_release_unjudged(rank)),
        open_cases=tuple(
            OpenCase(one.reported_in, text) for one, text in open_cases.items() if text and one.reported_in
        ),
        parts=breakdown_parts(
            snapshots,
            memories,
            groups,
            [(one.candidate, one.reported_in) for one in tensors],
            [(one.candidate, one.reported_in) for one in others],
            named,
        ),
        summary=summary(rank, [one.candidate for one in tensors if one.severity == Severity.LEAK]),
        held=held_at_last(rank),
        garbage=garbage_of(rank),
        listed=alive_at_end(rank),
        shortage=shortage_of(rank),
        device_failures=device_failures(rank),
        drag=drag(rank),
        loaders=loaders_of(rank),
        also_grows=also_grows(rank, warmup, thresholds.for_counters),
    )


def judge_together(run: Run, ranks: Iterable[JudgedRank], policy: Policy = Policy()) -> Findings:
    """As `judge`, for a run whose ranks have been judged by themselves, in order."""
    known = known_of(run, tuple(map(Suppression, (*policy.suppress, *policy.baseline))))
    ranks = tuple(ranks)
    first = min((rank.number for rank in run.ranks), default=0)
    unloaded = (Unjudged(broken.name, first, broken.why) for broken in rules_of_others()[1])
    of_ranks = [finding for rank in ranks for finding in rank.findings]
    merged = merge_by_fingerprint(with_contexts([*of_ranks, *dropped_work_findings(run), *context_findings(run)], run))
    findings, unread = find_lines(merged, run)
    summaries = {rank.number: rank.summary for rank in ranks}
    findings += skew_findings(run, summaries, findings, {rank.number: rank.held for rank in ranks})
    hiding = {rank.number for rank in run.ranks if any(snapshot.hides for snapshot in rank.heap_snapshots)}
    findings = [_decided(finding, run, known, policy.ignore_library, hiding) for finding in findings]
    unjudged = (*(problem for rank in ranks for problem in rank.unjudged), *unloaded, *unread)
    ledgers = {rank.number: breakdown_of_rank(findings, rank.number, rank.parts) for rank in ranks}

    shown = tuple(f for f in findings if f.suppressed_by is None)
    suppressed = tuple(f for f in findings if f.suppressed_by is not None)
    written = {found.fingerprint: found.written for rank in ranks for found in rank.open_cases}
    open_cases = [written[f.fingerprint] for f in shown if f.fingerprint in written]
    garbage = sum(rank.garbage for rank in ranks)
    verdict, why = while_filling(*verdict_of(run, shown, suppressed, unjudged, open_cases, ledgers, garbage), shown)
    over = avoidable_over(shown, policy.fail_on_avoidable)
    judged = Findings(
        verdict=verdict,
        why=why,
        exit_status=0,
        avoidable_over=over,
        fail_on_inconclusive=policy.fail_on_inconclusive,
        findings=shown,
        suppressed=suppressed,
        unused=unused(known, findings) if verdict != Verdict.INCONCLUSIVE else (),
        expired=known.expired,
        unjudged=unjudged,
        ranks={
            number: replace(summaries[number], verdict=of_rank)
            for number, of_rank in verdicts_of_ranks(run, verdict, shown).items()
            if number in summaries
        },
        ledgers=ledgers,
        listed=tuple(listed for rank in ranks for listed in rank.listed),
        out_of_memory=(
            *out_of_memory([rank.shortage for rank in ranks], run.device),
            *(failure for rank in ranks for failure in rank.device_failures),
        ),
        gc_advice=gc_advice(run, shown),
        loaders={rank.number: rank.loaders for rank in ranks if rank.loaders},
        drag=tuple(fact for rank in ranks for fact in rank.drag),
        also_grows=tuple(fact for rank in ranks for fact in rank.also_grows),
    )
    status = NOT_JUDGED if judged.unjudged_fails and over is None else policy.leak_exit_code
    return replace(judged, exit_status=status if judged.failed else 0)


def _unjudged(rank: Rank, snapshots: Sequence[HeapSnapshot]) -> list[Unjudged]:
    """What the snapshots are too few for, and what they could not see."""
    if snapshots and snapshots[-1].occasion == Occasion.BLOCK:
        return []
    unjudged = []
    if (rank.heap_snapshots or rank.steps) and len(snapshots) < MIN_SNAPSHOTS:
        reason = UnjudgedReason.TOO_FEW_SNAPSHOTS if rank.steps else UnjudgedReason.NO_STEP
        why = WhyUnjudged(reason=reason, snapshots=len(snapshots), needed=MIN_SNAPSHOTS)
        unjudged.append(Unjudged(RuleName.STEP_GROWTH, rank.number, why))
    for snapshot in snapshots:
        unjudged += [Unjudged(RuleName.NATIVE_HOLD, rank.number, problem) for problem in snapshot.unjudged]
    return list(dict.fromkeys(unjudged))


def _unless_accumulated(candidate: Candidate, sources: Mapping[str, tuple[str, ...]]) -> Candidate:
    """A candidate that follows the input, unless the source makes it from its own previous value."""
    if candidate.follows is None:
        return candidate
    references = [reference.name for reference in candidate.references[: candidate.tensor_at]]
    itself = is_made_from_itself(sources, variable_of(references))
    return replace(candidate, follows=None) if itself else candidate


def _judge_arrays(rank: Rank, warmup: int, thresholds: Thresholds) -> list[JudgedCandidate]:
    """Arrays that something alive keeps gaining."""
    arrays = with_arrays_for_storages(rank)
    judged = []
    for candidate in candidates_of(arrays, judged_snapshots(arrays, warmup)) if arrays else ():
        if not candidate.group.freed:
            one = judge_candidate(candidate, thresholds, Source.ARRAYS)
            one.noun = noun_of_array(one.trace)
            judged.append(one)
    return judged


_COUNTED_SHARE = 0.5
"""Share of the rate of grad nodes that the counters of all steps must show if no container gains them. The graph of one
step that is larger at each snapshot by chance adds 0, retained graphs about their rate.
"""


def _judge_nodes(
    rank: Rank,
    snapshots: Sequence[HeapSnapshot],
    memories: Sequence[SnapshotMemory],
    warmup: int,
    thresholds: Thresholds,
) -> list[JudgedCandidate]:
    """Autograd nodes that grow.

    The graph of one step that is larger at each snapshot by chance is freed with its step: no counter rises. The growth
    of a container is attributed, whatever else changes the counters meanwhile.
    """
    nodes = with_nodes_for_storages(rank, snapshots, bytes_a_node(memories))
    candidates = candidates_of(nodes, judged_snapshots(nodes, warmup)) if nodes else []
    counted = counted_rate(rank, warmup) if candidates else None
    judged = []
    for candidate in candidates:
        if counted is None or candidate.gaining >= 0 or counted >= _COUNTED_SHARE * candidate.per_step:
            one = judge_candidate(candidate, thresholds, Source.NODES)
            one.facts = of_nodes(one.facts, candidate)
            one.on_accelerator = any(snapshot.heap.device for snapshot in snapshots)
            judged.append(one)
    return judged


def _without_nodes(memories: Sequence[SnapshotMemory]) -> list[SnapshotMemory]:
    """The counted bytes without the memory of grad nodes, which is reported with their tensors."""
    each = bytes_a_node(memories)
    return [b if b.counted is None else replace(b, counted=b.counted - each * b.nodes) for b in memories]


_NOTE_SHARE = 1 / 16
"""Share of a leak's growth from which growth of objects is worth a note. Heuristic: a history of numbers is not."""


def _judge_objects(rank: Rank, warmup: int, thresholds: Thresholds) -> list[JudgedCandidate]:
    """Objects that are no tensors and that something alive keeps gaining."""
    objects = with_objects_for_storages(rank)
    if objects is None:
        return []
    snapshots = judged_snapshots(objects, warmup)
    # caches of Python and libraries always fill by a little
    thresholds = replace(thresholds, noise=NO_GROWTH)
    judged = []
    for growing in candidates_of(objects, snapshots):
        candidate = replace(growing, is_of_container=True)
        small = candidate.per_step < _NOTE_SHARE * thresholds.for_data() and not collects_hooks(candidate)
        if candidate.group.freed or small:
            continue
        candidate = replace(candidate, counted=counted_series(candidate, snapshots))
        one = judge_candidate(candidate, thresholds, Source.OBJECTS)
        make_of_objects(one, snapshots)
        one.decide_severity()
        judged.append(one)
    return judged


def _grows_as(one: JudgedCandidate) -> str:
    """What grows, as the user would write it; "" for what a library keeps."""
    if one.source == Source.OBJECTS:
        return one.subject
    if one.origin != Origin.APPLICATION:
        return ""
    return one.cut.written if one.cut else one.subject


def _merge_by_cut(tensors: Sequence[JudgedCandidate], others: Sequence[JudgedCandidate]) -> list[Finding]:
    """One finding for what one cut frees; `others` are arrays and objects, reported with tensors of the same cut."""
    reported = [one for one in tensors if one.is_reported]
    findings: list[Finding] = []
    found_in: dict[str, str] = {}
    for same in _with_hooks_of_one([[reported[place] for place in places] for places in with_one_cut(reported)]):
        findings.append(_merged(same))
        found_in |= {one.fingerprint: findings[-1].fingerprint for one in same}
    # autograd nodes that are reported with tensors have become part of a finding where they have the same holder
    for one in tensors:
        one.reported_in = found_in.get(one.fingerprint, "")
    for same in _with_hooks_of_one([[one] for one in others]):
        merged = _merged(same)
        place = next((k for k, finding in enumerate(findings) if _frees_too(finding, merged)), None)
        if place is None:
            findings.append(merged)
        else:
            beside = (*findings[place].beside, AlsoFreed(merged.retained_bytes, merged.noun))
            findings[place] = replace(findings[place], beside=beside)
        for one in same:
            one.reported_in = findings[-1 if place is None else place].fingerprint
    return findings


def _frees_too(finding: Finding, other: Finding) -> bool:
    """Whether the cut of a finding frees memory of another kind too, which is then reported with it."""
    same = finding.cut and other.cut and finding.cut.keys[0] == other.cut.keys[0]
    noted = finding.severity == Severity.LEAK or other.severity == Severity.NOTE
    return bool(same) and finding.freed_by == FreedBy.PROGRAM and noted


def _with_hooks_of_one(alike: Sequence[list[JudgedCandidate]]) -> list[list[JudgedCandidate]]:
    """Candidates that are one finding; those of hooks of one of several modules join those of the others."""
    of_hooks = [same for same in alike if same[0].rule == RuleName.HOOK_PILEUP]
    for these, those in permutations(of_hooks, 2):
        if not (these and those):
            continue
        one, other = these[0], those[0]
        same = (one.severity, one.noun) == (other.severity, other.noun)
        if same and is_of_one_like(one.candidate, other.candidate):
            those.extend(these)
            these.clear()
    return [same for same in alike if same]


def _merged(same: Sequence[JudgedCandidate]) -> Finding:
    """Candidates joined as one finding; among equal kinds the first provides the words."""
    findings = [one.finding for one in same]
    return merge_findings(findings, lambda finding: (finding is not findings[0], severity_then_size(finding)))


def _with_hints(findings: Sequence[Finding], rank: Rank, snapshots: Sequence[HeapSnapshot]) -> tuple[Finding, ...]:
    """The findings of one rank with the function of leakscope's own backward that avoids each, if the rank is a stage
    of a pipeline, and with the issue of leaks known to torch's developers, which are the library's.
    """
    of_torch = any(name.startswith(TYPES) for snapshot in snapshots[-1:] for name in snapshot.heap.strings)
    directions = () if of_torch or not findings else column(rank.operations, "direction")
    by_hand = any(direction in tuple(Direction) for direction in directions)
    hinted = []
    for finding in findings:
        hint, issue = see(finding, by_hand), issue_of(finding)
        if issue is not None:
            hinted.append(replace(finding, see=hint, origin=Origin.LIBRARY, library="torch", upstream=issue))
        else:
            hinted.append(finding if hint is None else replace(finding, see=hint))
    return tuple(hinted)


def _decided(finding: Finding, run: Run, known: Known, ignore_library: bool, hiding: Set[int]) -> Finding:
    """A finding with what is known of the whole run only: what a trial of the cut freed, the policy for libraries, the
    suppression that applies.

    Ranks that are `hiding` have a snapshot that did not show all C++ references: what a cut frees is unknown there.
    """
    severity = finding.severity
    if ignore_library and finding.origin == Origin.LIBRARY and severity == Severity.LEAK:
        severity = Severity.NOTE
    cut, trace = measured_cut(finding, run), finding.trace
    if not hiding.isdisjoint(finding.ranks):
        cut = cut and replace(cut, is_exact=False)
        trace = tuple(replace(hop, frees_bytes=None) for hop in trace)
    suppression = suppression_of(finding, known, severity)
    return replace(finding, severity=severity, cut=cut, trace=trace, suppressed_by=suppression)


def measured_cut(finding: Finding, run: Run) -> Cut | None:
    """The cut of a finding with the bytes freed when a forked copy of each rank made it, or why it was not tried."""
    cut = finding.cut
    if cut is None:
        return None
    answers = [rank.proved[finding.fingerprint] for rank in run.ranks if finding.fingerprint in rank.proved]
    answered = {rank.number for rank in run.ranks if finding.fingerprint in rank.proved}
    sizes = [a for a in answers if isinstance(a, int)]
    reasons = [a for a in answers if isinstance(a, str)]
    if sizes and finding.counted_bytes:
        return replace(cut, unproved=OnlyTensorsFreed(sum(sizes)))
    if sizes and not reasons and answered >= set(finding.ranks):
        return replace(cut, proved_bytes=sum(sizes))
    return replace(cut, unproved=reasons[0]) if reasons else cut
