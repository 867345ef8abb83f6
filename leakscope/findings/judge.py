"""Judges a run: `STAGES_OF_RANK` on each rank, then `STAGES` on the run; each stage is a function of this file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import permutations, zip_longest

from leakscope.findings.backward_hint import see
from leakscope.findings.breakdown import (
    GAP,
    SCATTERED,
    Account,
    Balance,
    GroupLevels,
    LinesOfFindings,
    account_of,
    balances_of,
    bytes_a_node,
    gap_findings,
    ledger_of,
    scattered_findings,
)
from leakscope.findings.build import build_finding, build_with_problems
from leakscope.findings.candidates import Candidate, candidates_among, candidates_of, downgraded, is_open
from leakscope.findings.categories import alive_at_end, garbage_of, summary
from leakscope.findings.counters import AlsoGrows, also_grows, counted_rate, step_times
from leakscope.findings.facts import (
    NOT_JUDGED,
    AliveAtEnd,
    Bounded,
    EmptiedLater,
    Facts,
    FollowsInput,
    FreedBy,
    OnlyTensorsFreed,
    Origin,
    Plateaued,
    RuleName,
    RunFacts,
    Severity,
)
from leakscope.findings.gc_advice import gc_advice
from leakscope.findings.grouping import GroupsOverLooks, groups_over, judged_looks
from leakscope.findings.growth import MIN_LOOKS
from leakscope.findings.known_leaks import TYPES, named_upstream
from leakscope.findings.library import RetentionFacts, kept_by_library
from leakscope.findings.merge import (
    merge_by_fingerprint,
    merge_findings,
    promote_combined_notes,
    severity_then_size,
    with_one_cut,
)
from leakscope.findings.model import (
    NO_GROWTH,
    CutReference,
    Finding,
    Findings,
    Hop,
    LedgerInterval,
    Line,
    LineKind,
    LoaderMemory,
    RankSummary,
    Reason,
    RestedKind,
    Unjudged,
    UnjudgedReason,
    Why,
    WhyUnjudged,
    loaders_of,
)
from leakscope.findings.naming import file_at
from leakscope.findings.nontensor import (
    beside_tensors,
    of_arrays,
    with_arrays_for_storages,
    with_nodes_for_storages,
    with_objects_for_storages,
)
from leakscope.findings.oom import Shortage, device_failures, out_of_memory, shortage_of
from leakscope.findings.peak import drag
from leakscope.findings.rules.allocator import allocator_findings
from leakscope.findings.rules.dist_autograd_context import beyond_contexts, context_findings, with_contexts
from leakscope.findings.rules.frame_hold import FrameFacts, LocalsHolder
from leakscope.findings.rules.hook_pileup import HookFacts, collects_hooks, is_of_one_like
from leakscope.findings.rules.idle_memory import idle_findings
from leakscope.findings.rules.late_release import late_release_findings, late_release_unjudged
from leakscope.findings.rules.native_hold import native_findings
from leakscope.findings.rules.object_growth import counted_series, of_objects
from leakscope.findings.rules.p2p_buffer import dropped_work_findings
from leakscope.findings.rules.rank_skew import held_at_last, skew_findings
from leakscope.findings.rules.retained_graph import GraphFacts, of_nodes, with_graphs
from leakscope.findings.rules.rule import because, rules_of_others
from leakscope.findings.rules.worker_copies import copies_findings
from leakscope.findings.rules.worker_growth import worker_growth_findings
from leakscope.findings.source.bounds import while_it_fills
from leakscope.findings.source.edits import suggested
from leakscope.findings.source.index import Sources
from leakscope.findings.source.stores import Store, as_in_source, is_made_from_itself, stores_for, variable_of
from leakscope.findings.source.uses import Uses
from leakscope.findings.suppressions import Known, known_of, suppression_of, unused
from leakscope.findings.thresholds import Thresholds
from leakscope.findings.verdict import verdict_of, verdicts_of_ranks
from leakscope.graph.model import ObjectKind
from leakscope.run.model import HeapSnapshot, Rank, Run
from leakscope.run.operations import column
from leakscope.run.rows import Direction, Occasion
from leakscope.run.suppression import Suppression
from leakscope.verdict import Verdict


@dataclass(frozen=True)
class OpenCase:
    """A finding that would be a leak if more snapshots had seen it grow."""

    fingerprint: str
    """Fingerprint of the finding that includes it."""
    written: str
    """What grows, as written in code."""


class Source(StrEnum):
    """What the candidates of one heap graph are made of."""

    TENSORS = "tensors"
    NODES = "grad nodes"
    """In a graph of their own, which begins as that of the look."""
    ARRAYS = "arrays"
    """Numpy arrays and their like."""
    OBJECTS = "objects"
    """Other objects that are no tensors."""


@dataclass(frozen=True)
class JudgedCandidate:
    """A candidate and what the rules make of it."""

    candidate: Candidate
    source: Source
    finding: Finding
    grew: str = ""
    """What grows, as the user would write it, where it cannot be said whether it is a leak; "" elsewhere."""
    is_apart: bool = True
    """False for grad nodes that are told with tensors, or not at all."""
    became: str = ""
    """Fingerprint of the finding that it has become part of."""


@dataclass(frozen=True)
class RankCase:
    """The state of judging one rank by itself."""

    rank: Rank
    warmup: int
    thresholds: Thresholds
    sources: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Lines of the user's source files."""
    looks: tuple[HeapSnapshot, ...] = ()
    """The snapshots from which growth is read."""
    groups: GroupsOverLooks = field(default_factory=GroupsOverLooks)
    balances: tuple[Balance, ...] = ()
    """One for each snapshot."""
    judged: tuple[JudgedCandidate, ...] = ()
    """All candidates, by their sources in the order of these."""
    findings: tuple[Finding, ...] = ()
    open_cases: tuple[OpenCase, ...] = ()
    gaps: tuple[Finding, ...] = ()
    """Counted growth that no storage explains."""
    scattered: tuple[Finding, ...] = ()
    """Growth under ever new names."""
    unjudged: tuple[Unjudged, ...] = ()

    def of(self, *sources: Source) -> list[JudgedCandidate]:
        """The candidates of some sources."""
        return [one for one in self.judged if one.source in sources]


