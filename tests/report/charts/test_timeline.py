"""Are late messages seen?"""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

from support import examples
from support.recorded_rows import rows

from leakscope.report.html.timeline import ROWS_SHOWN, timeline

SVG = "{http://www.w3.org/2000/svg}"


def bars(svg: str, kind: str) -> list[tuple[float, float]]:
    tree = ElementTree.fromstring(svg)
    found = [rect for rect in tree.iter(f"{SVG}rect") if rect.get("class") == kind]
    return [(float(rect.get("x", "0")), float(rect.get("width", "0"))) for rect in found]


def test_two_steps_before_the_last_are_shown() -> None:
    drawn = timeline(examples.comm_operations(step_count=6))
    assert drawn is not None and drawn.steps == (4, 5)
    assert "step 4, microbatch 0" in drawn.svg and "step 6" not in drawn.svg


def test_a_short_run_is_shown_whole() -> None:
    drawn = timeline(examples.comm_operations(step_count=1))
    assert drawn is not None and drawn.steps == (1,)


def test_bars_follow_one_another_in_proportion() -> None:
    drawn = timeline(examples.comm_operations(step_count=1, microbatches=1, late=False))
    assert drawn is not None and drawn.alive == 0
    (flight, _), (held, _), (ghost, _) = (bars(drawn.svg, kind) for kind in ("flight", "held", "ghost"))
    assert abs(flight[0] + flight[1] - held[0]) < 0.2 and abs(held[0] + held[1] - ghost[0]) < 0.2
    assert abs(held[1] / flight[1] - 1) < 0.01  # 3 ms in flight, 3 ms held by Python
    assert abs(ghost[1] / flight[1] - 14 / 3) < 0.05  # 14 ms held by nothing that Python sees
    assert "polygon" not in drawn.svg


def test_a_buffer_that_never_dies_runs_to_the_edge_with_an_arrow() -> None:
    drawn = timeline(examples.comm_operations(step_count=1, microbatches=1, late=True))
    assert drawn is not None and drawn.alive == 1
    assert len(re.findall('<polygon class="on"', drawn.svg)) == 1


def test_unknown_moments_are_no_error() -> None:
    (_, sent) = examples.comm_operations(step_count=1, microbatches=1)
    unseen = replace(sent, waited=None, completed=None, tensor_died=None, storage_died=None)
    drawn = timeline([unseen, replace(sent, issued=float("nan"))])
    assert rows(wire=[{"id": 1, "direction": "send"}])["operations"] == (), "one that nobody knows the begin of is none"
    assert drawn is not None and drawn.alive == 1 and "storage died: not seen" in drawn.svg


def test_no_rows_no_timeline() -> None:
    assert timeline(()) is None


def test_what_finds_no_room_is_counted() -> None:
    drawn = timeline(examples.comm_operations(step_count=1, microbatches=100))
    assert drawn is not None and drawn.left_out == 200 - ROWS_SHOWN


def test_hostile_rows_stay_text() -> None:
    drawn = timeline(examples.hostile()[0].ranks[0].operations)
    assert drawn is not None and "<img" not in drawn.svg
    ElementTree.fromstring(drawn.svg)
