"""Which names on one holder are the items of one thing that grows? `.client0`, `.client1` and so on: one a step."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from leakscope.findings.grouping.groups import Group, OneOfMany
from leakscope.findings.grouping.growth import MIN_LOOKS
from leakscope.findings.naming.trace import part_of
from leakscope.graph.model import HeapGraph

Key = tuple[str, ...]
Place = tuple[Key, str]
"""What names stand on, as the first parts of a key, and the kind and type of what they name."""

_NUMBER = re.compile(r"\d+")
_ANY_NUMBER = "{i}"
_ANY_NAME = ".{name}"
"""As in the f-string that makes such names."""
_DICTS = ("torch.nn.modules.container.ModuleDict", "torch.nn.modules.container.ParameterDict")
"""Modules whose attributes are written as items."""
_MANY = 4
"""Names without a number that must have come: two or three attributes may be made when they are first used; chosen."""


@dataclass(frozen=True)
class Names:
    """Attributes of one holder that are one of many."""

    written: str
    """`.client{i}`, `.{name}`."""
    others: frozenset[str]
    """Names on the same holder that are none of them."""

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
        found = {there: those for there, those in found.items() if those}
        if found:
            growing |= found
            keys_at = [{shared(key, found)[0] for key in keys} for keys in keys_at]
    return growing


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


def shared(key: Key, growing: Growing) -> tuple[Key, int]:
    """The key that all of the names share, and the first place where it says so; the key itself, and -1."""
    first = -1
    for place in range(1, len(key)):
        name, _, held = key[place].partition(" ")
        those = next((names for names in growing.get((key[:place], held), ()) if names.fits(name)), None)
        if those is not None:
            key = (*key[:place], f"{those.written} {held}", *key[place + 1 :])
            first = place if first < 0 else first
    return key, first


def as_one(groups: Sequence[Group], graph: HeapGraph, growing: Growing) -> list[Group]:
    """The groups of one look, with those one that only such a name tells apart."""
    if not growing:
        return list(groups)
    alike: dict[tuple[Key, int], list[Group]] = defaultdict(list)
    for group in groups:
        alike[(group.key, -1) if group.freed else shared(group.key, growing)].append(group)
    return [_one_of(same, graph, key, place) if place >= 0 else same[0] for (key, place), same in alike.items()]


def _one_of(same: Sequence[Group], graph: HeapGraph, key: Key, place: int) -> Group:
    """Groups that a name alone tells apart as one, with the way of that whose storage is the largest, or the latest."""
    typical = max(same, key=lambda group: (int(graph.bytes[_end(group, graph)]), _end(group, graph)))
    storages = tuple(storage for group in same for storage in group.storages)
    on_path = next((k for k, r in enumerate(typical.path) if part_of(graph, r) == typical.key[place]), -1)
    names = frozenset(_name(group.key[place]) for group in same)
    holder = graph.strings[graph.type[graph.holder[typical.path[on_path]]]] if on_path >= 0 else ""
    written = _name(key[place])
    return replace(
        typical,
        key=key,
        storages=storages,
        bytes=sum(group.bytes for group in same),
        roots=len({group.start for group in same}) if all(g.roots <= 1 for g in same) else max(g.roots for g in same),
        many=OneOfMany(on_path, _item(written) if holder in _DICTS else written, names) if on_path >= 0 else None,
    )


def _item(name: str) -> str:
    return f"['{name.removeprefix('.')}']"


def _end(group: Group, graph: HeapGraph) -> int:
    return int(graph.held[group.path[-1]]) if group.path else group.start


def _name(part: str) -> str:
    return part.partition(" ")[0]
