"""On which line of the ledger does each byte of a look stand?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from leakscope.findings.grouping.candidate import Candidate
from leakscope.findings.grouping.groups import Group, Key
from leakscope.findings.grouping.over_looks import GroupsOverLooks
from leakscope.findings.ledger import LedgerInterval, Line, LineKind, RestedKind, merged_lines
from leakscope.findings.memory.balance import Balance, bytes_a_node, storage_bytes
from leakscope.graph.model import IMMORTAL, HeapGraph, ObjectKind
from leakscope.record.model import Look

Levels = Mapping[int, int]
"""Position of a look to bytes there."""
Became = tuple[Candidate, str]
"""A candidate, and the fingerprint of the finding that it has become part of."""


@dataclass(frozen=True)
class GroupLevels:
    """The bytes of one group at the looks where it was there, and which findings may be about it."""

    became: tuple[tuple[str, tuple[int, ...]], ...]
    """Of each candidate that it was: the fingerprint of its finding, and its storages."""
    kept_by: frozenset[str]
    """Fingerprints of the findings that name most of its last storages."""
    levels: Mapping[int, Line]
    """Position of a look to its bytes there, on the line where they stand if no finding is about it."""


@dataclass(frozen=True)
class Account:
    """The memory of one rank at its judged looks, as far as it is known before all findings are."""

    balances: tuple[Balance, ...] = ()
    """One for each look."""
    groups: tuple[GroupLevels, ...] = ()
    """Those that a finding may be about."""
    others: tuple[tuple[Line, ...], ...] = ()
    """For each look the bytes of all other groups."""
    beside: tuple[int, ...] = ()
    """For each look the bytes of storages that are in no group."""
    objects: tuple[tuple[str, Levels], ...] = ()
    """What is no tensor: the fingerprint of its finding, and its bytes."""


@dataclass(frozen=True)
class LinesOfFindings:
    """Where findings put what an account has."""

    of_groups: Sequence[Line | None]
    """One for each group of the account; None where no finding is about it."""
    of_objects: Sequence[Line | None]
    graphs: Line | None = None
    """Of the finding that keeps grad nodes, where there is one."""
    unknown: Line | None = None
    """Of a leak whose holder is unknown, where there is one: all that is not known is its."""
    scattered: Line | None = None
    """Of what grows under ever new names, where there is one."""


def account_of(
    looks: Sequence[Look],
    balances: tuple[Balance, ...],
    groups: GroupsOverLooks,
    became: Sequence[Became],
    arrays: Sequence[Became],
    storages: Mapping[str, Collection[int]],
) -> Account:
    """The account of one rank.

    Args:
        looks: the judged ones.
        balances: one for each look.
        groups: of the storages of these looks.
        became: the candidates among the groups.
        arrays: candidates of what is no tensor.
        storages: fingerprint of each of the rank's findings to the storages that it names, of the last look.

    """
    others: list[Counter[Line]] = [Counter() for _ in looks]
    beside = [balance.storages for balance in balances]
    told = []
    became_of: dict[Key, list[tuple[str, tuple[int, ...]]]] = {}
    for candidate, fingerprint in became:
        became_of.setdefault(candidate.group.key, []).append((fingerprint, candidate.group.storages))
    named = {fingerprint: frozenset(those) for fingerprint, those in storages.items() if those}
    place_of = {step: place for place, step in enumerate(groups.steps)}
    for key, at in groups.at.items():
        levels = {place_of[step]: _level(look, group) for step, (look, group) in at.items()}
        for place, line in levels.items():
            beside[place] -= line.bytes
        kept_by = _kept_by(*at[groups.steps[-1]], named) if groups.steps[-1] in at else frozenset()
        if key in became_of or kept_by:
            told.append(GroupLevels(tuple(became_of.get(key, ())), kept_by, levels))
        else:
            for place, line in levels.items():
                others[place][replace(line, bytes=0)] += line.bytes
    of_others = tuple(tuple(replace(line, bytes=size) for line, size in at.items()) for at in others)
    objects = tuple((name, dict(enumerate(array.counted or array.series.bytes))) for array, name in arrays)
    return Account(balances, tuple(told), of_others, tuple(beside), objects)


def _kept_by(look: Look, group: Group, named: Mapping[str, Collection[int]]) -> frozenset[str]:
    """The findings that name more than half of a group."""
    sizes = {storage: int(look.heap.bytes[storage]) for storage in group.storages} if named else {}
    return frozenset(
        fingerprint
        for fingerprint, storages in named.items()
        if 2 * sum(size for storage, size in sizes.items() if storage in storages) > group.bytes
    )


def _level(look: Look, group: Group) -> Line:
    """Garbage waits for gc; what is alive, or immortal, did not go on growing."""
    size = storage_bytes(look, group.storages)
    if group.freed not in (0, IMMORTAL):
        return Line(LineKind.GARBAGE, size)
    return Line(LineKind.RESTED, size, rested=_rested(look.heap, group))


def _rested(graph: HeapGraph, group: Group) -> RestedKind:
    objects = (group.start, *(int(graph.held[reference]) for reference in group.path))
    kinds = {graph.object(index).kind for index in objects}
    if ObjectKind.OPTIMIZER in kinds:
        return RestedKind.OPTIMIZER
    return RestedKind.PARAMETER if ObjectKind.PARAMETER in kinds else RestedKind.OTHER


def ledger_of(account: Account, lines_of: LinesOfFindings) -> tuple[LedgerInterval, ...]:
    """The intervals between looks in a row on one kind of device; each one's lines add up to what was counted."""
    each = bytes_a_node(account.balances)
    node, block, left_over = (
        _of_unknown(kind, lines_of.unknown) for kind in (LineKind.GRAD_NODES, LineKind.BLOCKS, LineKind.UNATTRIBUTED)
    )
    node = lines_of.graphs or node
    levels = []
    for place, balance in enumerate(account.balances):
        lines = [*_storages(place, account, lines_of), *_objects(place, account, lines_of)]
        lines.append(replace(block, bytes=balance.blocks))
        if balance.gap is not None:
            lines.append(replace(node, bytes=balance.nodes * each))
            left = (balance.counted or 0) - sum(line.bytes for line in lines)
            lines.append(replace(left_over, bytes=left))
        levels.append(lines)
    return tuple(
        _interval(a, b, before, after)
        for (a, before), (b, after) in pairwise(zip(account.balances, levels, strict=True))
        if a.counted_on == b.counted_on
    )