@dataclass(frozen=True)
class JudgedRank:
    """The result of judging one rank by itself, without its heaps."""

    number: int
    findings: tuple[Finding, ...]
    unjudged: tuple[Unjudged, ...]
    open_cases: tuple[OpenCase, ...]
    account: Account
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


@dataclass(frozen=True)
class JudgeState:
    """The state of judging a run."""

    run: Run
    known: Known
    leak_exit_code: int
    ranks: tuple[JudgedRank, ...]
    ignore_library: bool = False
    """Whether leaks of libraries do not affect the verdict."""
    fail_on_avoidable: int | None = None
    """Avoidable bytes above which the exit status is that of leaks; None if they never affect it."""
    fail_on_inconclusive: bool = False
    """Whether a run that cannot be judged is a failure."""
    findings: tuple[Finding, ...] = ()
    summaries: Mapping[int, RankSummary] = field(default_factory=dict)
    unjudged: tuple[Unjudged, ...] = ()
    ledgers: Mapping[int, tuple[LedgerInterval, ...]] = field(default_factory=dict)
    judged: Findings | None = None
    """The result of the last stage."""


RankStage = Callable[[RankCase], RankCase]
Stage = Callable[[JudgeState], JudgeState]


_COUNTED = 0.5
"""Share of the rate of grad nodes that the counters of all steps must show if no container gains them. The graph of one
step that is larger at each snapshot by chance adds 0, retained graphs about their rate.
"""


def candidates_by_source(case: RankCase) -> dict[Source, list[Candidate]]:
    """Groups that grow, and garbage that comes back; of arrays only what something alive keeps gaining, and of grad
    nodes.
    """
    nodes = with_nodes_for_storages(case.rank, case.looks, bytes_a_node(case.balances))
    of_nodes = candidates_of(nodes, judged_looks(nodes, case.warmup)) if nodes else []
    counted = counted_rate(case.rank, case.warmup) if of_nodes else None
    arrays = with_arrays_for_storages(case.rank)
    growing = candidates_of(arrays, judged_looks(arrays, case.warmup)) if arrays else []
    return {
        Source.TENSORS: [_unless_accumulated(each, case) for each in candidates_among(case.rank, case.groups)],
        Source.ARRAYS: [each for each in growing if not each.group.freed],
        # The graph of one step that is larger at each snapshot by chance is freed with its step: no counter rises. The
        # growth of a container is attributed, whatever else changes the counters meanwhile.
        Source.NODES: [
            each for each in of_nodes if counted is None or each.gaining >= 0 or counted >= _COUNTED * each.per_step
        ],
    }


