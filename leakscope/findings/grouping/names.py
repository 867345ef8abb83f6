"""Which names on one holder are the items of one thing that grows? `.client0`, `.client1` and so on: one a step."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile

from leakscope.findings.grouping.groups import Group, OneOfMany
from leakscope.findings.grouping.growth import MIN_LOOKS
from leakscope.findings.naming.trace import MODULE_DICTS, part_of
from leakscope.graph.model import HeapGraph

Key = tuple[str, ...]
Place = tuple[Key, str]
"""What names stand on, as the first parts of a key, and the kind and type of what they name."""

_NUMBER = re.compile(r"\d+")
_ANY_NUMBER = "{i}"
_ANY_NAME = ".{name}"
"""As in the f-string that makes such names."""
_SHARED = 2
"""Parts of a key that holders which gain the same names have in common: their root, and what hangs on it; chosen."""
_MANY = 4
"""Names without a number that must have come: two or three attributes may be made when they are first used; chosen."""


@dataclass(frozen=True)
class Names:
    """Attributes of one holder that are one of many."""

    written: str
    """`.client{i}`, `.{name}`."""
    others: frozenset[str]
    """Names on the same holder that are none of them."""
    above: Key | None = None
    """What the keys of several holders that gain the same names have in common; None where there is one holder."""

    def fits(self, name: str) -> bool:
        """Whether a name is one of them."""
        return name not in self.others and self.written in (_ANY_NAME, numberless(name))


Growing = Mapping[Place, Sequence[Names]]


def numberless(name: str) -> str:
    """`.client{i}` of `.client12`."""
    return _NUMBER.sub(_ANY_NUMBER, name)


def growing_names(keys_at: Sequence[Collection[Key]]) -> Growing:
    """The names that a holder gains over the looks, of the keys of the groups at each of them."""
    growing: dict[Place, list[Names]] = {}
    if len(keys_at) < MIN_LOOKS or len({frozenset(keys) for keys in keys_at}) == 1:
        return growing
    looks = len(keys_at)
    for place in range(1, max((len(key) for keys in keys_at for key in keys), default=0)):
        names: dict[Place, list[set[str]]] = defaultdict(lambda: [set() for _ in range(looks)])
        for at, keys in enumerate(keys_at):
            for key in keys:
                if len(key) > place and key[place].startswith("."):
                    name, _, held = key[place].partition(" ")
                    names[key[:place], held][at].add(name)
        found = {there: list(_growing(seen)) for there, seen in names.items()}
        found = _of_many_holders({there: those for there, those in found.items() if those}, names)
        if found:
            growing |= found
            keys_at = [{shared(key, found)[0] for key in keys} for keys in keys_at]
    return growing


def _of_many_holders(
    found: Mapping[Place, Sequence[Names]], names_at: Mapping[Place, Sequence[set[str]]]
) -> dict[Place, list[Names]]:
    """The names found, those of holders that gain the same ones at the same looks told as one.

    A new adapter adds a module of its name to every layer.
    """
    alike: dict[object, list[tuple[Place, Names]]] = defaultdict(list)
    for (prefix, held), those in found.items():
        for names in those:
            seen = tuple(frozenset(name for name in at if names.fits(name)) for at in names_at[prefix, held])
            alike[prefix[:_SHARED], held, names.written, seen].append(((prefix, held), names))
    told: dict[Place, list[Names]] = defaultdict(list)
    for same in alike.values():
        above = _common([prefix for (prefix, _), _ in same]) if len(same) > 1 else None
        for place, names in same:
            told[place].append(replace(names, above=above))
    return dict(told)


def _common(keys: Sequence[Key]) -> Key:
    """The parts that keys begin with."""
    parts = zip(*keys, strict=False)
    return tuple(same[0] for same in takewhile(lambda part: len(set(part)) == 1, parts))


def _growing(names_at: Sequence[set[str]]) -> Iterator[Names]:
    """Names that differ by a number, and are more at the last look than at the first; else all that come at each."""
    by_pattern: dict[str, list[set[str]]] = defaultdict(lambda: [set() for _ in names_at])
    for at, names in enumerate(names_at):
        for name in names:
            by_pattern[numberless(name)][at].add(name)
    left = [set(names) for names in names_at]
    for pattern, seen in by_pattern.items():
        if _ANY_NUMBER in pattern and len(seen[-1]) > len(seen[0]) and len(set().union(*seen)) > 1:
            yield Names(pattern, frozenset())
            left = [names - of_pattern for names, of_pattern in zip(left, seen, strict=True)]
    stayed = left[-1] - left[0]
    came = [len(stayed & (after - before)) for before, after in pairwise(left)]
    if len(stayed) >= _MANY and all(came):
        yield Names(_ANY_NAME, frozenset(left[0]))


def shared(key: Key, growing: Growing) -> tuple[Key, int, str]:
    """The key that all of the names share, the place in this one of the first such name, and what that is told as.

    The key itself, -1 and "" where there is none.
    """
    first, told = -1, ""
    place, removed = 1, 0
    while place < len(key):
        name, _, held = key[place].partition(" ")
        those = next((names for names in growing.get((key[:place], held), ()) if names.fits(name)), None)
        if those is not None:
            first, told = (place + removed, those.written) if first < 0 else (first, told)
            above = key[:place] if those.above is None else those.above
            removed += place - len(above)
            key = (*above, f"{those.written} {held}", *key[place + 1 :])
            place = len(above)
        place += 1
    return key, first, told


def as_one(groups: Sequence[Group], graph: HeapGraph, growing: Growing) -> list[Group]:
    """The groups of one look, with those one that only such a name tells apart."""
    if not growing:
        return list(groups)
    alike: dict[tuple[Key, int, str], list[Group]] = defaultdict(list)
    for group in groups:
        alike[(group.key, -1, "") if group.freed else shared(group.key, growing)].append(group)
    return [
        _one_of(same, graph, key, place, told) if place >= 0 else same[0] for (key, place, told), same in alike.items()
    ]


def _one_of(same: Sequence[Group], graph: HeapGraph, key: Key, place: int, told: str) -> Group:
    """Groups that a name alone tells apart as one, with the way of that whose storage is the largest, or the latest.

    Of several holders, the first by name: the same for all that one of the names leads to.
    """
    holder = min(group.key[:place] for group in same)
    of_one = [group for group in same if group.key[:place] == holder]
    typical = max(of_one, key=lambda group: (int(graph.bytes[_end(group, graph)]), _end(group, graph)))
    storages = tuple(storage for group in same for storage in group.storages)
    on_path = next((k for k, r in enumerate(typical.path) if part_of(graph, r) == typical.key[place]), -1)
    many = None
    if on_path >= 0:
        holder_type = graph.strings[graph.type[graph.holder[typical.path[on_path]]]]
        many = OneOfMany(
            on_path,
            f"['{told.removeprefix('.')}']" if holder_type in MODULE_DICTS else told,
            frozenset(_name(group.key[place]) for group in same),
            len({group.key[:place] for group in same}),
        )
    return replace(
        typical,
        key=key,
        storages=storages,
        bytes=sum(group.bytes for group in same),
        roots=len({group.start for group in same}) if all(g.roots <= 1 for g in same) else max(g.roots for g in same),
        many=many,
    )


def _end(group: Group, graph: HeapGraph) -> int:
    return int(graph.held[group.path[-1]]) if group.path else group.start


def _name(part: str) -> str:
    return part.partition(" ")[0]
