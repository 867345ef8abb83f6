"""What was recorded? The one place that reads a run's folder and takes nothing in it on trust."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any

from leakscope.errors import Unreadable
from leakscope.originals import Path
from leakscope.record.about import is_told, with_what_ranks_know
from leakscope.record.ends import lost, rank_name, ranks_in
from leakscope.record.header import MOST_RANKS, read_header
from leakscope.record.kinds import EndKind, MadeBy
from leakscope.record.model import InRepository, Rank, Run
from leakscope.record.parts.elsewhere import ranks_elsewhere
from leakscope.record.read.damage import Damage
from leakscope.record.read.rank import read_rank
from leakscope.record.rows.row import LARGEST, LONGEST, from_json
from leakscope.record.suppression import NAME as SUPPRESSIONS
from leakscope.record.suppression import kept_suppressions

MAX_ANALYSED = 16
"""Ranks whose allocator snapshots are analysed for a report; `leakscope snapshot` reads those of all."""
_MOST_LOST = 64
"""Ranks without a folder that are told one by one; chosen."""
_RANGES = 8
"""Ranges of those beyond that are told one by one; chosen."""
_LONGEST_SOURCE = 1 << 22
"""Characters of a source file that is shown; chosen."""
_RUN = "run.json"


def read_run(folder: Path, snapshots: bool = False) -> Run:
    """The run that is recorded in a folder.

    >>> from pathlib import Path
    >>> import leakscope
    >>> run = leakscope.read_run(Path("sample_runs/p2p_pipeline/none"))
    >>> len(run.ranks), len(run.ranks[0].steps), str(run.ranks[0].ended.how)
    (2, 12, 'stopped')

    A file of a rank that is damaged costs itself: it is left out, as are damaged lines, and the rank's notes say so.
    Links are followed; what is no regular file is not opened.

    Args:
        folder: the one that was given with `--output`; it holds `run.json`.
        snapshots: analyse the allocator snapshots in it as well, which takes about a second each.

    Raises:
        Unreadable: it is no run, its `run.json` cannot be read, or it is of a newer format.

    """
    opened = open_run(folder, snapshots)
    return opened.with_ranks(map(opened.rank, opened.numbers))


@dataclass(frozen=True)
class OpenRun:
    """A run of which all has been read but what its ranks have left."""

    folder: Path
    run: Run
    """The run without its ranks."""
    numbers: tuple[int, ...]
    """Of the ranks that have left a folder."""
    lost: tuple[Rank, ...]
    """Those that have left nothing, as far as they are told one by one."""
    snapshots: bool
    """Whether the allocator snapshots are analysed as well."""
    launcher_ended: bool
    """Whether leakscope's own process came to its end."""

    def rank(self, number: int) -> Rank:
        """What one of the ranks has left."""
        analysed = self.snapshots and number in self.numbers[:MAX_ANALYSED]
        return self._told(read_rank(self.folder / rank_name(number), number, analysed, not self.launcher_ended))

    def with_ranks(self, ranks: Iterable[Rank]) -> Run:
        """The run with these ranks, and with those that have left nothing."""
        every = (*ranks, *map(self._told, self.lost))
        return replace(self.run, ranks=tuple(sorted(every, key=lambda rank: rank.number)))

    def _told(self, rank: Rank) -> Rank:
        if self.launcher_ended or rank.ended.how != EndKind.LOST:
            return rank
        return replace(rank, ended=replace(rank.ended, is_orphan=True))


def open_run(folder: Path, snapshots: bool = False) -> OpenRun:
    """The run of a folder, its ranks to be read one by one; arguments and errors are those of `read_run`."""
    data = read_header(folder)
    launcher_ended = is_told(data)
    if not launcher_ended:
        data = with_what_ranks_know(folder, data)
    damage = Damage()
    told = _header(data, damage)
    numbers = _numbers(folder)
    expected = _expected(told.ranks, numbers, damage)
    elsewhere = ranks_elsewhere(folder, data, expected, numbers)
    if elsewhere:
        damage.note(_told_elsewhere(elsewhere))
    lost = _lost(expected, [*numbers, *elsewhere], damage)
    run = Run(
        command=told.command,
        ranks=(),
        expected_ranks=expected,
        device=told.device,
        torch=told.torch,
        leakscope=told.leakscope,
        heap_reader=told.heap_reader,
        folder=str(folder),
        warmup=told.warmup,
        min_bytes=told.min_bytes,
        horizon=told.horizon,
        options=dict(_options(data.get("options", {}), damage)),
        sources=dict(_sources(data.get("sources", {}), damage)),
        started=told.started,
        suppressions=damage.read(folder / SUPPRESSIONS, kept_suppressions, ()),
        repository=told.repository,
        made_by=told.made_by,
        notes=damage.notes(),
    )
    return OpenRun(folder, run, tuple(numbers), tuple(lost), snapshots, launcher_ended)