def judge_candidates(case: RankCase) -> RankCase:
    """Rules: a finding for each candidate, a note where something speaks against a leak."""
    candidates = candidates_by_source(case)
    built = {of: [build_with_problems(each, case.thresholds) for each in candidates[of]] for of in candidates}
    problems = dict.fromkeys(problem for of in built for _, problems in built[of] for problem in problems)
    on_accelerator = any(look.heap.device for look in case.looks)
    tensors = [finding for finding, _ in built[Source.TENSORS]]
    arrays = [of_arrays(finding, case.rank.number) for finding, _ in built[Source.ARRAYS]]
    nodes = [
        of_nodes(finding, candidate, on_accelerator)
        for (finding, _), candidate in zip(built[Source.NODES], candidates[Source.NODES], strict=True)
    ]
    together = promote_combined_notes(
        (*tensors, *nodes), (*candidates[Source.TENSORS], *candidates[Source.NODES]), case.thresholds
    )
    findings = {
        Source.TENSORS: together[: len(tensors)],
        Source.NODES: together[len(tensors) :],
        Source.ARRAYS: arrays,
    }
    judged = (
        JudgedCandidate(candidate, of, downgraded(finding, candidate), _open_case(finding, candidate))
        for of in findings
        for candidate, finding in zip(candidates[of], findings[of], strict=True)
    )
    return replace(case, judged=tuple(judged), unjudged=(*case.unjudged, *problems))


def _open_case(finding: Finding, candidate: Candidate) -> str:
    """What grows, where it cannot be said whether it is a leak of the script's own; "" elsewhere."""
    if not is_open(finding, candidate) or finding.origin != Origin.APPLICATION:
        return ""
    return finding.cut.written if finding.cut else finding.subject


_SMALL = 1 / 16
"""Share of a leak's growth from which growth of objects is worth a note. Heuristic: a history of numbers is not."""


def judge_objects(case: RankCase) -> RankCase:
    """Findings of objects that are no tensors; what one cut lets go of with tensors is told with those."""
    rank = with_objects_for_storages(case.rank)
    if rank is None:
        return case
    looks = judged_looks(rank, case.warmup)
    # caches of Python and libraries always fill by a little
    thresholds = replace(case.thresholds, noise=NO_GROWTH)
    judged = []
    for growing in candidates_of(rank, looks):
        if growing.group.freed:
            continue
        candidate = replace(growing, is_of_container=True)
        if candidate.per_step < _SMALL * thresholds.of_data() and not collects_hooks(candidate):
            continue
        candidate = replace(candidate, counted=counted_series(candidate, looks))
        finding = of_objects(build_finding(candidate, thresholds), candidate, looks)
        grew = finding.subject if is_open(finding, candidate) else ""
        judged.append(JudgedCandidate(candidate, Source.OBJECTS, downgraded(finding, candidate), grew))
    return replace(case, judged=(*case.judged, *judged))


def take_looks(case: RankCase) -> RankCase:
    """Series: the snapshots from which growth is read."""
    looks = judged_looks(case.rank, case.warmup)
    return replace(case, looks=looks, unjudged=(*case.unjudged, *_unjudged(case.rank, looks)))


def group_looks(case: RankCase) -> RankCase:
    """Groups: the storages of each snapshot by holder."""
    return replace(case, groups=groups_over(case.looks))


def _unjudged(rank: Rank, looks: Sequence[HeapSnapshot]) -> list[Unjudged]:
    """What the snapshots are too few for, and what they could not see."""
    if looks and looks[-1].occasion == Occasion.BLOCK:
        return []
    unjudged = []
    if (rank.looks or rank.steps) and len(looks) < MIN_LOOKS:
        reason = UnjudgedReason.TOO_FEW_LOOKS if rank.steps else UnjudgedReason.NO_STEP
        why = WhyUnjudged(reason=reason, looks=len(looks), needed=MIN_LOOKS)
        unjudged.append(Unjudged(RuleName.STEP_GROWTH, rank.number, why))
    for look in looks:
        unjudged += [Unjudged(RuleName.NATIVE_HOLD, rank.number, problem) for problem in look.unjudged]
    return list(dict.fromkeys(unjudged))


def explain_gaps(case: RankCase) -> RankCase:
    """Counted growth that no storage explains, and the findings whose graphs take it."""
    rank, looks = case.rank, case.looks
    tensors, nodes = case.of(Source.TENSORS), case.of(Source.NODES)
    joined = native_findings(rank, looks, case.thresholds.counted)
    balances = _without_nodes(case.balances) if nodes else case.balances
    gaps = gap_findings(rank, looks, balances, case.warmup, case.thresholds.counted) if joined is None else joined
    candidates = [one.candidate for one in tensors]
    findings, apart = with_graphs(
        [one.finding for one in tensors], candidates, [one.finding for one in nodes], [one.candidate for one in nodes]
    )
    scattered = scattered_findings(rank, case.groups, candidates, case.warmup, case.thresholds)
    return replace(
        case,
        judged=(
            *(replace(one, finding=finding) for one, finding in zip(tensors, findings, strict=True)),
            *(replace(one, is_apart=any(one.finding is graph for graph in apart)) for one in nodes),
            *case.of(Source.ARRAYS, Source.OBJECTS),
        ),
        gaps=tuple(gaps),
        scattered=tuple(scattered),
    )


