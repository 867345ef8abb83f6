"""Does the small line of a card tell how its bytes went, to the eye and in words?"""

from __future__ import annotations

import re

from leakscope.findings.model import Sighting
from leakscope.report.html.cards import HEIGHT, MARGIN, WIDTH, bytes_by_step, sparkline

KIB = 1024


def dots(svg: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', svg)]


def test_ranks_are_added_at_each_step_by_what_each_held_last() -> None:
    seen = [Sighting(1, 5, 30), Sighting(0, 3, 1), Sighting(0, 5, 2), Sighting(1, 9, 50)]
    assert bytes_by_step(seen) == ((3, 1), (5, 32), (9, 52))
    assert bytes_by_step([]) == ()


def test_more_bytes_stand_higher_and_later_looks_further_right() -> None:
    drawn = dots(sparkline(((2, KIB), (4, 3 * KIB), (12, 4 * KIB))))
    assert drawn[0][0] == MARGIN and drawn[-1] == (WIDTH - MARGIN, MARGIN)
    assert [x for x, _ in drawn] == sorted(x for x, _ in drawn) and drawn[1][0] < WIDTH / 2
    assert [y for _, y in drawn] == sorted((y for _, y in drawn), reverse=True)
    assert drawn[0][1] < HEIGHT - MARGIN, "what is held at the first look is not shown as nothing"


def test_memory_that_went_again_stands_lower() -> None:
    (_, high), (_, low), _ = dots(sparkline(((1, 8), (2, 0), (3, 8))))
    assert high == MARGIN and low == HEIGHT - MARGIN


def test_the_same_is_said_in_words() -> None:
    assert 'aria-label="Bytes at each look: 1.00 KiB at step 2, 3.00 KiB at step 4"' in sparkline(
        ((2, KIB), (4, 3 * KIB))
    )


def test_one_look_makes_no_line() -> None:
    assert sparkline(()) == sparkline(((3, KIB),)) == ""
    assert dots(sparkline(((3, 0), (4, 0)))), "nor does it fail where nothing is held"
