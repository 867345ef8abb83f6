"""Counts as words: `2 ranks`, `0-2, 7`, `1.20 to 1.40 MiB`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from leakscope.units import bytes_text

_LISTED = 8
"""Rows of numbers, chosen, that a sentence lists whole."""
_LONGEST_PERIOD = 4
"""Rows of numbers, chosen, after which they are seen to repeat: ranks of a stage that each replica has."""


def plural(count: int, noun: str) -> str:
    """`1 rank`, `2 ranks`, `3 storages`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def listed_numbers(numbers: Iterable[int], most: int = _LISTED) -> str:
    """`0, 1, 2, 7` as `0-2, 7`; many as `4, 12, 20, ..., 1020` where they repeat, else `0-3, 5, 8 and 120 more`.

    `most`: rows of numbers that are listed whole.
    """
    runs = _runs(numbers)
    if len(runs) <= most:
        return ", ".join(map(_run_text, runs))
    period = next((period for period in range(1, _LONGEST_PERIOD + 1) if _repeat(runs[1:-1], period)), 0)
    if period:
        shown = max(3, 2 * period)
        return f"{', '.join(map(_run_text, runs[:shown]))}, ..., {_run_text(runs[-1])}"
    more = sum(last - first + 1 for first, last in runs[most - 1 :])
    return f"{', '.join(map(_run_text, runs[: most - 1]))} and {more} more"


def ranks_text(numbers: Iterable[int]) -> str:
    """`rank 7`, `ranks 0-2, 7`."""
    listed = tuple(numbers)
    return f"{'rank' if len(listed) == 1 else 'ranks'} {listed_numbers(listed)}"


def one_of_each(ranks: Iterable[int], groups: Sequence[Sequence[int]]) -> dict[int, int]:
    """Of those ranks the first one of each group, and how many more of its group are among them; without groups all."""
    among = set(ranks)
    of_groups = [[rank for rank in group if rank in among] for group in groups]
    grouped = {rank for group in groups for rank in group}
    alone = [[rank] for rank in among - grouped]
    return dict(sorted((group[0], len(group) - 1) for group in (*of_groups, *alone) if group))


def like_text(rank: int, more: int) -> str:
    """`rank 4`, or `rank 4, one of 128 alike` where it is told in place of its whole group."""
    return f"rank {rank}, one of {more + 1} alike" if more else f"rank {rank}"


def _runs(numbers: Iterable[int]) -> list[list[int]]:
    """[first, last] of each row of numbers without a gap."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return runs


def _run_text(run: Sequence[int]) -> str:
    first, last = run
    return str(first) if first == last else f"{first}{', ' if last == first + 1 else '-'}{last}"


def _repeat(runs: Sequence[Sequence[int]], period: int) -> bool:
    """Whether each row of numbers is that of one period before, moved on by the same."""
    if len(runs) < 2 * period:
        return False
    on = runs[period][0] - runs[0][0]
    return all([a + on, b + on] == later for (a, b), later in zip(runs, runs[period:], strict=False))


def bytes_span(sizes: Iterable[float]) -> str:
    """`1.20 to 1.40 MiB`, `900.00 KiB to 1.40 MiB`, or one figure where they read alike; "" of none."""
    ordered = sorted(sizes)
    if not ordered:
        return ""
    least, most = bytes_text(ordered[0]), bytes_text(ordered[-1])
    if least == most:
        return most
    number, _, unit = least.rpartition(" ")
    return f"{number if most.endswith(f' {unit}') else least} to {most}"


def count_span(counts: Iterable[float]) -> str:
    """`12 to 14`, or `12` where all are alike; "" of none."""
    ordered = sorted(counts)
    if not ordered:
        return ""
    return f"{ordered[0]:.0f}" if ordered[0] == ordered[-1] else f"{ordered[0]:.0f} to {ordered[-1]:.0f}"
