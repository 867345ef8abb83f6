"""A small model of torch's caching allocator that writes its trace, and knows its own state when it fails.

Follows c10/cuda/CUDACachingAllocator.cpp: requests are rounded to 512 bytes, those up to 1 MiB are served from segments
of their own, the best fit of the stream is split where enough is left, neighbours are joined when they are freed, and
before an allocation fails all empty segments are given back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from support.snapshots.building import block, event, freed, segment, snapshot

KIB, MIB = 1 << 10, 1 << 20


@dataclass
class Piece:
    """A block of a segment."""

    address: int
    size: int
    requested: int = 0
    alive: bool = False


@dataclass
class Reserved:
    """One segment."""

    address: int
    size: int
    stream: int
    small: bool
    pieces: list[Piece]

    @property
    def empty(self) -> bool:
        return not any(piece.alive for piece in self.pieces)


@dataclass
class State:
    """What there was when an allocation failed."""

    needed: int
    free: int
    idle: int
    largest: int
    reserved: dict[int, int]
    """By stream."""


@dataclass
class CachingAllocator:
    """A device of `capacity` bytes and the allocator on it."""

    capacity: int
    divisions: int = 0
    """`roundup_power2_divisions`, the same for every size."""
    segments: list[Reserved] = field(default_factory=list)
    trace: list[dict[str, Any]] = field(default_factory=list)
    failure: State | None = None
    _next: int = 1 << 40

    @property
    def free_bytes(self) -> int:
        return self.capacity - sum(each.size for each in self.segments)

    def allocate(self, requested: int, stream: int = 0) -> Piece | None:
        """A block for a request; None, and `failure`, where there is no room."""
        size = self._rounded(requested)
        small = size <= MIB
        found = self._best_fit(size, stream, small)
        if found is None:
            needed = 2 * MIB if small else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
            if needed > self.free_bytes:
                self.give_back()
            if needed > self.free_bytes:
                self.failure = self._state(needed, stream, small)
                self._log("oom", 0, size, stream, device_free=self.free_bytes)
                return None
            whole = Piece(self._next, needed)
            home = Reserved(self._next, needed, stream, small, [whole])
            self._next += needed + 64 * MIB
            self.segments.append(home)
            self._log("segment_alloc", home.address, needed, stream)
            found = (home, whole)
        home, piece = found
        left = piece.size - size
        if left >= 512 if small else left > MIB:
            home.pieces.insert(home.pieces.index(piece) + 1, Piece(piece.address + size, left))
            piece.size = size
        piece.alive, piece.requested = True, requested
        self._log("alloc", piece.address, requested, stream)
        return piece

    def release(self, piece: Piece) -> None:
        """Free a block, and join it with what is free beside it."""
        home = next(each for each in self.segments if piece in each.pieces)
        self.trace += [each | {"stream": home.stream} for each in freed(piece.address, piece.requested)]
        piece.alive = False
        joined: list[Piece] = []
        for each in home.pieces:
            if joined and not joined[-1].alive and not each.alive:
                joined[-1].size += each.size
            else:
                joined.append(each)
        home.pieces = joined

    def give_back(self) -> None:
        """`empty_cache`."""
        for each in [each for each in self.segments if each.empty]:
            self.segments.remove(each)
            self._log("segment_free", each.address, each.size, each.stream)

    def snapshot(self) -> dict[str, Any]:
        """What torch would dump."""
        counts = {str(1 << at): self.divisions for at in range(16)}
        return {"allocator_settings": {"roundup_power2_divisions": counts}} | snapshot(
            [
                segment(
                    *(
                        block(p.address, p.size, "active_allocated" if p.alive else "inactive", p.requested)
                        for p in each.pieces
                    ),
                    stream=each.stream,
                    segment_type="small" if each.small else "large",
                )
                for each in self.segments
            ],
            self.trace,
        )

    def _rounded(self, requested: int) -> int:
        if self.divisions > 1 and requested > 512 * self.divisions:
            part = (1 << requested.bit_length() - 1) // self.divisions
            return -(-requested // part) * part
        return max(-(-requested // 512) * 512, 512)

    def _best_fit(self, size: int, stream: int, small: bool) -> tuple[Reserved, Piece] | None:
        free = [
            (piece.size, piece.address, each, piece)
            for each in self.segments
            for piece in each.pieces
            if each.stream == stream and each.small == small and not piece.alive and piece.size >= size
        ]
        return min(free, key=lambda entry: entry[:2])[2:] if free else None

    def _state(self, needed: int, stream: int, small: bool) -> State:
        idle = [(each, piece) for each in self.segments for piece in each.pieces if not piece.alive]
        streams = {each.stream for each in self.segments}
        return State(
            needed=needed,
            free=self.free_bytes,
            idle=sum(piece.size for _, piece in idle),
            largest=max((p.size for each, p in idle if each.stream == stream and each.small == small), default=0),
            reserved={s: sum(each.size for each in self.segments if each.stream == s) for s in streams},
        )

    def _log(self, action: str, address: int, size: int, stream: int, **more: Any) -> None:
        self.trace.append(event(action, address, size, stream=stream, **more))
