"""Rank numbers are written as compact ranges."""

from __future__ import annotations

import random

import pytest

from leakscope.units import listed_numbers, ranks_text


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([], ""),
        ([3], "3"),
        ([0, 1, 2, 7], "0-2, 7"),
        ([0, 1], "0, 1"),
        (range(1024), "0-1023"),
        ([n for n in range(1024) if n != 700], "0-699, 701-1023"),
        (range(7, 1024, 8), "7, 15, 23, ..., 1023"),
        ([n for n in range(1024) if n % 8 in (0, 1, 2, 3, 6)], "0-3, 6, 8-11, 14, ..., 1022"),
        ([n for n in range(1024) if n % 8 in (7, 0, 1)], "0, 1, 7-9, 15-17, ..., 1023"),
        ([n * n for n in range(30)], "0, 1, 4, 9, 16, 25, 36, 49 and 22 more"),
    ],
)
def test_numbers_are_written_compactly(numbers: list[int], text: str) -> None:
    assert listed_numbers(numbers) == text


@pytest.mark.parametrize("seed", range(50))
def test_no_number_is_lost_where_all_are_listed_and_all_are_counted_where_not(seed: int) -> None:
    chance = random.Random(seed)
    numbers = sorted(chance.sample(range(200), chance.randrange(1, 60)))
    text = listed_numbers(numbers)
    assert "..." not in text, "only what repeats is left out"
    listed, _, more = text.partition(" and ")
    spans = [[int(end) for end in part.split("-")] for part in listed.split(", ")]
    found = [number for span in spans for number in range(span[0], span[-1] + 1)]
    assert found == numbers[: len(found)]
    assert len(found) + int(more.split()[0] if more else 0) == len(numbers)


def test_one_rank_is_a_rank() -> None:
    assert ranks_text((7,)) == "rank 7" and ranks_text((0, 1, 2, 7)) == "ranks 0-2, 7"
