"""Memory over steps: what was counted, what was found, and of which category it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from leakscope.findings.model import RankSummary
from leakscope.record.kinds import Occasion
from leakscope.record.model import Rank
from leakscope.report.html.axes import area, axes_around, dots, line, plot, upright
from leakscope.report.per_rank import counted_steps

MIN_POINTS = 2
"""Steps that make a line."""

MAX_COLLECTIONS = 200
"""Full collections that are drawn, the first ones: more would be a grey field."""

OLDEST = 2
"""The generation that a full collection collects (CPython `gc.collect()`)."""

COUNTED, EXPLAINED, PEAK = 1, 4, 3
"""Numbers, among the page's colours, of what the allocator has out, of the storages found and of the peak."""

SERIES = 10
"""Colours that the page defines as `--series-1` to `--series-10`; the last is for what leaked."""

_KNOWN = (
    "parameter", "buffer", "optimizer", "gradient", "activation", "input", "p2p", "held by a named", "held by native",
    "leaked",
)  # fmt: skip
"""Beginnings of the categories' names, from the bottom of the stack to its top."""


def category_series(names: Sequence[str]) -> dict[str, int]:
    """Each category's number among the page's colours, in the order in which they are stacked."""
    numbers: dict[str, int] = {}
    for name in sorted(names):
        known = next((i for i, start in enumerate(_KNOWN, 1) if name.lower().startswith(start)), None)
        if known is not None:
            numbers[name] = known
    free = [number for number in range(1, SERIES) if number not in numbers.values()] or [SERIES - 2]
    for place, name in enumerate(sorted(set(names) - set(numbers))):
        numbers[name] = free[-1 - place % len(free)]
    return dict(sorted(numbers.items(), key=lambda item: (item[1], item[0])))


def categories_shown(summary: RankSummary) -> list[str]:
    """Names of the categories that held anything at any look."""
    looks = [summary.categories, *(sizes for _, sizes in summary.categories_by_step)]
    return sorted({name for sizes in looks for name, size in sizes.items() if size})


def memory_plot(rank: Rank, absolute: bool) -> str:
    """Counted bytes of one rank over its steps, the bytes explained at each look, and the program's full collections.

    `absolute`: the counted bytes are tensor memory (an accelerator's); otherwise only their growth means anything.
    Returns "" where fewer than two steps were counted.
    """
    counted = counted_steps(rank)
    if len(counted) < MIN_POINTS:
        return ""
    base = 0 if absolute else counted[0][1]
    explained = [
        (look.step, look.explained_bytes) for look in rank.looks if look.occasion in (Occasion.STEP, Occasion.LAST)
    ]
    first = 0 if absolute or not explained else explained[0][1]
    looks = [(step, size - first) for step, size in explained]
    peaks = [(s.number, s.peak_bytes) for s in rank.steps if s.peak_bytes is not None] if absolute else []
    if peaks:  # noted where it rose
        peaks.append((counted[-1][0], peaks[-1][1]))
    lines = [[(n, b - base) for n, b in counted], looks, peaks]
    unit, name = _unit(max(abs(b) for line in lines for _, b in line))
    counts, found, peak = ([(n, b / unit) for n, b in line] for line in lines)
    axes = axes_around([*counts, *found, *peak])
    full = [s.number for s in rank.steps if any(c.generation == OLDEST for c in s.collections)]
    marks = [upright(axes, step, PEAK) for step in full[:MAX_COLLECTIONS] if axes.first <= step <= axes.last]
    marks += [line(axes, counts, COUNTED), line(axes, found, EXPLAINED), dots(axes, found, EXPLAINED)]
    marks.append(line(axes, peak, PEAK, dashed=True))
    return plot(axes, f"memory, {name}" if absolute else f"growth, {name}", above=marks)


def categories_plot(summary: RankSummary) -> str:
    """Bytes of a rank by category at each look, stacked; "" where looks at fewer than two steps were sorted."""
    looks: Sequence[tuple[int, Mapping[str, int]]] = summary.categories_by_step
    if len({step for step, _ in looks}) < MIN_POINTS or not categories_shown(summary):
        return ""
    series = category_series(categories_shown(summary))
    unit, name = _unit(max(sum(sizes.values()) for _, sizes in looks))
    stack = [[(step, 0.0) for step, _ in looks]]
    for category in series:
        below = stack[-1]
        stack.append(
            [(step, y + sizes.get(category, 0) / unit) for (step, sizes), (_, y) in zip(looks, below, strict=True)]
        )
    axes = axes_around(stack[0] + stack[-1], from_zero=True)
    layers = zip(series.values(), stack, stack[1:], strict=False)
    return plot(axes, f"storages found, {name}", below=[area(axes, under, upper, n) for n, under, upper in layers])


def _unit(largest: float) -> tuple[float, str]:
    units = ((1024.0**3, "GiB"), (1024.0**2, "MiB"), (1024.0, "KiB"))
    return next(((size, name) for size, name in units if largest >= size), (1.0, "bytes"))