@dataclass(frozen=True)
class _Header:
    """What `run.json` says of the run, each with what is taken where it does not."""

    command: tuple[str, ...] = ()
    ranks: int | None = None
    device: str = "cpu"
    torch: str = ""
    leakscope: str = ""
    heap_reader: str = ""
    warmup: int = Run.warmup
    min_bytes: int | None = Run.min_bytes
    horizon: int = Run.horizon
    started: str = ""
    repository: InRepository = Run.repository
    made_by: MadeBy = Run.made_by


def _header(data: Mapping[str, Any], damage: Damage) -> _Header:
    told = _Header()
    for name in (field.name for field in fields(_Header)):
        try:
            if name in data:
                told = replace(told, **{name: getattr(from_json(_Header, {name: data[name]}), name)})
            elif name in ("command", "ranks"):
                raise ValueError("it is missing")
        except ValueError as error:
            damage.of_part(_RUN, name, error)
    return told


def _options(options: Any, damage: Damage) -> Iterator[tuple[str, object]]:
    if not isinstance(options, dict):
        damage.of_part(_RUN, "options", "they are no object")
        return
    for name, value in options.items():
        number = isinstance(value, int | float) and math.isfinite(value) and abs(value) <= LARGEST
        if value is None or number or (isinstance(value, str) and len(value) <= LONGEST):
            yield name, value
        else:
            damage.of_part(_RUN, f"option {name[:40]!r}", "no option has such a value")


def _sources(sources: Any, damage: Damage) -> Iterator[tuple[str, tuple[str, ...]]]:
    if not isinstance(sources, dict):
        damage.of_part(_RUN, "sources", "they are no object")
        return
    for name, lines in sources.items():
        if not isinstance(lines, list) or not set(map(type, lines)) <= {str}:
            damage.of_part(_RUN, f"source {name[:80]!r}", "it is no list of lines")
        elif sum(map(len, lines)) > _LONGEST_SOURCE or len(name) > LONGEST:
            damage.of_part(_RUN, f"source {name[:80]!r}", f"it is longer than {_LONGEST_SOURCE} characters")
        else:
            yield name, tuple(lines)


def _numbers(folder: Path) -> list[int]:
    try:
        return ranks_in(folder)
    except OSError as error:
        raise Unreadable(f"{folder} cannot be read ({error.strerror})") from None


def _expected(told: int | None, numbers: Sequence[int], damage: Damage) -> int:
    """Ranks of the run; as many as have a folder where `run.json` says none, or what cannot be."""
    if told is not None and 1 <= told <= MOST_RANKS:
        return told
    if told is not None:
        damage.of_part(_RUN, "ranks", f"{told} cannot be, {len(numbers)} left a folder")
    return max(len(numbers), 1)


def _told_elsewhere(ranks: Sequence[int]) -> str:
    some = f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks, {ranks[0]} to {ranks[-1]},"
    return (
        f"{some} ran on other machines, of which nothing is in this folder: where they recorded into folders of their "
        "own, leakscope merge puts these together, and judges all ranks"
    )


def _lost(expected: int, numbers: Sequence[int], damage: Damage) -> list[Rank]:
    """The ranks that left nothing: the first of them as ranks, of all others their numbers alone."""
    there = sorted({*numbers, -1, expected})
    between = [(a + 1, b - 1) for a, b in pairwise(there) if a + 1 < b and a + 1 < expected]
    found: list[Rank] = []
    others = []
    for first, last in between:
        shown = range(first, last + 1)[: max(_MOST_LOST - len(found), 0)]
        found += [Rank(n, (), (), lost(), notes=("nothing was recorded for this rank",)) for n in shown]
        others += [range(first, last + 1)[len(shown) :]]
    others = [some for some in others if some]
    if others:
        told = ", ".join(f"{some[0]} to {some[-1]}" for some in others[:_RANGES])
        more = f" and {sum(map(len, others[_RANGES:]))} others" if others[_RANGES:] else ""
        damage.note(f"nothing was recorded for ranks {told}{more}")
    for number in [number for number in numbers if number >= expected][:1]:
        damage.note(f"there is a folder of rank {number}, and run.json says that the run has {expected}")
    return found