def _without_nodes(balances: Sequence[Balance]) -> list[Balance]:
    """The counted bytes without the memory of grad nodes, which is reported with their tensors."""
    each = bytes_a_node(balances)
    return [b if b.counted is None else replace(b, counted=b.counted - each * b.nodes) for b in balances]


def _unless_accumulated(candidate: Candidate, case: RankCase) -> Candidate:
    """A candidate that follows the input, unless the source makes it from its own previous value."""
    if candidate.follows is None:
        return candidate
    references = [reference.name for reference in candidate.references[: candidate.tensor_at]]
    itself = is_made_from_itself(case.sources, variable_of(references))
    return replace(candidate, follows=None) if itself else candidate


_WRITTEN = (ObjectKind.FUNCTION, ObjectKind.FRAME, ObjectKind.GENERATOR, ObjectKind.CLASS)
"""Kinds of objects defined at their own line and reported with that of the reference from them."""


def find_lines(case: JudgeState) -> JudgeState:
    """Lines of the kept source that add to what the cuts name, and the edit that fixes it."""
    sources, found, unjudged = Sources(case.run.sources), [], []
    for finding in case.findings:
        try:
            found.append(with_lines(finding, sources, case.run))
        except Exception as error:  # noqa: BLE001 - source of a form that was not foreseen must not cost the verdict
            found.append(finding)
            why = because(UnjudgedReason.NO_SOURCE, error)
            unjudged.append(Unjudged(finding.rule, min(finding.ranks, default=0), why))
    return replace(
        case,
        findings=tuple(replace(finding, trace=_with_one_line_each(finding.trace)) for finding in found),
        unjudged=(*case.unjudged, *unjudged),
    )


def point_to_backward(case: RankCase) -> RankCase:
    """The function of leakscope's own backward that avoids a finding, if the rank is a stage of a pipeline."""
    of_torch = any(name.startswith(TYPES) for look in case.looks[-1:] for name in look.heap.strings)
    directions = () if of_torch or not case.findings else column(case.rank.operations, "direction")
    by_hand = any(direction in tuple(Direction) for direction in directions)
    return replace(case, findings=tuple(replace(finding, see=see(finding, by_hand)) for finding in case.findings))


def _with_one_line_each(trace: Sequence[Hop]) -> tuple[Hop, ...]:
    """A trace in which each function or class has one line, and what closes a cycle has that of its first place."""
    first: dict[int, str] = {}
    for hop in trace:
        if hop.index is not None and hop.where:
            first.setdefault(hop.index, hop.where)
    return tuple(
        replace(hop, where=first.get(hop.index, hop.where))
        if hop.index is not None and (hop.kind in _WRITTEN or not hop.reference)
        else hop
        for hop in trace
    )


def with_lines(finding: Finding, sources: Sources, run: Run | None = None) -> Finding:
    """The finding with lines at each reference of its cut; unchanged if the sources show none.

    It becomes a note if the source empties the container, unless the `run` shows otherwise.
    """
    if finding.cut is None:
        return finding
    found = [stores_for(finding, reference, sources) for reference in finding.cut.references]
    told = replace(finding, facts=_in_source(finding.facts, found, sources))
    told = told if run is None else while_it_fills(told, found, run, sources)
    suggestion = suggested(finding, found, sources) if told.settled_by is None else None
    references = tuple(
        _with_added(
            reference, tuple(dict.fromkeys(store.where for store in stores)), _puts_tensor(finding, reference, stores)
        )
        for reference, stores in zip(finding.cut.references, found, strict=True)
    )
    references = tuple(
        as_in_source(finding, reference, stores) for reference, stores in zip(references, found, strict=True)
    )
    trace = tuple(_at_its_line(hop, finding.cut.references, references) for hop in finding.trace)
    is_cut = finding.subject == finding.cut.written
    return replace(
        told,
        trace=trace,
        cut=replace(finding.cut, references=references),
        subject=references[0].written if is_cut else finding.subject,
        suggestion=suggestion,
    )


def _in_source(facts: Facts, found: Sequence[Sequence[Store]], sources: Sources) -> Facts:
    """The facts of a rule, corrected by the source: whether a graph is needed, and whether an exception is used beyond
    its text.
    """
    if isinstance(facts, GraphFacts) and not facts.of_gradient:
        needed = any(Uses(store, sources).differentiated() for stores in found for store in stores)
        return replace(facts, is_differentiated=needed)
    if isinstance(facts, FrameFacts) and facts.keeper == LocalsHolder.EXCEPTION:
        stored = [store for stores in found for store in stores]
        return replace(facts, is_text=bool(stored) and all(Uses(store, sources).as_text() for store in stored))
    return facts


