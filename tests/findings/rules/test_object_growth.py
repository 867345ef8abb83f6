"""Rule `object-growth` reports growing Python objects once and respects bounds and thresholds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.heap_text import heap_from

from leakscope.findings import judge
from leakscope.findings.model import Finding, Findings, LineKind, by_kind
from leakscope.findings.rules.object_growth import Collects, ObjectFacts
from leakscope.run.model import Ended, HeapSnapshot, Rank, Run, Step
from leakscope.run.rows import EndKind, GainingContainer, Occasion

KIB = 1024
STEPS = (3, 5, 7, 9, 11)
IN_A_LIST = "frame main -> local log -> list log {items}"


def looks(
    gained: tuple[float, ...], heap: str = IN_A_LIST, counted: float = 1.0, item: str = "str"
) -> tuple[HeapSnapshot, ...]:
    """One at each of the steps, at which the container has gained so many KiB, an item each 100."""
    return tuple(
        HeapSnapshot(
            step=step,
            occasion=Occasion.STEP,
            heap=heap_from(heap.format(items=size // 100)),
            counted_bytes=(50 << 20) + round(size * KIB * counted),
            explained_bytes=0,
            containers=(
                GainingContainer(
                    1, int(size // 100), int(size // 100), round(size * KIB), round(size * KIB * counted), item
                ),
            )
            if size
            else (),
        )
        for step, size in zip(STEPS, gained, strict=True)
    )


def judged(seen: tuple[HeapSnapshot, ...]) -> Findings:
    steps = tuple(Step(number, 0.1, None, None) for number in range(1, 12))
    rank = Rank(0, steps, seen, Ended(EndKind.FINISHED, 0, 11))
    return judge(Run(("train.py",), (rank,), 1, "cpu", "2.13.0", "0.1.0", warmup=2))


def only(seen: tuple[HeapSnapshot, ...]) -> Finding:
    (finding,) = judged(seen).findings
    return finding


EVEN = (0, 400, 800, 1200, 1600)


def test_what_is_gained_each_step_is_a_leak_and_no_gap() -> None:
    finding = only(looks(EVEN))

    assert (finding.rule, finding.severity, finding.bytes_per_step) == ("object-growth", "leak", 200 * KIB)
    assert isinstance(finding.facts, ObjectFacts)
    assert (finding.facts.items_per_step, finding.facts.collects) == (2.0, Collects.LIST)
    assert finding.cut is not None
    assert (finding.cut.written, finding.cut.frees_bytes) == ("log in main()", 1600 * KIB)
    assert (finding.facts.item, finding.subject) == ("str", "log in main()")


def test_all_that_was_counted_stands_on_its_line() -> None:
    findings = judged(looks(EVEN, counted=0.5))
    lines = by_kind(line for interval in findings.ledgers[0] for line in interval.lines)

    assert (lines[LineKind.LEAKS], lines[LineKind.UNATTRIBUTED]) == (800 * KIB, 0)


def test_where_nothing_is_counted_all_that_was_gained_stands_on_its_line() -> None:
    findings = judged(tuple(replace(look, counted_bytes=None) for look in looks(EVEN, counted=0.25)))
    (line,) = {line.kind: line for interval in findings.ledgers[0] for line in interval.lines if line.bytes}.values()

    assert line.kind == LineKind.LEAKS
    assert [interval.grown for interval in findings.ledgers[0]] == [400 * KIB] * 4


def test_what_arenas_serve_is_a_leak_though_nothing_is_counted() -> None:
    assert judged(looks(EVEN, counted=0.0)).verdict == "leaks"


@pytest.mark.parametrize(
    "gained", [(0, 0.1, 0.2, 0.3, 0.4), (0, 0, 0, 0, 0), (0, 600, 600, 600, 600), (0, 900, 0, 700, 100)]
)
def test_numbers_and_what_came_to_rest_or_was_let_go_of_are_told_as_no_growth(gained: tuple[float, ...]) -> None:
    findings = judged(looks(gained))

    assert (findings.verdict, findings.findings) == ("clean", ())


def test_a_little_is_a_note() -> None:
    assert only(looks((0, 6, 12, 18, 24))).severity == "note"


def test_a_bound_that_is_not_reached_is_a_note_with_its_size_when_full() -> None:
    finding = only(looks(EVEN, "frame main -> local log -> list log {items} maxlen=100"))

    assert finding.severity == "note" and finding.settled_by is not None


def test_what_a_tensors_cut_frees_as_well_is_told_with_it() -> None:
    kept = "\n".join(
        (
            IN_A_LIST,
            "list log -> [0] -> tensor a",
            "tensor a -> storage -> storage a {items}00000",
            "list log -> [1] -> tensor b",
            "tensor b -> storage -> storage b {items}00000",
        )
    )

    finding = only(looks(EVEN, kept))

    assert finding.rule == "step-growth"
    assert [beside.bytes for beside in finding.beside] == [1600 * KIB]


def test_the_fingerprint_is_the_same_whatever_is_gained() -> None:
    assert only(looks(EVEN)).fingerprint == only(looks(EVEN, item="dict of int and float")).fingerprint


def test_what_an_object_gains_under_new_names_is_told_as_attributes() -> None:
    finding = only(looks(EVEN, "frame main -> local agent -> object Agent {items}"))

    assert isinstance(finding.facts, ObjectFacts) and finding.facts.collects == Collects.ATTRIBUTES
    assert finding.subject == "agent in main()"


def test_a_cache_that_filled_at_once_and_gains_a_trickle_is_a_note() -> None:
    assert only(looks((0, 0, 0, 1200, 1202))[2:]).severity == "note"
