"""Names and keys that are data: the attributes `.client0`, `.client1` and so on that one holder gains, the keys of a
cache, the names of classes made at run time. What they tell apart is one group.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile

from leakscope.findings.grouping.groups import CYCLES, Group, Key, OneOfMany, most_telling, together
from leakscope.findings.grouping.growth import MIN_LOOKS
from leakscope.findings.naming.trace import ANY_NUMBER, MODULE_DICTS, is_literal_key, numberless, part_of, without_key
from leakscope.graph.model import HeapGraph

Place = tuple[Key, str]
"""What names stand on, as the first parts of a key, and the kind and type of what they name."""

_ANY_NAME = ".{name}"
"""As in the f-string that makes such names."""
_SHARED = 2
"""Parts of a key that holders which gain the same names have in common: their root, and what hangs on it; chosen."""
_MANY = 4
"""Names without a number that must have come: two or three attributes may be made when they are first used; chosen."""
_KEYS = 8
"""Keys of one dict that a program writes out, heuristic: twice as many would make a finding each of the layers of a
small network, half as many would make one of the losses, metrics and counts of a usual history.
"""
_OF_PARAMETER = re.compile(r"[.'\"](weight|bias)(_\w+)?['\"]\]$")
"""A key that is a parameter's name, as `named_parameters()` gives it: `['0.weight']`, `['rnn.weight_ih_l0']`."""
_OF_MODULE = 2
"""Keys like that from which on a dict has the parameters of a module: one layer has a weight and a bias."""
_SIBLINGS = 4
"""Names at one look that differ by a number alone from which on they are counted, heuristic: a network may have two or
three encoders with a cycle each.
"""
_RISES = 2
"""Looks at which new ones must have come: what grows by them has risen so often."""


@dataclass(frozen=True)
class DataKeys:
    """The dicts whose keys are data: step numbers, ids, paths. In all others a key is a name that a program writes."""

    dicts: frozenset[Key] = frozenset()
    """What leads to each of them, as the first parts of a masked key."""

    def mask(self, key: Key) -> Key:
        """The key of a group without those strings that are data."""
        masked: list[str] = []
        for part in key:
            is_data = is_literal_key(part) and tuple(masked) in self.dicts
            masked.append(without_key(part) if is_data else part)
        return tuple(masked)


def data_keys(keys_at: Sequence[Collection[Key]]) -> DataKeys:
    """Which dicts' keys are data, by the keys of the groups of live storages at each look.

    Those of a dict that gains keys look after look, has more than a program writes out, or has a module's parameters by
    their names, as an average of weights does: the keys of `history` are `train` and `val` throughout.
    """
    known = DataKeys()
    literal = [{key for key in keys if any(map(is_literal_key, key[1:]))} for keys in keys_at]
    for place in range(1, max((len(key) for keys in literal for key in keys), default=0)):
        seen: dict[Key, list[set[str]]] = defaultdict(lambda: [set() for _ in literal])
        for at, keys in enumerate(literal):
            for key in keys:
                if len(key) > place and is_literal_key(key[place]):
                    seen[known.mask(key)[:place]][at].add(key[place])
        known = DataKeys(known.dicts | {above for above, names_at in seen.items() if _are_data(names_at)})
    return known


def _are_data(names_at: Sequence[set[str]]) -> bool:
    names = set().union(*names_at)
    if len(names) > _KEYS or _keep_coming(names_at):
        return True
    if sum(_OF_PARAMETER.search(name.rpartition(" ")[0]) is not None for name in names) >= _OF_MODULE:
        return True
    return len(names_at) < MIN_LOOKS and len({numberless(name) for name in names}) < len(names)


def _keep_coming(names_at: Sequence[Collection[object]]) -> bool:
    """Whether new ones come at two looks at least, and at most of those after the first that has any."""
    known: set[object] = set()
    came: list[bool] = []
    for names in names_at:
        came += [not known.issuperset(names)] if known else []
        known.update(names)
    return sum(came) >= _RISES and 2 * sum(came) > len(came)


@dataclass(frozen=True)
class DataNumbers:
    """The numbers in names that are data."""

    patterns: frozenset[Key] = frozenset()
    """Keys without numbers, of those that only such a number tells apart."""

    def mask(self, key: Key) -> Key:
        """The key of a group without those of its numbers that are data."""
        pattern = _pattern(key) if self.patterns else key
        return pattern if pattern in self.patterns else key


def data_numbers(keys_at: Sequence[Collection[Key]]) -> DataNumbers:
    """Which numbers in names are data, by the keys of all groups at each look.

    Those of what comes look after look, or of many at one look: `.layer1` and `.layer2`, which stay, are two
    attributes; `Head17` and `Head18`, classes made by a step each, are one.
    """
    alike: dict[Key, list[set[Key]]] = defaultdict(lambda: [set() for _ in keys_at])
    for at, keys in enumerate(keys_at):
        for key in keys:
            alike[_pattern(key)][at].add(key)
    return DataNumbers(
        frozenset(
            pattern
            for pattern, at in alike.items()
            if _keep_coming(at) or (len(at) < MIN_LOOKS and max(map(len, at)) >= _SIBLINGS)
        )
    )


def _pattern(key: Key) -> Key:
    """The key without numbers; of a cycle in their order without them, as they begin at the first by name."""
    parts = map(numberless, key[1:])
    return (key[0], *(sorted(parts) if key[0] in CYCLES else parts))


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
        if ANY_NUMBER in pattern and len(seen[-1]) > len(seen[0]) and len(set().union(*seen)) > 1:
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


def as_one(groups: Sequence[Group], graph: HeapGraph, growing: Growing, numbers: DataNumbers) -> list[Group]:
    """The groups of one look, with those one that only such a name tells apart."""
    if not growing and not numbers.patterns:
        return list(groups)
    alike: dict[tuple[Key, int, str], list[Group]] = defaultdict(list)
    for group in groups:
        key, place, told = (group.key, -1, "") if group.freed else shared(group.key, growing)
        alike[numbers.mask(key), place, told].append(group)
    return [
        _one_of(same, graph, key, place, told) if place >= 0 else together(same, graph, key)
        for (key, place, told), same in alike.items()
    ]


def _one_of(same: Sequence[Group], graph: HeapGraph, key: Key, place: int, told: str) -> Group:
    """Groups that a name alone tells apart as one, with the way of that whose storage is the largest, or the latest.

    Of several holders, the first by name: the same for all that one of the names leads to.
    """
    holder = min(group.key[:place] for group in same)
    of_one = [group for group in same if group.key[:place] == holder]
    typical = most_telling(of_one, graph)
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
    return replace(together(same, graph, key, typical), many=many)


def _name(part: str) -> str:
    return part.partition(" ")[0]