def _at_its_line(hop: Hop, before: Sequence[CutReference], after: Sequence[CutReference]) -> Hop:
    """A hop; for a module's namespace, which shows the line of its reference, with the line of the cut."""
    if hop.kind != ObjectKind.NAMESPACE:
        return hop
    lines = {old.where: new.where for old, new in zip(before, after, strict=True)}
    return replace(hop, where=lines.get(hop.where, hop.where))


def _puts_tensor(finding: Finding, reference: CutReference, stores: Sequence[Store]) -> bool:
    """Whether the reference holds a tensor itself: the lines, not the last one of its name, put the tensor there.

    Those of a closure on a cycle are where its function is defined and stored.
    """
    if reference.trace is None or reference.trace + 1 >= len(finding.trace):
        return False
    held = finding.trace[reference.trace + 1].kind
    return held in (ObjectKind.TENSOR, ObjectKind.PARAMETER) and all(store.name != "def" for store in stores)


def _with_added(reference: CutReference, added_at: tuple[str, ...], puts_tensor: bool) -> CutReference:
    """The reference with the lines that add to it; the first replaces its own line if they put a tensor there and it
    had another line of that file.
    """
    files = {file_at(place) for place in added_at}
    moves = puts_tensor and reference.where not in added_at and file_at(reference.where) in files
    return replace(reference, added_at=added_at, where=added_at[0] if moves else reference.where)


def add_proofs(case: JudgeState) -> JudgeState:
    """Results of the cuts made in forked copies of the ranks."""
    return replace(case, findings=tuple(with_proof(finding, case.run) for finding in case.findings))


def with_proof(finding: Finding, run: Run) -> Finding:
    """The finding with the bytes its cut freed, or the reason why it was not tried."""
    if finding.cut is None:
        return finding
    answers = [rank.proved[finding.fingerprint] for rank in run.ranks if finding.fingerprint in rank.proved]
    answered = {rank.number for rank in run.ranks if finding.fingerprint in rank.proved}
    sizes = [a for a in answers if isinstance(a, int)]
    reasons = [a for a in answers if isinstance(a, str)]
    if sizes and finding.counted_bytes:
        return replace(finding, cut=replace(finding.cut, unproved=OnlyTensorsFreed(sum(sizes))))
    if sizes and not reasons and answered >= set(finding.ranks):
        return replace(finding, cut=replace(finding.cut, proved_bytes=sum(sizes)))
    return replace(finding, cut=replace(finding.cut, unproved=reasons[0])) if reasons else finding


def judged_alone(case: RankCase) -> JudgedRank:
    """Everything that the stages over ranks need of a judged one."""
    rank = case.rank
    named: dict[str, tuple[int, ...]] = {}
    for finding in case.findings:
        named[finding.fingerprint] = (*named.get(finding.fingerprint, ()), *finding.storages.get(rank.number, ()))
    return JudgedRank(
        number=rank.number,
        findings=case.findings,
        unjudged=case.unjudged,
        open_cases=case.open_cases,
        account=account_of(
            case.looks,
            case.balances,
            case.groups,
            [(one.candidate, one.became) for one in case.of(Source.TENSORS)],
            [(one.candidate, one.became) for one in case.of(Source.ARRAYS, Source.OBJECTS)],
            named,
        ),
        summary=summary(rank, [one.candidate for one in case.of(Source.TENSORS) if one.finding.is_leak]),
        held=held_at_last(rank),
        garbage=garbage_of(rank),
        listed=alive_at_end(rank),
        shortage=shortage_of(rank),
        device_failures=device_failures(rank),
        drag=drag(rank),
        loaders=loaders_of(rank),
        also_grows=also_grows(rank, case.warmup, case.thresholds.counted),
    )


def add_memory_of_rank(case: RankCase) -> RankCase:
    """Findings of the allocator, libraries and the peak of a watched step, for one rank."""
    kept = kept_by_library(case.rank, case.looks, case.findings, case.thresholds)
    return replace(
        case,
        findings=(
            *(_timed(finding, case) for finding in case.findings),
            *beyond_contexts(case.gaps, case.findings),
            *case.scattered,
            *allocator_findings(case.rank, case.looks),
            *kept.values(),
            *late_release_findings(case.rank, case.thresholds.counted, kept),
            *idle_findings(case.rank, case.thresholds.counted, case.findings),
            *worker_growth_findings(case.rank, case.thresholds.counted),
            *copies_findings(case.rank, case.thresholds.counted),
        ),
        unjudged=(*case.unjudged, *late_release_unjudged(case.rank)),
    )


def _timed(finding: Finding, case: RankCase) -> Finding:
    """A finding of hooks with the increase of the step time."""
    if not isinstance(finding.facts, HookFacts):
        return finding
    return replace(finding, facts=replace(finding.facts, step_seconds=step_times(case.rank, case.warmup)))


