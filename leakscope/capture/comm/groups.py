"""Process groups as they are recorded: by name, with the ranks of the world that their own ranks stand for."""

from __future__ import annotations

import weakref
from typing import Any

from leakscope.capture.comm.operation import Channel
from leakscope.capture.heap.raw_types import mro
from leakscope.capture.torch_private import c10d, group_named, ranks_of

_MAX_CHANNELS = 20_000
"""Channels kept of one group; a script may give every message a tag of its own."""
_MAX_GROUPS = 1000
"""Python objects of groups that are kept apart."""


class Group:
    """One group and the channels in it."""

    __slots__ = ("channels", "name", "ranks", "seen")

    def __init__(self, name: str, ranks: tuple[int, ...]) -> None:
        self.name, self.ranks = name, ranks
        self.channels: dict[tuple[str, Any, Any], Channel] = {}
        """(direction, rank of the group or None, tag) to the channel."""
        self.seen: Any = None
        """Weak reference to the Python object."""

    def open(self, direction: str, other: Any, tag: Any) -> Channel:
        """A channel to be used for the first time."""
        if len(self.channels) > _MAX_CHANNELS:
            self.channels.clear()
        peer = self.rank(other) if type(other) is int else None
        channel = self.channels[direction, other, tag] = Channel(direction, peer, tag, self.name)
        return channel

    def rank(self, place: int) -> int:
        """The rank of the world that stands at this place of the group."""
        return self.ranks[place] if 0 <= place < len(self.ranks) else place

    def place(self, rank: int | None) -> int | None:
        """Where a rank of the world stands in the group."""
        return self.ranks.index(rank) if rank in self.ranks else rank


class Groups:
    """All groups that have been used."""

    def __init__(self) -> None:
        self.by_id: dict[int, Group] = {}
        """Address to group, right where `seen` still is the one that is asked about."""
        self._by_name: dict[str, Group] = {}

    def of(self, group: Any) -> Group:
        """The group of a ProcessGroup, or of one of its backends."""
        known = self.by_id.get(id(group))
        if known is not None and known.seen() is group:
            return known
        name = _name_of(group)
        places = ranks_of(group)
        ranks = tuple(sorted(places, key=lambda rank: places[rank]))
        known = self._by_name.get(name)
        if known is None or (
            ranks and known.ranks != ranks
        ):  # a group made after destroy_process_group may have an old name
            known = self._by_name[name] = Group(name, ranks)
        if len(self.by_id) > _MAX_GROUPS:
            self.by_id.clear()
        known.seen = weakref.ref(group)
        self.by_id[id(group)] = known
        return known

    def named(self, name: Any) -> Group:
        """The group that a functional operator means."""
        known = self._by_name.get(_shown(name))
        return known if known is not None else self.of(group_named(name))


def _name_of(group: Any) -> str:
    try:  # by the class of torch, as a group written in Python may answer with code of its own
        if c10d.ProcessGroup in mro(type(group)):
            return _shown(str(vars(c10d.ProcessGroup)["group_name"].__get__(group)))
        return _shown(str(c10d.Backend.name(group)))
    except RuntimeError:  # a group that torch.distributed has not made has no name
        return type(group).__name__


def _shown(name: str) -> str:
    return "default" if name in ("0", "default_pg") else name
