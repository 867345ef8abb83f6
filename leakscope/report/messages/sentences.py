"""Title and advice of a finding, and sentences about the facts of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from leakscope.findings.counters import AlsoGrows
from leakscope.findings.facts import RunFacts
from leakscope.findings.gc_advice import (
    CollectedAtEnd,
    CutsInstead,
    FreezeSaves,
    FullEachStep,
    OwnCollections,
    YoungSuffices,
)
from leakscope.findings.known_leaks import saying_of
from leakscope.findings.model import Finding
from leakscope.findings.oom import (
    AliveAtFailure,
    AllocationFailed,
    CameNear,
    CaughtUnseen,
    DeviceFailed,
    NoRoomToLook,
    RoomThen,
)
from leakscope.findings.peak import IdleAtPeak, LagUseDrag
from leakscope.report.messages import comm, growth, memory
from leakscope.run.model import Run
from leakscope.units import bytes_text, like_text, listed_numbers, one_of_each

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
    LagUseDrag: memory.lag_use_drag_text,
    AlsoGrows: growth.also_grows_text,
    IdleAtPeak: memory.idle_text,
}
"""Type of the facts of a run to the function that renders them as a sentence."""


def title(finding: Finding) -> str:
    """Describe what leaks in one line.

    Args:
        finding: A finding of `judge`, `check` or `watch`.

    Returns:
        The title of the finding in every report.

    >>> import torch, leakscope
    >>> kept = []
    >>> found = leakscope.check(lambda: kept.append(torch.ones(1 << 20)), repeats=3)
    >>> "kept" in leakscope.title(found.findings[0])
    True

    """
    return finding.facts.title_for(finding)


def advice(finding: Finding) -> str:
    """Describe how to fix a finding.

    Args:
        finding: A finding of `judge`, `check` or `watch`.

    Returns:
        One or more sentences.

    >>> import torch, leakscope
    >>> kept = []
    >>> found = leakscope.check(lambda: kept.append(torch.ones(1 << 20)), repeats=3)
    >>> "kept" in leakscope.advice(found.findings[0])
    True

    """
    own = _advice(finding) + "".join(f" This also frees {bytes_text(b.bytes)} of {b.noun}s." for b in finding.beside)
    if finding.too_large is not None:
        own = growth.too_large_text(finding.too_large) + own
    saying = saying_of(finding)
    if saying is not None:
        own = f"{saying.what[:1].upper()}{saying.what[1:]}. {saying.cure}"
    known = finding.upstream
    if known is not None:
        own = f"Known upstream ({known.issue}): {known.what}. {known.cure or own}".rstrip()
    return finding.facts.preface() + own


def avoidable_text(run: Run, finding: Finding) -> str:
    """A finding of avoidable memory in one or two lines: bytes, referrer and advice."""
    short = finding.facts.short_advice()
    more = f". {advice(finding)}" if short is None else f". {short}" if short else ""
    if len(run.ranks) == 1:
        return title(finding) + more
    together = f", {bytes_text(finding.retained_bytes)} in total" if len(finding.ranks) > 1 else ""
    ranks = f"{'rank' if len(finding.ranks) == 1 else 'ranks'} {listed_numbers(finding.ranks)}"
    return f"{ranks}{together}: {title(finding)}{more}"


def _advice(finding: Finding) -> str:
    """Advice of the finding itself."""
    if finding.settled_by is not None:
        return growth.settled_advice(finding.settled_by)
    if finding.keeps_graphs and not finding.settled:
        return finding.facts.advice_with_graphs(finding)
    buffers = comm.holder_to_blame(finding.comm_buffers) if finding.comm_buffers else ""
    return finding.facts.advice_for(finding) + buffers


def run_text(facts: Iterable[RunFacts], groups: Sequence[Sequence[int]] = ()) -> tuple[str, ...]:
    """Sentences about the facts of a run: `Rank 0: out of memory in step 3 at ...`.

    `groups`: ranks with the same behaviour. A fact of several ranks of a group is given for the first of them.
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
        for sentence in (memory.alive_text(fact) if isinstance(fact, AliveAtFailure) else (OF_RUN[type(fact)](fact),))
    )