def gather(case: JudgeState) -> JudgeState:
    """The judged ranks, and facts about the operations between them."""
    first = min((rank.number for rank in case.run.ranks), default=0)
    unloaded = (Unjudged(broken.name, first, broken.why) for broken in rules_of_others()[1])
    of_ranks = [finding for rank in case.ranks for finding in rank.findings]
    return replace(
        case,
        findings=(*of_ranks, *dropped_work_findings(case.run), *context_findings(case.run)),
        summaries={rank.number: rank.summary for rank in case.ranks},
        unjudged=(*(problem for rank in case.ranks for problem in rank.unjudged), *unloaded),
    )


def compare_ranks(case: JudgeState) -> JudgeState:
    """What one rank keeps and its peers do not."""
    held = {rank.number: rank.held for rank in case.ranks}
    skewed = skew_findings(case.run, case.summaries, case.findings, held)
    return replace(case, findings=(*case.findings, *skewed))


def merge_by_cut(case: RankCase) -> RankCase:
    """Merge within a rank: what one cut frees is one finding, arrays with their tensors."""
    tensors, arrays = case.of(Source.TENSORS, Source.NODES), case.of(Source.ARRAYS, Source.OBJECTS)
    apart = [one for one in tensors if one.is_apart]
    found = [one.finding for one in apart]
    alike = _with_hooks_of_one(with_one_cut(found), apart)
    findings = [_merged(found, places) for places in alike]
    part_of = {
        found[place].fingerprint: finding.fingerprint
        for finding, places in zip(findings, alike, strict=True)
        for place in places
    }
    others = [one.finding for one in arrays]
    names = [""] * len(arrays)
    for places in _with_hooks_of_one([(place,) for place in range(len(arrays))], arrays):
        before, findings = findings, beside_tensors(findings, _merged(others, places))
        name = next(new.fingerprint for new, old in zip_longest(findings, before) if new is not old)
        for place in places:
            names[place] = name
    # grad nodes that are told with tensors have become part of a finding where they have the same holder
    judged = (
        *(replace(one, became=part_of.get(one.finding.fingerprint, "")) for one in tensors),
        *(replace(one, became=name) for one, name in zip(arrays, names, strict=True)),
    )
    open_cases = tuple(OpenCase(one.became, one.grew) for one in judged if one.grew and one.became)
    return replace(case, judged=judged, findings=tuple(findings), open_cases=open_cases)


def _with_hooks_of_one(alike: Sequence[tuple[int, ...]], judged: Sequence[JudgedCandidate]) -> list[tuple[int, ...]]:
    """Positions of findings that are one; those of hooks of one of several modules join those of the others."""
    joined = [list(places) for places in alike]
    of_hooks = [places for places in joined if judged[places[0]].finding.rule == RuleName.HOOK_PILEUP]
    for places, others in permutations(of_hooks, 2):
        if not (places and others):
            continue
        one, other = judged[places[0]], judged[others[0]]
        same = (one.finding.severity, one.finding.noun) == (other.finding.severity, other.finding.noun)
        if same and is_of_one_like(one.candidate, other.candidate):
            others.extend(places)
            places.clear()
    return [tuple(places) for places in joined if places]


def _merged(findings: Sequence[Finding], places: Sequence[int]) -> Finding:
    """Findings joined as one; among equal kinds the first provides the words."""
    first = findings[places[0]]
    return merge_findings(
        [findings[place] for place in places], lambda finding: (finding is not first, severity_then_size(finding))
    )


def name_upstream(case: JudgeState) -> JudgeState:
    """Leaks known to a library's developers are the library's."""
    return replace(case, findings=tuple(map(named_upstream, case.findings)))


def merge_contexts(case: JudgeState) -> JudgeState:
    """Merge over what open contexts keep: it is one leak on each rank."""
    return replace(case, findings=tuple(with_contexts(case.findings, case.run)))


def merge_ranks(case: JudgeState) -> JudgeState:
    """Merge over the ranks: the same leak on several of them is one finding."""
    return replace(case, findings=tuple(merge_by_fingerprint(case.findings)))


def balance_looks(case: RankCase) -> RankCase:
    """What was counted at each snapshot, and how much of it is attributed."""
    return replace(case, balances=balances_of(case.rank, case.looks, case.warmup))


def apply_library_policy(case: JudgeState) -> JudgeState:
    """With `ignore_library`, leaks of libraries are notes."""
    if not case.ignore_library:
        return case
    of_library = [f.origin == Origin.LIBRARY and f.severity == Severity.LEAK for f in case.findings]
    noted = (
        replace(finding, severity=Severity.NOTE) if library else finding
        for finding, library in zip(case.findings, of_library, strict=True)
    )
    return replace(case, findings=tuple(noted))


