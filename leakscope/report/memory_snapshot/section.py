"""The section on the accelerator's allocator in the report of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from leakscope.findings.oom import DeviceLook, device_looks
from leakscope.report.escape import cleaned, one_line
from leakscope.run.model import Rank, Run
from leakscope.run.rows import Occasion
from leakscope.units import bytes_text, like_text, one_of_each, plural

if TYPE_CHECKING:
    from markupsafe import Markup

LOOKS_SHOWN = 8
"""Looks at the most, chosen, of one rank."""
_SITES_SHOWN = 6
"""Places at the most, chosen, of one look."""
_HEADS = ("step", "device", "reserved", "active", "held", "for gc", "native", "pending", "outside")
_LEGEND = (
    "active = held by something alive + for gc (nothing alive holds it) + native (no storage found) + pending (dead, "
    "another stream has it); outside: used on the device and not reserved here, other "
    "processes included"
)


def device_lines(run: Run, groups: Sequence[Sequence[int]] = ()) -> Iterator[str]:
    """For the terminal; nothing where no accelerator's allocator was looked at.

    `groups`: ranks that did the same, of which one is told.
    """
    stories = _stories(run, groups)
    if not any(looks or rank.snapshots for rank, _, looks in stories):
        return
    yield "Device memory"
    yield "============="
    for rank, more, looks in stories:
        if looks:
            yield like_text(rank.number, more)
            yield from _table(
                [_HEADS, *(_cells(look) for look in looks[-LOOKS_SHOWN * len({look.device for look in looks}) :])]
            )
            yield from (f"    {text}" for text in _native(looks))
        yield from (f"  {one_line(text)}" for text in _snapshot_texts(rank))
    if any(looks for _, _, looks in stories):
        yield f"({_LEGEND})"


def _stories(run: Run, groups: Sequence[Sequence[int]]) -> list[tuple[Rank, int, tuple[DeviceLook, ...]]]:
    """Of the ranks that are told: how many others they stand for, and what was seen of their devices."""
    told = one_of_each((rank.number for rank in run.ranks if rank.device_blocks or rank.snapshots), groups)
    return [(rank, told[rank.number], cleaned(device_looks(rank))) for rank in run.ranks if rank.number in told]


def device_text(run: Run) -> str:
    """`1.00 GiB reserved on cuda:0 by rank 2, 960.00 MiB active`: of the rank that has reserved most at its last look;
    "" where no accelerator's allocator was looked at.
    """
    last = [(looks[-1], rank.number) for rank in run.ranks if (looks := cleaned(device_looks(rank)))]
    if not last:
        return ""
    most, number = max(last, key=lambda each: (each[0].reserved, -each[1]))
    of_rank = f" by rank {number}" if len(run.ranks) > 1 else ""
    return (
        f"{bytes_text(most.reserved)} reserved on {most.kind}:{most.device}{of_rank}, {bytes_text(most.active)} active "
        f"at the last look"
    )


def _table(rows: list[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEADS))]
    for row in rows:
        yield "  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))


def _cells(look: DeviceLook) -> tuple[str, ...]:
    step = str(look.step) if look.occasion == Occasion.STEP else f"{look.step} ({look.occasion})"
    sizes = (look.reserved, look.active, look.held, look.waiting, look.native, look.pending)
    outside = "-" if look.outside is None else bytes_text(look.outside)
    return (step, f"{look.kind}:{look.device}", *(bytes_text(size) for size in sizes), outside)


def _native(looks: tuple[DeviceLook, ...]) -> tuple[str, ...]:
    """Where the last look's native blocks were made."""
    sites = [
        site
        for look in looks
        if (look.step, look.occasion) == (looks[-1].step, looks[-1].occasion)
        for site in look.sites
    ]
    return tuple(
        f"native: {bytes_text(s.bytes)} in {plural(s.count, 'block')}, made at {one_line(s.where)}"
        for s in sites[:_SITES_SHOWN]
    )


def _snapshot_texts(rank: Rank) -> Sequence[str]:
    if not rank.snapshots:  # all of `allocator` would be imported
        return ()
    from leakscope.report.memory_snapshot.page import texts

    return texts(rank.snapshots)


def _snapshots_on_page(rank: Rank) -> Sequence[tuple[object, ...]]:
    if not rank.snapshots:
        return ()
    from leakscope.report.memory_snapshot.page import on_page

    return on_page(rank.snapshots)


_SECTION = Path(__file__).with_name("section.html")
"""The template; all that is filled in is escaped."""


def device_section(run: Run, groups: Sequence[Sequence[int]] = ()) -> Markup | None:
    """For the page, everything escaped; None where there is nothing to say. `run` is cleaned already.

    `groups`: ranks that did the same, of which one is told.
    """
    from jinja2 import Environment
    from markupsafe import Markup

    ranks = []
    for rank, more, looks in _stories(run, groups):
        snapshots = _snapshots_on_page(rank)
        if looks or snapshots:
            ranks.append(
                (
                    like_text(rank.number, more),
                    [_cells(look) for look in looks],
                    _native(looks) if looks else (),
                    snapshots,
                )
            )
    if not ranks:
        return None
    environment = Environment(autoescape=True, trim_blocks=True)
    environment.filters["bytes"] = bytes_text
    any_looks = any(looks for _, looks, _, _ in ranks)
    return Markup(
        environment.from_string(_SECTION.read_text(encoding="utf-8")).render(
            ranks=ranks, heads=_HEADS, legend=_LEGEND, any_looks=any_looks
        )
    )
