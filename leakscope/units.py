"""Formats and parses bytes, durations, shares and lists of numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_KIB = 1024
"""Bytes in a KiB, and the factor between suffixes."""
_MILLISECOND = 1e-3
"""Seconds in a millisecond."""
_LONG = 120.0
"""Seconds from which a duration is written in minutes."""
_SUFFIXES = ("B", "KiB", "MiB", "GiB", "TiB")
_LISTED = 8
"""Maximum ranges of numbers that a sentence lists in full. Heuristic."""
_LONGEST_PERIOD = 4
"""Maximum ranges after which a pattern may repeat, as ranks of a pipeline stage do in each replica. Heuristic."""
_FACTORS = {"": 1, "b": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}


def bytes_text(count: float | None) -> str:
    """`2097152` as `2.00 MiB`; below one KiB whole bytes; None as `unknown`."""
    if count is None:
        return "unknown"
    size = float(count)
    for suffix in _SUFFIXES:
        written = f"{size:.0f}" if suffix == "B" else f"{size:.2f}"
        if abs(float(written)) < _KIB or suffix == _SUFFIXES[-1]:  # as written: 1023.999 KiB is 1.00 MiB
            return f"{written} {suffix}"
        size /= _KIB
    raise AssertionError("unreachable")


def seconds_text(seconds: float | None) -> str:
    """`0.0123` as `12.3 ms`; None as `unknown`."""
    if seconds is None:
        return "unknown"
    if seconds < _MILLISECOND:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < _LONG:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min"


def parse_share(text: str | float) -> float:
    """`"2%"` or `0.02` as a share between 0 and 1, the same on the command line and in Python.

    A bare number of 1 or more is refused where it is typed: `1` could be meant as 1% or as all.

    Raises ValueError with a sentence that shows the accepted form.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(%?)\s*", str(text))
    if match is None:
        raise ValueError(f"cannot read {text!r} as a share; write it like 2% or 0.02")
    number = float(match.group(1))
    share = number / 100 if match.group(2) else number
    if isinstance(text, str) and not match.group(2) and number >= 1:
        raise ValueError(f"{text!r} is not a share below 1; write {number:g}% or {number / 100:g}")
    if share > 1:
        raise ValueError(f"{text!r} is more than 100%; write it like 2% or 0.02")
    return share


def parse_bytes(text: str | int) -> int:
    """`"1 MB"`, `"64KiB"` or `4096` as a count of bytes (1 KB and 1 KiB are both 1024).

    Raises ValueError with a sentence that shows the accepted form.
    """
    if isinstance(text, int) and text >= 0:
        return text
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?\s*", str(text).lower())
    if match is None:
        raise ValueError(f"cannot read {text!r} as a size; write it like 4096, 64KiB or 1 MB")
    return round(float(match.group(1)) * _FACTORS[match.group(2)])


def plural(count: int, noun: str) -> str:
    """`1 rank`, `2 ranks`, `3 storages`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def listed_numbers(numbers: Iterable[int], most: int = _LISTED) -> str:
    """`0, 1, 2, 7` as `0-2, 7`; many as `4, 12, 20, ..., 1020` where they repeat, else `0-3, 5, 8 and 120 more`.

    `most`: maximum ranges that are listed in full.
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
    """The first of these ranks in each group, and the number of others in it; ranks without a group stay alone."""
    among = set(ranks)
    of_groups = [[rank for rank in group if rank in among] for group in groups]
    grouped = {rank for group in groups for rank in group}
    alone = [[rank] for rank in among - grouped]
    return dict(sorted((group[0], len(group) - 1) for group in (*of_groups, *alone) if group))


def like_text(rank: int, more: int) -> str:
    """`rank 4`, or `rank 4, one of 128 alike` if it stands for a group."""
    return f"rank {rank}, one of {more + 1} alike" if more else f"rank {rank}"


def _runs(numbers: Iterable[int]) -> list[list[int]]:
    """[first, last] of each range without a gap."""
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
    """Whether each range is that of one period before, shifted by a constant."""
    if len(runs) < 2 * period:
        return False
    on = runs[period][0] - runs[0][0]
    return all([a + on, b + on] == later for (a, b), later in zip(runs, runs[period:], strict=False))


def bytes_span(sizes: Iterable[float]) -> str:
    """`1.20 to 1.40 MiB`, `900.00 KiB to 1.40 MiB`, or one figure if they read alike; "" if there are none."""
    ordered = sorted(sizes)
    if not ordered:
        return ""
    least, most = bytes_text(ordered[0]), bytes_text(ordered[-1])
    if least == most:
        return most
    number, _, unit = least.rpartition(" ")
    return f"{number if most.endswith(f' {unit}') else least} to {most}"


def count_span(counts: Iterable[float]) -> str:
    """`12 to 14`, or `12` if all are equal; "" if there are none."""
    ordered = sorted(counts)
    if not ordered:
        return ""
    return f"{ordered[0]:.0f}" if ordered[0] == ordered[-1] else f"{ordered[0]:.0f} to {ordered[-1]:.0f}"
