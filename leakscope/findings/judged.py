"""A candidate with what is decided about it, from which its finding is built."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from leakscope.findings.candidates import Candidate
from leakscope.findings.cut import cycle_of
from leakscope.findings.facts import CommBuffers, Facts, FreedBy, Origin, Severity, TooLarge
from leakscope.findings.model import Cut, CycleReference, Finding, HeapId, Hop, SettledBy, Sighting, Unjudged
from leakscope.graph.model import IMMORTAL

_MAX_PLACES = 6
"""Maximum allocation sites named by a finding."""


class Source(StrEnum):
    """What the candidates of one heap graph are made of."""

    TENSORS = "tensors"
    NODES = "autograd nodes"
    """In a graph of their own, which begins as that of the snapshot."""
    ARRAYS = "arrays"
    """Numpy arrays and their like."""
    OBJECTS = "objects"
    """Other objects that are no tensors."""


@dataclass(eq=False)
class JudgedCandidate:
    """A candidate and what the rules make of it.

    `judge.judge_rank` changes it in this order, and `finding` freezes the result:

    1. `merge.decide_severities` makes it a note if something contradicts a leak or too few snapshots show one;
    2. `retained_graph.report_with_tensors` attaches autograd nodes to the candidate of their tensors;
    3. `judge._merge_by_cut` joins candidates that one cut frees, and sets `reported_in`, which the breakdown reads.
    """

    candidate: Candidate
    rule: str
    facts: Facts
    severity: Severity
    """By size alone until `decide_severity`."""
    trace: tuple[Hop, ...]
    cut: Cut | None
    subject: str
    origin: Origin
    library: str
    least_per_step: int
    cut_in: frozenset[tuple[HeapId, int]]
    source: Source = Source.TENSORS
    settled_by: SettledBy | None = None
    too_large: TooLarge | None = None
    comm_buffers: CommBuffers | None = None
    noun: str = "tensor"
    on_accelerator: bool = False
    """Whether its autograd nodes belong to tensors of an accelerator, so that they alone are on the host."""
    earlier_bytes: Mapping[int, int] = field(default_factory=dict)
    """Bytes that its containers had when first inspected, by step: not part of the growth, but freed by a cut."""
    nodes: list[JudgedCandidate] = field(default_factory=list)
    """The autograd nodes that are reported with its tensors."""
    problems: tuple[Unjudged, ...] = ()
    """Rules of other packages that failed."""
    is_open: bool = False
    """Whether it would be a leak if more snapshots had seen it grow."""
    is_reported: bool = True
    """False for autograd nodes that are reported with tensors, or not at all."""
    reported_in: str = ""
    """Fingerprint of the finding that it has become part of."""

    @property
    def fingerprint(self) -> str:
        """The fingerprint of its key."""
        return self.candidate.group.key.fingerprint

    @property
    def collections(self) -> int:
        """Full collections that free it; 0 if none does."""
        freed = self.candidate.group.freed
        return freed if freed > 0 else self.candidate.collected

    @property
    def freed_by(self) -> FreedBy:
        """What frees the memory."""
        if self.candidate.group.freed == IMMORTAL:
            return FreedBy.NEVER
        return FreedBy.GC if self.collections else FreedBy.PROGRAM

    @property
    def retained_bytes(self) -> int:
        """Bytes at the described snapshot."""
        own = self.candidate.group.bytes + self.earlier_bytes.get(self.candidate.step, 0)
        return own + sum(nodes.retained_bytes for nodes in self.nodes)

    @property
    def bytes_per_step(self) -> float:
        """Bytes per step."""
        return self.candidate.per_step + sum(nodes.bytes_per_step for nodes in self.nodes)

    @property
    def counted_bytes(self) -> int:
        """The part of the bytes that the allocator counted beside the storages."""
        own = self.candidate.group.bytes if self.source == Source.NODES else 0
        return own + sum(nodes.counted_bytes for nodes in self.nodes)

    @property
    def host_bytes(self) -> int:
        """The part of the bytes in host memory, in a run with an accelerator."""
        graph, storages = self.candidate.graph, self.candidate.group.storages
        own = sum(int(graph.bytes[s]) for s in storages if s not in graph.device) if graph.device else 0
        own = self.candidate.group.bytes if self.on_accelerator else own
        return own + sum(nodes.host_bytes for nodes in self.nodes)

    @property
    def cycle(self) -> tuple[CycleReference, ...]:
        """Its smallest cycle."""
        return cycle_of(self.candidate)

    @property
    def sightings(self) -> tuple[Sighting, ...]:
        """Its bytes at each snapshot that has it."""
        seen: Counter[tuple[int, int]] = Counter()
        for step, size in zip(self.candidate.series.steps, self.candidate.series.bytes, strict=True):
            if size:
                seen[self.candidate.rank, step] += size + self.earlier_bytes.get(step, 0)
        for sighting in (sighting for nodes in self.nodes for sighting in nodes.sightings):
            seen[sighting.rank, sighting.step] += sighting.bytes
        return tuple(Sighting(rank, step, size) for (rank, step), size in sorted(seen.items()))

    def decide_severity(self) -> None:
        """Make it a note if something contradicts a leak, or too few snapshots show one."""
        settled = self.candidate.settled_by is not None
        self.is_open = self.severity == Severity.LEAK and not (self.candidate.is_certain or settled)
        if settled or not self.candidate.is_certain:
            self.severity = Severity.NOTE

    @property
    def finding(self) -> Finding:
        """The finding about it."""
        candidate, of_tensors = self.candidate, self.source == Source.TENSORS
        made = candidate.made_at
        return Finding(
            rule=self.rule,
            facts=self.facts,
            fingerprint=self.fingerprint,
            severity=self.severity,
            freed_by=self.freed_by,
            retained_bytes=self.retained_bytes,
            bytes_per_step=self.bytes_per_step,
            trace=self.trace,
            cut=self.cut,
            least_per_step=self.least_per_step,
            origin=self.origin,
            library=self.library,
            collections=self.collections or None,
            made_at=tuple(sorted(made, key=lambda place: (-made[place], place)))[:_MAX_PLACES],
            sightings=self.sightings,
            cycle=self.cycle,
            count=len(candidate.group.storages) if of_tensors else 0,
            host_bytes=self.host_bytes,
            counted_bytes=self.counted_bytes,
            subject=self.subject,
            noun=self.noun,
            settled_by=self.settled_by,
            too_large=self.too_large,
            keeps_graphs=bool(self.nodes) or self.source == Source.NODES,
            comm_buffers=self.comm_buffers,
            storages={candidate.rank: candidate.group.storages if of_tensors else ()},
            cut_in=self.cut_in,
        )
