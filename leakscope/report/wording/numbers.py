"""Counts as words: `2 ranks`, `0-2, 7`."""

from __future__ import annotations


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
