"""The communication timeline shows the last steps, the lifetimes of buffers and late operations."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st
from support import examples
from support.recorded_rows import rows

from leakscope.report.html.chart_data import StepEnd, axis, step_ends, timeline
from leakscope.run.model import Rank, Step
from leakscope.run.rows import CommOperation


def bars(svg: str, kind: str) -> list[tuple[float, float]]:
    tree = ElementTree.fromstring(svg)
    paths = [group.find("path") for group in tree.iter("g") if group.get("class") == kind]
    across = [
        [float(x) for x in re.findall(r"[ML] ([-\d.]+)", path.get("d", ""))] for path in paths if path is not None
    ]
    return [(min(xs), max(xs) - min(xs)) for xs in across]


def test_two_steps_before_the_last_are_shown() -> None:
    drawn = timeline(examples.comm_operations(step_count=6))
    assert drawn is not None and drawn.steps == (4, 5)
    assert "step 4, turn 1" in drawn.svg and "step 6" not in drawn.svg


def test_bars_follow_one_another_in_proportion() -> None:
    drawn = timeline(examples.comm_operations(step_count=1, microbatches=1, late=False))
    assert drawn is not None and drawn.alive == 0
    (flight, _), (held, _), (ghost, _) = (bars(drawn.svg, kind) for kind in ("flight", "held", "ghost"))
    assert abs(flight[0] + flight[1] - held[0]) < 0.2 and abs(held[0] + held[1] - ghost[0]) < 0.2
    assert abs(held[1] / flight[1] - 1) < 0.01  # 3 ms in flight, 3 ms held by Python
    assert abs(ghost[1] / flight[1] - 14 / 3) < 0.05  # 14 ms held by nothing that Python sees
    assert 'class="on"' not in drawn.svg


def test_unknown_moments_are_no_error() -> None:
    (_, sent) = examples.comm_operations(step_count=1, microbatches=1)
    unseen = replace(sent, waited=None, completed=None, tensor_died=None, storage_died=None)
    drawn = timeline([unseen, replace(sent, issued=float("nan"))])
    assert rows(wire=[{"id": 1, "direction": "send"}])["operations"] == (), "one that nobody knows the begin of is none"
    assert drawn is not None and drawn.alive == 1 and drawn.rows[0].lives == ("not recorded",) * 4


# leakscope's own pauses


def stepped(operations: tuple[CommOperation, ...], pause: float) -> Rank:
    """Steps of 100 ms, as the examples have them, with a snapshot after the fourth that took `pause` seconds more."""
    later = {o.id: 0.0 if o.step <= 4 else pause for o in operations}

    def shifted(o: CommOperation) -> CommOperation:
        moments = {name: getattr(o, name) for name in ("issued", "waited", "completed", "tensor_died", "storage_died")}
        edge = 0.5
        return replace(
            o, **{k: None if v is None else v + (pause if v > edge else later[o.id]) for k, v in moments.items()}
        )

    steps = tuple(Step(n, 0.09, None, None, began=0.1 * n - 0.005 + (pause if n > 4 else 0.0)) for n in range(1, 7))
    return replace(examples.rank(0), steps=steps, operations=tuple(map(shifted, operations)))


def test_a_pause_of_leakscopes_own_takes_no_room_on_the_axis() -> None:
    operations = examples.comm_operations(step_count=6, late=False)
    usual = timeline(operations, step_ends(stepped(operations, 0.0)))
    rank = stepped(operations, 3.0)
    drawn = timeline(rank.operations, step_ends(rank))
    assert usual is not None and drawn is not None and usual.paused < 0.05 and abs(drawn.paused - 3.0) < 0.05
    assert "left out" in drawn.svg and "step 4 ends" in drawn.svg
    for before, after in zip(bars(usual.svg, "flight"), bars(drawn.svg, "flight"), strict=True):
        assert abs(after[1] - before[1]) < 0.15 * before[1] + 0.2, "operations stay as long as they were"
    assert [row.lives for row in drawn.rows] == [row.lives for row in usual.rows]


@given(st.lists(st.tuples(st.floats(0.1, 5), st.floats(0, 5)), max_size=5), st.floats(0, 30), st.floats(0, 30))
def test_later_is_never_further_left(gaps: list[tuple[float, float]], one: float, other: float) -> None:
    ends, now = [], 0.0
    for step, (worked, paused) in enumerate(gaps):
        ends.append(StepEnd(step, now + worked, now + worked + paused))
        now += worked + paused
    time = axis(0.0, 20.0, ends, 250.0, 700.0, 12.0)
    early, late = sorted((one, other))
    assert time.across(early) <= time.across(late) + 1e-6
    assert abs(time.across(20.0) - 950.0) < 1e-6 and abs(time.across(0.0) - 250.0) < 1e-6
    assert abs(time.at(time.own(one)) - time.across(one)) <= 12.0 + 1e-6
