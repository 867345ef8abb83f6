"""What do the operations tell beside the heap? Comm buffers that something keeps, Works dropped too early."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from leakscope.findings.facts import BufferKind, CommBuffers, Facts, OpenContextsFacts
from leakscope.findings.grouping.candidate import Candidate
from leakscope.findings.kinds import FreedBy, HopStatus, RuleName, Severity
from leakscope.findings.merge import merge_findings
from leakscope.findings.model import Cut, CutReference, Finding, Hop, Sighting
from leakscope.findings.naming.place import place_of
from leakscope.findings.naming.trace import fingerprint
from leakscope.findings.why import HopReason
from leakscope.graph.model import CommUse, HeapGraph, ObjectKind, ReferenceKind
from leakscope.record.kinds import Direction
from leakscope.record.model import Run
from leakscope.record.read.operations import column
from leakscope.record.rows.comm import CommOperation, ContextsAtStep

CONTEXT = "dist_autograd context"
"""Direction of a crossing that is a gradient in a distributed-autograd context."""
CUT = "the open context"
_BETWEEN_TWO = (Direction.SEND, Direction.RECV)
CONTEXT_TYPE = "DistAutogradContext"
_BARRIERS = ("barrier", "monitored_barrier")
"""Collectives without a buffer: nothing is lost when their Work is dropped."""
_LINES_TO_JUDGE = 3
"""Lines of `contexts.jsonl`, each with more contexts open than the one before, from which they are never closed."""
_SIGHTINGS_A_RANK = 20
"""The latest steps at which a rank dropped Works; earlier ones are in the count alone."""


@dataclass(frozen=True)
class DroppedFacts(Facts):
    """Works of one line that died before anybody waited for them."""

    count: int
    direction: str
    issued_at: str


@dataclass(frozen=True)
class OpenPassesFacts(Facts):
    """Distributed backward passes that outlive their step."""

    SUMMED = ("count",)

    count: int


@dataclass(frozen=True)
class EmptyContextsFacts(Facts):
    """Open contexts that keep no gradients."""

    SUMMED = ("count",)

    count: int
    opened_at: tuple[str, ...]
    """Lines that opened them."""


def buffers_of(graph: HeapGraph, storages: Iterable[int]) -> dict[int, CommUse]:
    """Those of the storages that were sent, received or reduced."""
    return {s: graph.comm_uses[s] for s in storages if s in graph.comm_uses}


def comm_buffers(graph: HeapGraph, storages: Iterable[int]) -> CommBuffers:
    """Those of the storages that were sent, received or reduced, by where; the commonest kind first."""
    buffers = buffers_of(graph, storages)
    kinds = Counter(_kind(crossing) for crossing in buffers.values())
    return CommBuffers(
        len(buffers),
        sum(int(graph.bytes[s]) for s in buffers),
        dead=sum(crossing.tensor_dead for crossing in buffers.values()),
        kinds=tuple(BufferKind(count, *kind) for kind, count in kinds.most_common()),
        in_graph=any(_is_in_graph(graph, storage) for storage in buffers),
    )


def _is_in_graph(graph: HeapGraph, storage: int) -> bool:
    """Whether a tensor over it has a grad node or a gradient, or is held by a node."""
    tensors = [int(graph.holder[r]) for r in graph.into(storage)]
    out = (graph.reference(int(r)) for tensor in tensors for r in graph.out_of(tensor))
    into = (graph.reference(int(r)) for tensor in tensors for r in graph.into(tensor))
    return any(r.kind == ReferenceKind.GRAD_GRAPH or r.name == ".grad" for r in out) or any(
        graph.object(r.holder).kind == ObjectKind.GRAD_NODE for r in into
    )


def _kind(crossing: CommUse) -> tuple[str, int | None, int, str]:
    """What tells one kind of crossing from another: a collective has no peer, a gradient of a context no tag."""
    between_two = crossing.direction in _BETWEEN_TWO
    peer = crossing.peer if between_two or crossing.direction == CONTEXT else None
    return crossing.direction, peer, (crossing.tag or 0) if between_two else 0, crossing.issued_at


def crossed_count(graph: HeapGraph, storages: Iterable[int]) -> int:
    """How many of the storages were sent or received."""
    return sum(use.direction in _BETWEEN_TWO for use in buffers_of(graph, storages).values())


def p2p_buffers(candidate: Candidate) -> CommBuffers | None:
    """The sent and received buffers that a holder of another kind keeps too; None where it keeps none."""
    buffers = buffers_of(candidate.graph, candidate.group.storages)
    crossed = [s for s, crossing in buffers.items() if crossing.direction in _BETWEEN_TWO]
    return comm_buffers(candidate.graph, crossed) if crossed else None


def dropped_work_findings(run: Run) -> list[Finding]:
    """Notes on Works that were dropped before anybody waited for them; what they kept alive is told from the heap."""
    dropped: dict[tuple[str, str], list[tuple[int, CommOperation]]] = defaultdict(list)
    for rank in run.ranks:
        for place, is_dropped in enumerate(column(rank.operations, "dropped")):
            operation = rank.operations[place] if is_dropped else None
            if operation is not None and operation.direction not in _BARRIERS:
                dropped[operation.direction, operation.issued_at].append((rank.number, operation))
    return [_dropped(direction, where, operations) for (direction, where), operations in sorted(dropped.items())]


def _dropped(direction: str, where: str, operations: Sequence[tuple[int, CommOperation]]) -> Finding:
    return Finding(
        rule=RuleName.P2P_BUFFER,
        facts=DroppedFacts(len(operations), direction, where),
        fingerprint=fingerprint(("p2p-buffer", "dropped", direction, _function(where))),
        severity=Severity.NOTE,
        freed_by=FreedBy.PROGRAM,
        retained_bytes=0,
        bytes_per_step=0.0,
        trace=(),
        cut=None,
        sightings=tuple(_sightings(operations)),
        count=len(operations),
    )


def _sightings(operations: Sequence[tuple[int, CommOperation]]) -> list[Sighting]:
    seen: dict[tuple[int, int], int] = defaultdict(int)
    for rank, operation in operations:
        seen[rank, operation.step] += operation.bytes
    of_rank: dict[int, list[Sighting]] = defaultdict(list)
    for (rank, step), size in sorted(seen.items()):
        of_rank[rank].append(Sighting(rank, step, size))
    return [sighting for sightings in of_rank.values() for sighting in sightings[-_SIGHTINGS_A_RANK:]]


def context_findings(run: Run) -> list[Finding]:
    """Notes on contexts and backward passes that stay open without keeping memory that a look could see."""
    findings = []
    for rank in run.ranks:
        if not rank.contexts:
            continue
        last = rank.contexts[-1]
        if last.backward_passes and len(rank.contexts) > 1 and rank.contexts[-2].backward_passes:
            findings.append(_open_passes(rank.number, last))
        if last.open and not last.bytes and _never_closed(rank.contexts):
            findings.append(_empty_contexts(rank.number, last))
    return findings


def _never_closed(rows: Sequence[ContextsAtStep]) -> bool:
    """More contexts open at each of the last lines."""
    counts = [row.open for row in rows[-_LINES_TO_JUDGE:]]
    return len(counts) == _LINES_TO_JUDGE and all(before < after for before, after in pairwise(counts))


def _open_passes(rank: int, row: ContextsAtStep) -> Finding:
    return _context_note("backward", rank, row, OpenPassesFacts(row.backward_passes))


def _empty_contexts(rank: int, row: ContextsAtStep) -> Finding:
    where = dict.fromkeys(context.opened_at for context in row.contexts if context.opened_at)
    return _context_note("empty", rank, row, EmptyContextsFacts(row.open, tuple(where)))


def _context_note(what: str, rank: int, row: ContextsAtStep, facts: Facts) -> Finding:
    return Finding(
        rule=RuleName.DIST_AUTOGRAD_CONTEXT,
        facts=facts,
        fingerprint=fingerprint(("dist-autograd-context", what)),
        severity=Severity.NOTE,
        freed_by=FreedBy.PROGRAM,
        retained_bytes=row.bytes,
        bytes_per_step=0.0,
        trace=(),
        cut=None,
        sightings=(Sighting(rank, row.step, row.bytes),),
        count=row.open,
    )


def _function(where: str) -> str:
    """The function of a place; all of it where it names none."""
    place = place_of(where)
    return where if place is None else place.function or where


def with_contexts(findings: Sequence[Finding], run: Run) -> list[Finding]:
    """All that open contexts keep, on every rank and by whatever reference, told as one leak with the place that
    opened them.
    """
    mine = [f for f in findings if f.rule == RuleName.DIST_AUTOGRAD_CONTEXT and f.trace]
    # the memory of grad nodes is estimated, and next to nothing beside the gradients that a context keeps
    told = [f for f in mine if not f.keeps_graphs] or mine
    if not mine:
        return list(findings)
    places, workers = _opened(run)
    functions = tuple(dict.fromkeys(_function(place) for place in places))
    together = [
        merge_findings([f for f in told if rank in f.storages])
        for rank in sorted({r for f in told for r in f.storages})
    ]
    merged = []
    for finding in together:
        # no single reference: the container lets go of all when the context is left
        opened = place_of(places[0]) if places else None
        where = "" if opened is None else opened.at
        cut = Cut((CutReference(CUT, where),), finding.retained_bytes)
        name = fingerprint(("dist-autograd-context", *functions))
        assert isinstance(finding.facts, OpenContextsFacts)
        facts = replace(finding.facts, opened_at=tuple(places), workers=tuple(workers))
        trace = tuple(map(_left_open, finding.trace))
        merged.append(replace(finding, fingerprint=name, cut=cut, facts=facts, trace=trace))
    return [f for f in findings if f not in mine] + merged


def _left_open(hop: Hop) -> Hop:
    """A hop; of a context that it is what leaks, of which no reference is to be cut."""
    if not hop.name.endswith(CONTEXT_TYPE):
        return hop
    return replace(hop, status=HopStatus.LEAKED, reason=HopReason.LEFT_OPEN, frees_bytes=None)


def _opened(run: Run) -> tuple[list[str], list[int]]:
    """Lines that opened contexts still open, and the ids of the workers that took part."""
    places: dict[str, None] = {}
    workers: set[int] = set()
    for rank in run.ranks:
        for context in (context for row in rank.contexts for context in row.contexts):
            workers.update(context.workers)
            if context.opened_at:
                places[context.opened_at] = None
    return list(places), sorted(workers)


def beyond_contexts(gaps: Sequence[Finding], findings: Sequence[Finding]) -> list[Finding]:
    """The gaps that open contexts do not account for: a context also keeps messages that nobody can
    count.
    """
    rate = sum(f.bytes_per_step for f in findings if f.rule == RuleName.DIST_AUTOGRAD_CONTEXT)
    return [gap for gap in gaps if gap.bytes_per_step > rate / 2]
