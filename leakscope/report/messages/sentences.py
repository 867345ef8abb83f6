"""A finding's title and its advice, made of the facts that its rule has of it; what is told of a run, made of its
facts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from leakscope.findings.breakdown import ScatteredFacts, UnattributedFacts
from leakscope.findings.comm import DroppedFacts, EmptyContextsFacts, OpenPassesFacts
from leakscope.findings.device import (
    CaughtFacts,
    NativeBlocksFacts,
    OutsideFacts,
    PendingFacts,
    ReservedFacts,
    RetriesFacts,
)
from leakscope.findings.facts import OpenContextsFacts, RunFacts, Said
from leakscope.findings.gc_advice import (
    CollectedAtEnd,
    CutsInstead,
    FreezeSaves,
    FullEachStep,
    OwnCollections,
    YoungSuffices,
)
from leakscope.findings.known_leaks import saying_of
from leakscope.findings.library import LibraryDragFacts, RetentionFacts
from leakscope.findings.model import Finding
from leakscope.findings.oom import Alive, AllocationFailed, CameNear, CaughtUnseen, DeviceFailed, NoRoomToLook, RoomThen
from leakscope.findings.peak import IdleAtPeak, LagUseDrag, LateReleaseFacts, OthersFacts, UntouchedFacts
from leakscope.findings.process_counts import AlsoGrows
from leakscope.findings.ranks import RankSkewFacts
from leakscope.findings.rules.frame_hold import CallsFacts, FrameFacts
from leakscope.findings.rules.hook_pileup import HookFacts
from leakscope.findings.rules.immortal_cycle import ImmortalFacts
from leakscope.findings.rules.native_hold import NativeFacts
from leakscope.findings.rules.object_growth import ObjectFacts
from leakscope.findings.rules.p2p_buffer import BufferFacts
from leakscope.findings.rules.retained_graph import GraphFacts
from leakscope.findings.rules.step_growth import GrowthFacts
from leakscope.findings.rules.tensor_cycle import CycleFacts
from leakscope.findings.rules.view_hold import ViewFacts
from leakscope.findings.workers import CopiesFacts, WorkerGrowthFacts
from leakscope.report.messages import comm, cycles, growth, memory, sections
from leakscope.report.messages import growth as messages_growth
from leakscope.report.messages import memory as messages_memory
from leakscope.run.model import Run
from leakscope.units import bytes_text, like_text, listed_numbers, one_of_each

Sentence = Callable[[Finding, Any], str]

SENTENCES: Mapping[type, tuple[Sentence, Sentence]] = {
    Said: (lambda _, said: str(said.title), lambda _, said: str(said.advice)),
    ImmortalFacts: (cycles.immortal_title, cycles.immortal_advice),
    CycleFacts: (cycles.cycle_title, cycles.cycle_advice),
    OpenContextsFacts: (comm.contexts_title, comm.contexts_advice),
    BufferFacts: (comm.buffer_title, comm.buffer_advice),
    HookFacts: (messages_growth.hook_title, messages_growth.hook_advice),
    FrameFacts: (messages_growth.frame_title, messages_growth.frame_advice),
    CallsFacts: (messages_growth.calls_title, messages_growth.calls_advice),
    GraphFacts: (messages_growth.graph_title, messages_growth.graph_advice),
    ViewFacts: (messages_growth.view_title, messages_growth.view_advice),
    NativeFacts: (messages_growth.native_title, messages_growth.native_advice),
    RetentionFacts: (messages_growth.retention_title, messages_growth.retention_advice),
    LibraryDragFacts: (messages_growth.drag_title, messages_growth.drag_advice),
    GrowthFacts: (growth.growth_title, growth.growth_advice),
    ObjectFacts: (messages_growth.objects_title, messages_growth.objects_advice),
    RankSkewFacts: (memory.skew_title, memory.skew_advice),
    LateReleaseFacts: (messages_memory.late_release_title, messages_memory.late_release_advice),
    UntouchedFacts: (messages_memory.untouched_title, messages_memory.untouched_advice),
    OthersFacts: (messages_memory.others_title, messages_memory.others_advice),
    DroppedFacts: (comm.dropped_title, comm.dropped_advice),
    OpenPassesFacts: (comm.open_passes_title, comm.open_passes_advice),
    EmptyContextsFacts: (comm.empty_contexts_title, comm.empty_contexts_advice),
    UnattributedFacts: (memory.unattributed_title, memory.unattributed_advice),
    ScatteredFacts: (growth.scattered_title, growth.scattered_advice),
    NativeBlocksFacts: (memory.native_blocks_title, memory.native_blocks_advice),
    ReservedFacts: (memory.reserved_title, memory.reserved_advice),
    PendingFacts: (memory.pending_title, memory.pending_advice),
    OutsideFacts: (memory.outside_title, memory.outside_advice),
    RetriesFacts: (memory.retries_title, memory.retries_advice),
    WorkerGrowthFacts: (sections.worker_growth_title, sections.worker_growth_advice),
    CopiesFacts: (sections.copies_title, sections.copies_advice),
    CaughtFacts: (memory.caught_title, memory.caught_advice),
}
"""Facts to the functions that make a title and an advice of them."""
OF_RUN: Mapping[type, Callable[[Any], str]] = {
    AllocationFailed: memory.failed_text,
    NoRoomToLook: memory.no_room_text,
    CameNear: memory.near_text,
    CaughtUnseen: memory.caught_unseen_text,
    DeviceFailed: memory.device_failed_text,
    RoomThen: memory.room_then_text,
    OwnCollections: memory.own_collections_text,
    CollectedAtEnd: memory.collected_text,
    YoungSuffices: memory.young_text,
    FullEachStep: memory.each_step_text,
    FreezeSaves: memory.freeze_text,
    CutsInstead: memory.cuts_text,
    LagUseDrag: messages_memory.lag_use_drag_text,
    AlsoGrows: messages_growth.also_grows_text,
    IdleAtPeak: messages_memory.idle_text,
}
"""Facts of a run to the function that makes a sentence of them."""


def title(finding: Finding) -> str:
    """What leaks, in one line."""
    return _sentences(finding)[0](finding, finding.facts)


def advice(finding: Finding) -> str:
    """What to do about it."""
    own = _advice(finding) + "".join(f" {bytes_text(b.bytes)} of {b.noun}s go with it." for b in finding.beside)
    if finding.too_large is not None:
        own = growth.too_large_text(finding.too_large) + own
    saying = saying_of(finding)
    if saying is not None:
        own = f"{saying.what[:1].upper()}{saying.what[1:]}. {saying.cure}"
    known = finding.upstream
    if known is not None:
        own = f"Known upstream, {known.issue}: {known.what}. {known.cure or own}".rstrip()
    return comm.opened_text(finding.facts) + own if isinstance(finding.facts, OpenContextsFacts) else own


def avoidable_text(run: Run, finding: Finding) -> str:
    """One finding of avoidable memory in a line or two: how much, who holds it, and what to do."""
    facts = finding.facts
    boxed = f".{messages_memory.boxed_text(facts)}" if isinstance(facts, LateReleaseFacts) and facts.arguments else ""
    more = boxed if isinstance(facts, (LateReleaseFacts, UntouchedFacts)) else f". {advice(finding)}"
    if len(run.ranks) == 1:
        return title(finding) + more
    together = f", {bytes_text(finding.retained_bytes)} together" if len(finding.ranks) > 1 else ""
    ranks = f"{'rank' if len(finding.ranks) == 1 else 'ranks'} {listed_numbers(finding.ranks)}"
    return f"{ranks}{together}: {title(finding)}{more}"


def _advice(finding: Finding) -> str:
    """What to do about the finding by itself."""
    if finding.settled_by is not None:
        return growth.settled_advice(finding.settled_by)
    if finding.keeps_graphs and not finding.settled:
        return growth.graphs_advice(finding)
    buffers = comm.holder_to_blame(finding.comm_buffers) if finding.comm_buffers else ""
    return _sentences(finding)[1](finding, finding.facts) + buffers


def _sentences(finding: Finding) -> tuple[Sentence, Sentence]:
    """Those for the nearest kind of its facts; of another package's rule that says nothing, its name and what it is
    about.
    """
    kinds = (kind for kind in type(finding.facts).__mro__ if kind in SENTENCES)
    return next((SENTENCES[kind] for kind in kinds), (lambda f, _: f"{f.rule}: {f.subject}", lambda *_: ""))


def run_text(facts: Iterable[RunFacts], groups: Sequence[Sequence[int]] = ()) -> tuple[str, ...]:
    """`Rank 0: out of memory in step 3 at ...`: what is known of a run, sentence by sentence.

    `groups`: ranks that did the same. What is known of several of a group is told of the first of them.
    """
    listed = list(facts)
    ranks: dict[type, set[int]] = {}
    for fact in listed:
        if fact.rank is not None:
            ranks.setdefault(type(fact), set()).add(fact.rank)
    told = {kind: one_of_each(of_kind, groups) for kind, of_kind in ranks.items()}
    return tuple(
        sentence if fact.rank is None else f"R{like_text(fact.rank, told[type(fact)][fact.rank])[1:]}: {sentence}"
        for fact in listed
        if fact.rank is None or fact.rank in told[type(fact)]
        for sentence in (memory.alive_text(fact) if isinstance(fact, Alive) else (OF_RUN[type(fact)](fact),))
    )
