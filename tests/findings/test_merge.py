"""Which findings are one leak, and is that which frees all of them what is told?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from support.heap_text import heap_from

from leakscope.findings.judge import judge
from leakscope.findings.model import Finding, Sighting
from leakscope.record.model import Ended, Look, Rank, Run, Step
from leakscope.report.wording import title

STEPS = (3, 5, 9, 10)
MIB = 1 << 20


def hooked(name: str, size: int, more: str = "") -> str:
    """An object with a hook of its own that is a method of itself, and a tensor where it has a size."""
    text = f"""
        object {name} freed=1 -> ._hooks -> dict of-{name} freed=1
        dict of-{name} -> [0] -> method hook-{name} freed=1
        method hook-{name} -> .__self__ -> object {name}"""
    if size:
        text += f"""
        object {name} -> .weight -> tensor {name} freed=1
        tensor {name} -> storage -> storage {name} {size} freed=1"""
    return f"{text}\n{more}\n"


def parents(count: int, of_parent: int, of_child: int, alone: int = 0) -> str:
    """Parents that each have a child, and parents that have none."""
    text = ""
    for k in range(count):
        child = f"object parent#{k} -> .child -> object child#{k}"
        text += hooked(f"parent#{k}", of_parent) + hooked(f"child#{k}", of_child, child)
    return text + "".join(hooked(f"parent#alone{k}", of_parent) for k in range(count * alone))


def found_in(heap: Callable[[int], str]) -> tuple[Finding, ...]:
    looks = tuple(Look(step, "step", heap_from(heap(step)), None, 0) for step in STEPS)
    steps = tuple(Step(step, 0.1, None, None) for step in range(1, 11))
    rank = Rank(0, steps, looks, Ended("finished", 0, 10))
    return judge(Run(("train.py",), (rank,), 1, "cpu", "2.13.0", "0", min_bytes=64 * 1024)).findings


@pytest.mark.parametrize(("of_parent", "of_child"), [(MIB, 2 * MIB), (2 * MIB, MIB)])
def test_a_parent_that_is_freed_by_part_of_its_childs_cut_is_the_same_leak(of_parent: int, of_child: int) -> None:
    (finding,) = found_in(lambda count: parents(count, of_parent, of_child))
    assert finding.cut is not None and len(finding.cut.references) == 2
    assert finding.cut.frees_bytes == finding.retained_bytes == 10 * 3 * MIB
    assert (finding.count, finding.bytes_per_step) == (20, 3 * MIB)
    assert [s.bytes for s in finding.sightings] == [step * 3 * MIB for step in STEPS]
    assert "two references close it" in title(finding) and "cut both" in title(finding)


def test_parents_of_which_only_some_have_a_child_are_a_leak_of_their_own() -> None:
    small, large = sorted(found_in(lambda count: parents(count, MIB, MIB, alone=1)), key=lambda f: f.retained_bytes)
    assert small.cut is not None and len(small.cut.references) == 2 and small.cut.frees_bytes == 10 * MIB
    assert large.cut is not None and len(large.cut.references) == 1 and large.cut.frees_bytes == 20 * MIB


def test_what_a_leak_frees_does_not_count_what_only_a_note_would_free() -> None:
    leak, note = sorted(found_in(lambda count: parents(count, MIB, 1024)), key=lambda f: -f.retained_bytes)
    assert [leak.severity, note.severity] == ["leak", "note"]
    assert leak.cut is not None and len(leak.cut.references) == 1
    assert leak.cut.frees_bytes == leak.retained_bytes == 10 * MIB


def test_garbage_is_freed_late_where_it_grows_on_no_rank() -> None:
    (finding,) = found_in(lambda count: parents(count, 0, MIB))
    assert not finding.freed_late
    ranks = (Sighting(0, 3, 3 * MIB), Sighting(0, 9, 9 * MIB), Sighting(1, 3, 3 * MIB), Sighting(1, 10, 10 * MIB))
    assert not replace(finding, sightings=ranks, bytes_per_step=2 * MIB).freed_late
    assert replace(finding, sightings=tuple(replace(s, bytes=MIB) for s in ranks)).freed_late
    assert not replace(finding, sightings=ranks[:1]).freed_late