def apply_suppressions(case: JudgeState) -> JudgeState:
    """Mark findings that are suppressed or in the baseline."""
    said = (replace(finding, suppressed_by=suppression_of(finding, case.known)) for finding in case.findings)
    return replace(case, findings=tuple(said))


def keep_ledger(case: JudgeState) -> JudgeState:
    """Breakdown: the growth of each rank between its snapshots, by line."""
    return replace(case, ledgers={rank.number: _ledger(case.findings, rank) for rank in case.ranks})


def _ledger(findings: Sequence[Finding], rank: JudgedRank) -> tuple[LedgerInterval, ...]:
    mine = [finding for finding in findings if rank.number in finding.ranks]
    scattered = next((f for f in mine if f.fingerprint == SCATTERED), None)
    unknown = next((f for f in mine if f.fingerprint == GAP and f.severity == Severity.LEAK), None)
    graphs = next((f for f in mine if f.keeps_graphs and f.severity == Severity.LEAK), None)
    by_name = {finding.fingerprint: finding for finding in reversed(mine)}  # the first of each name
    lines = LinesOfFindings(
        of_groups=[_line(_found(group, rank.number, mine, by_name)) for group in rank.account.groups],
        of_objects=[_line(by_name.get(fingerprint)) for fingerprint, _ in rank.account.objects],
        graphs=_line(graphs),
        unknown=_line(unknown),
        scattered=_line(scattered),
    )
    return ledger_of(rank.account, lines)


def _found(group: GroupLevels, rank: int, mine: Sequence[Finding], by_name: Mapping[str, Finding]) -> Finding | None:
    """The finding about a group: that of its candidate, else one of a library that keeps most of it."""
    for fingerprint, storages in reversed(group.became):
        if fingerprint in by_name:
            return by_name[fingerprint]
        # memory of open contexts has its own line
        contexts = (f for f in mine if f.rule == RuleName.DIST_AUTOGRAD_CONTEXT)
        same = next((f for f in contexts if set(storages) <= set(f.storages.get(rank, ()))), None)
        if same is not None:
            return same
    return next((f for f in mine if f.fingerprint in group.kept_by and isinstance(f.facts, RetentionFacts)), None)


def _line(finding: Finding | None) -> Line | None:
    """The line of a finding, without its bytes; None for none."""
    if finding is None:
        return None
    holder = finding.cut.written if finding.cut is not None and finding.cut.written else finding.subject
    line = Line(_kind(finding), 0, finding.fingerprint, holder)
    if line.kind == LineKind.RESTED:
        return Line(LineKind.RESTED, 0, rested=RestedKind.OTHER)
    return Line(LineKind.GARBAGE, 0) if line.kind == LineKind.GARBAGE else line


def _kind(finding: Finding) -> LineKind:
    if finding.suppressed_by is not None:
        return LineKind.APART
    if finding.origin == Origin.LIBRARY:
        return LineKind.LIBRARY
    if finding.severity == Severity.LEAK:
        return LineKind.LEAKS
    if isinstance(finding.settled_by, Plateaued):
        return LineKind.RESTED
    if isinstance(finding.settled_by, FollowsInput):
        return LineKind.FOLLOWS
    if isinstance(finding.settled_by, (Bounded, EmptiedLater)) or finding.facts.is_bounded:
        return LineKind.BOUND
    return LineKind.GARBAGE if finding.freed_by == FreedBy.GC else LineKind.SLOW