def _of_unknown(kind: LineKind, unknown: Line | None) -> Line:
    """A line of what has no holder: of the leak that it is where there is one, apart where that is known already."""
    if unknown is None:
        return Line(kind, 0)
    return unknown if unknown.kind == LineKind.APART else Line(kind, 0, unknown.fingerprint)


def _interval(a: Balance, b: Balance, before: Sequence[Line], after: Sequence[Line]) -> LedgerInterval:
    if a.counted is None or b.counted is None:
        unknown = (LineKind.GRAD_NODES, LineKind.UNATTRIBUTED)
        before, after = ([line for line in lines if line.kind not in unknown] for lines in (before, after))
        counted = None
    else:
        counted = b.counted - a.counted
    moved = merged_lines((*after, *(replace(line, bytes=-line.bytes) for line in before)))
    return LedgerInterval(a.step, b.step, counted, moved, b.counted_on)


def _storages(place: int, account: Account, lines_of: LinesOfFindings) -> Iterator[Line]:
    for group, line in zip(account.groups, lines_of.of_groups, strict=True):
        if place in group.levels:
            level = group.levels[place]
            yield _of_no_finding(level, lines_of.scattered) if line is None else replace(line, bytes=level.bytes)
    for level in account.others[place]:
        yield _of_no_finding(level, lines_of.scattered)
    yield Line(LineKind.RESTED, account.beside[place], rested=RestedKind.OTHER)


def _of_no_finding(level: Line, scattered: Line | None) -> Line:
    return level if scattered is None or level.kind == LineKind.GARBAGE else replace(scattered, bytes=level.bytes)


def _objects(place: int, account: Account, lines_of: LinesOfFindings) -> Iterator[Line]:
    balance = account.balances[place]
    left = balance.objects
    for (_, levels), line in zip(account.objects, lines_of.of_objects, strict=True):
        if line is not None:
            size = levels.get(place, 0)
            left -= size
            yield replace(line, bytes=size)
    yield Line(LineKind.OBJECTS, left)
    yield Line(LineKind.GARBAGE, balance.dead_objects)
