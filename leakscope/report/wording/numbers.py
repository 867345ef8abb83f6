"""Counts as words: `2 ranks`, `0-2, 7`, `1.20 to 1.40 MiB`."""

from __future__ import annotations

from collections.abc import Iterable

from leakscope.units import bytes_text


def plural(count: int, noun: str) -> str:
    """`1 rank`, `2 ranks`, `3 storages`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def listed_numbers(numbers: tuple[int, ...]) -> str:
    """`0, 1, 2, 7` as `0-2, 7`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" if b > a + 1 else f"{a}, {b}" for a, b in runs)


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