def give_verdict(case: JudgeState) -> JudgeState:
    """Verdict: what is shown, what is listed separately, and whether it is a leak."""
    run = case.run
    findings = [as_known(f, run) for f in case.findings]
    apart = tuple(f for f in findings if f.suppressed_by is not None)
    shown = tuple(f for f in findings if f.suppressed_by is None)
    written = {found.fingerprint: found.written for rank in case.ranks for found in rank.open_cases}
    open_cases = [written[f.fingerprint] for f in shown if f.fingerprint in written]
    garbage = sum(rank.garbage for rank in case.ranks)
    verdict, why = verdict_of(run, shown, apart, case.unjudged, open_cases, case.ledgers, garbage)
    verdict, why = while_filling(verdict, why, shown)
    over = avoidable_over(shown, case.fail_on_avoidable)
    judged = Findings(
        verdict=verdict,
        why=why,
        exit_status=0,
        avoidable_over=over,
        fail_on_inconclusive=case.fail_on_inconclusive,
        findings=shown,
        suppressed=apart,
        unused=unused(case.known, findings) if verdict != Verdict.INCONCLUSIVE else (),
        expired=case.known.expired,
        unjudged=case.unjudged,
        ranks={
            number: replace(case.summaries[number], verdict=of_rank)
            for number, of_rank in verdicts_of_ranks(run, verdict, shown).items()
            if number in case.summaries
        },
        ledgers=case.ledgers,
        listed=tuple(listed for rank in case.ranks for listed in rank.listed),
        out_of_memory=(
            *out_of_memory([rank.shortage for rank in case.ranks], run.device),
            *(failure for rank in case.ranks for failure in rank.device_failures),
        ),
        gc_advice=gc_advice(run, shown),
        loaders={rank.number: rank.loaders for rank in case.ranks if rank.loaders},
        drag=tuple(fact for rank in case.ranks for fact in rank.drag),
        also_grows=tuple(fact for rank in case.ranks for fact in rank.also_grows),
    )
    status = NOT_JUDGED if judged.unjudged_fails and over is None else case.leak_exit_code
    return replace(case, judged=replace(judged, exit_status=status if judged.failed else 0))


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
    told = replace(
        why,
        reason=Reason.FILLING,
        detail=most.cut.written if most.cut is not None else most.subject,
        bytes_per_step=most.bytes_per_step,
        emptied=emptied,
    )
    return (Verdict.CLEAN if emptied.is_decided else Verdict.INCONCLUSIVE), told


def as_known(finding: Finding, run: Run) -> Finding:
    """A finding without the bytes that cuts would free, if a snapshot did not show all C++ references."""
    if not any(look.hides for rank in run.ranks if rank.number in finding.ranks for look in rank.looks):
        return finding
    cut = finding.cut and replace(finding.cut, is_told=False)
    return replace(finding, cut=cut, trace=tuple(replace(hop, frees_bytes=None) for hop in finding.trace))


def avoidable_over(shown: Sequence[Finding], limit: int | None) -> int | None:
    """Avoidable bytes of all ranks if above the limit; each storage is in one finding only."""
    total = sum(f.retained_bytes for f in shown if f.severity == Severity.AVOIDABLE)
    return total if limit is not None and total > limit else None


LEAKS_FOUND = 23
"""Exit status if leaks are found; seldom used by scripts and shells."""

STAGES_OF_RANK: tuple[RankStage, ...] = (
    take_looks,
    group_looks,
    balance_looks,
    judge_candidates,
    judge_objects,
    explain_gaps,
    merge_by_cut,
    add_memory_of_rank,
    point_to_backward,
)
"""Series, groups, candidates, rules: the stages that judge one rank by itself."""
STAGES: tuple[Stage, ...] = (
    gather,
    name_upstream,
    merge_contexts,
    merge_ranks,
    find_lines,
    compare_ranks,
    add_proofs,
    apply_library_policy,
    apply_suppressions,
    keep_ledger,
    give_verdict,
)
"""Merge, breakdown, verdict: the stages over all ranks, which do not read their heaps."""


def judge(
    run: Run,
    *,
    suppress: Collection[str] = (),
    baseline: Collection[str] = (),
    leak_exit_code: int = LEAKS_FOUND,
    ignore_library: bool = False,
    fail_on_avoidable: int | None = None,
    fail_on_inconclusive: bool = False,
) -> Findings:
    """The verdict of a run, and each distinct leak in it; `leakscope.judge` says what the arguments are."""
    return judge_together(
        run,
        [judge_rank(run, rank) for rank in run.ranks],
        suppress=suppress,
        baseline=baseline,
        leak_exit_code=leak_exit_code,
        ignore_library=ignore_library,
        fail_on_avoidable=fail_on_avoidable,
        fail_on_inconclusive=fail_on_inconclusive,
    )


def judge_rank(run: Run, rank: Rank) -> JudgedRank:
    """Judge one rank by itself, given what holds for the whole run."""
    case = RankCase(rank, run.warmup_of(rank), Thresholds.of(run, rank), run.sources)
    for stage in STAGES_OF_RANK:
        case = stage(case)
    return judged_alone(case)


def judge_together(
    run: Run,
    ranks: Iterable[JudgedRank],
    *,
    suppress: Collection[str] = (),
    baseline: Collection[str] = (),
    leak_exit_code: int = LEAKS_FOUND,
    ignore_library: bool = False,
    fail_on_avoidable: int | None = None,
    fail_on_inconclusive: bool = False,
) -> Findings:
    """As `judge`, for a run whose ranks have been judged by themselves, in order."""
    known = known_of(run, tuple(map(Suppression, (*suppress, *baseline))))
    case = JudgeState(run, known, leak_exit_code, tuple(ranks), ignore_library, fail_on_avoidable, fail_on_inconclusive)
    for stage in STAGES:
        case = stage(case)
    assert case.judged is not None
    return case.judged
