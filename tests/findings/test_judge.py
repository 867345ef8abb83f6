"""Judging a run separates leaks from plateaus, notes, old garbage and inconclusive runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.heap_text import heap_from
from support.judging import MIB, Heap, growing, items, rank_of, run_of, tensor

from leakscope.findings.grouping import group_storages
from leakscope.findings.judge import Policy, judge, measured_cut
from leakscope.findings.model import Finding, Findings, Reason, Sighting
from leakscope.run.model import Collection, Ended, HeapSnapshot, Rank, Run
from leakscope.run.rows import EndKind, RecordingEnded

STEPS = (3, 5, 9, 10)
LATER = (3, 5, 7, 9, 11, 12)
GROWING = growing("losses")


def rank(heap: Heap = GROWING, number: int = 0, **more: object) -> Rank:
    return rank_of(heap, number, **{"at": STEPS, "last": 10} | more)  # type: ignore[arg-type]


def judged(heap: Heap = GROWING, **more: object) -> Findings:
    return judge(run_of(rank(heap, **more), min_bytes=64 << 10))


def only(heap: Heap = GROWING, **more: object) -> Finding:
    (finding,) = judged(heap, **more).findings
    return finding


def with_end(one: Rank, step: int, heap: str) -> Run:
    """A run with a last snapshot of which the step is not judged."""
    return run_of(
        replace(one, heap_snapshots=(*one.heap_snapshots, HeapSnapshot(step, "end", heap_from(heap), None, 0)))
    )


def test_growth_every_few_steps_is_spread_over_all_of_them() -> None:
    every_third = lambda step: GROWING(step // 3)  # noqa: E731
    assert only(every_third, at=LATER).bytes_per_step == MIB / 3
    seen_twice = judged(every_third, at=LATER[:4])
    assert [f.severity for f in seen_twice.findings] == ["note"]
    assert (seen_twice.verdict, seen_twice.exit_status) == ("inconclusive", 0)
    assert judge(with_end(rank(every_third, at=LATER[:4]), 24, GROWING(8))).verdict == "leaks"


@pytest.mark.parametrize(("step", "items", "verdict"), [
    (16, 10, "clean"), (16, 16, "leaks"), (16, 0, "leaks"), (11, 10, "leaks"),
])  # fmt: skip
def test_what_is_no_larger_at_the_end_has_plateaued(step: int, items: int, verdict: str) -> None:
    assert judge(with_end(rank(), step, GROWING(items) if items else "")).verdict == verdict


@pytest.mark.parametrize(("items", "leaks"), [(24, False), (25, True)])
def test_growth_of_half_its_rate_up_to_the_end_is_confirmed_against_the_counters(items: int, leaks: bool) -> None:
    one = rank(last=40, counted=lambda step: (100 + min(step, 10)) * MIB)
    assert (judge(with_end(one, 40, GROWING(items))).verdict == "leaks") is leaks


def test_a_rank_without_steps_is_judged_by_the_snapshots_of_its_peers() -> None:
    one = rank(at=(3, 5, 9, 9))
    peer = replace(
        one, steps=(), heap_snapshots=tuple(replace(snapshot, occasion="peer") for snapshot in one.heap_snapshots)
    )
    assert judge(run_of(peer, rank(lambda _: GROWING(1), 1))).verdict == "leaks"


@pytest.mark.parametrize("ended", [Ended(EndKind.KILLED, 137, 10), Ended(EndKind.HUNG, 124, 1)])
def test_a_run_that_was_killed_or_hung_is_not_clean(ended: Ended) -> None:
    still = [rank(lambda _: GROWING(1), number) for number in (0, 1)]
    assert judge(run_of(*still)).verdict == "clean"
    assert judge(run_of(replace(still[0], ended=ended), still[1])).verdict == "inconclusive"


def test_a_list_that_grows_is_a_leak() -> None:
    found, finding = judged(), only()
    assert (found.verdict, found.exit_status, finding.rule, finding.freed_by) == ("leaks", 23, "step-growth", "program")
    assert (finding.bytes_per_step, finding.retained_bytes, finding.count) == (MIB, 10 * MIB, 10)
    assert finding.cut is not None
    assert (finding.cut.written, finding.cut.frees_bytes) == ("train.losses", 10 * MIB)


def test_a_plateau_is_no_leak_and_little_growth_a_note() -> None:
    at_rest = judged(lambda step: GROWING(min(step, 6)))
    assert (at_rest.verdict, at_rest.findings) == ("clean", ())
    little = judged(growing(size=4))
    assert ([f.severity for f in little.findings], little.verdict, little.exit_status) == (["note"], "clean", 0)
    assert (little.why.reason, little.why.count, little.why.horizon) == (Reason.LITTLE_GREW, 1, 0)
    still = judged(lambda _: GROWING(1)).why
    assert (still.reason, still.count, still.notes, still.garbage, still.freed_late) == (
        Reason.NOTHING_GREW,
        0,
        0,
        0,
        0,
    )


def test_too_few_snapshots_are_inconclusive_and_those_of_the_warm_up_are_not_judged() -> None:
    assert judged(at=(3, 5)).verdict == "inconclusive"
    assert judge(Run((), (), 1, "cpu", "", "")).verdict == "inconclusive"
    assert judged(at=(1, 2, 3)).findings == ()


def test_memory_that_is_only_counted_is_never_called_proved() -> None:
    one = rank()
    (finding,) = judge(run_of(one)).findings
    proving = run_of(replace(one, proved={finding.fingerprint: 10 * MIB}))
    (proved,) = judge(proving).findings
    assert proved.cut is not None and proved.cut.proved_bytes == 10 * MIB
    seen_by_two = replace(finding, sightings=(*finding.sightings, Sighting(1, 3, MIB)))
    of_two = replace(seen_by_two, cut=measured_cut(seen_by_two, proving))
    assert of_two.cut is not None and of_two.cut.proved_bytes is None  # the other rank did not answer
    less = measured_cut(finding, run_of(replace(one, proved={finding.fingerprint: 9 * MIB})))
    assert less is not None and less.proved_bytes == 9 * MIB
    only_counted = replace(finding, counted_bytes=MIB)
    counted = replace(only_counted, cut=measured_cut(only_counted, proving))
    assert counted.cut is not None and counted.cut.proved_bytes is None


def test_two_ranks_with_one_leak_are_one_finding() -> None:
    (finding,) = judge(run_of(rank(), rank(number=1))).findings
    assert finding.ranks == (0, 1) and len(finding.sightings) == 8
    assert (finding.bytes_per_step, finding.retained_bytes) == (2 * MIB, 20 * MIB)
    assert finding.cut is not None and finding.cut.frees_bytes == 20 * MIB


def of_block(block: int) -> Heap:
    """Four blocks, of which one keeps tensors."""
    blocks = "".join(
        f"list blocks -> [{k}] -> object Block#{k}\nobject Block#{k} -> .seen -> list seen{k}\n" for k in range(4)
    )
    return lambda step: f"module train -> .blocks -> list blocks\n{blocks}" + items(f"list seen{block}", step)


def test_one_item_of_many_is_written_with_its_number_where_it_is_the_same_on_every_rank() -> None:
    for blocks, written in (((2, 2), "train.blocks[2].seen"), ((2, 3), "train.blocks[i].seen")):
        (finding,) = judge(run_of(*(rank(of_block(block), number) for number, block in enumerate(blocks)))).findings
        assert finding.ranks == (0, 1) and finding.cut is not None and finding.cut.written == written
        assert [hop.reference for hop in finding.trace][1] == written.removeprefix("train.blocks").removesuffix(".seen")


def test_the_fingerprint_depends_on_no_index_size_or_rank() -> None:
    shifted = lambda step: "frame main -> local x -> object x\n" + GROWING(step)  # noqa: E731
    alike = (rank(), rank(growing("losses", 2 * MIB), 3), rank(shifted))
    assert len({judge(run_of(one)).findings[0].fingerprint for one in alike}) == 1
    assert only(growing("outputs")).fingerprint != only().fingerprint


def test_suppressed_and_known_findings_are_listed_apart() -> None:
    recorded, name = run_of(rank()), only().fingerprint
    for options in ({"suppress": [name]}, {"suppress": ["step-growth"]}, {"baseline": [name]}):
        found = judge(recorded, Policy(**options))
        assert (found.verdict, found.findings, len(found.suppressed)) == ("clean", (), 1)


CYCLE = """
function f freed=1 -> closure f -> function f
function f -> closure t -> tensor t freed=1
tensor t -> storage -> storage s 8388608 freed=1
"""


def test_garbage_that_comes_back_after_a_full_collection_is_a_leak_and_old_garbage_is_none() -> None:
    one = rank(lambda _: CYCLE)
    assert judge(run_of(one)).findings == ()
    full = (Collection(2, 0.1, 5, MIB),)
    collected = tuple(replace(step, collections=full if step.number in (4, 8) else ()) for step in one.steps)
    again = judge(run_of(replace(one, steps=collected)))
    assert (again.verdict, [f.rule for f in again.findings]) == ("leaks", ["tensor-cycle"])


@pytest.mark.parametrize("first", [5, 9, 10])
def test_garbage_that_came_once_is_no_growth(first: int) -> None:
    assert judged(lambda step: CYCLE if step >= first else "").findings == ()


def test_a_cycle_is_the_same_wherever_the_walk_began() -> None:
    def keys(text: str) -> set[tuple[str, ...]]:
        return {group.key for group in group_storages(heap_from(text))}

    edges = [
        "object A freed=1 -> .b -> object B freed=1",
        "object B freed=1 -> .a -> object A freed=1",
        "object B freed=1 -> .t -> tensor t freed=1",
    ]
    memory = "tensor t -> storage -> storage s 64 freed=1"
    one, other = ("\n".join([*edges[k:], *edges[:k], memory]) for k in (0, 1))
    assert keys(one) == keys(other)


def bound(method: str, count: int) -> str:
    """Objects that hold methods of their own by `.score`, one each, stored at one line."""
    text = ""
    for k in range(count):
        own = f"network Head#{method}{k}"
        text += f"{own} freed=1 where=head.py:7 -> .score -> method {method}#{k} freed=1\n"
        text += f"method {method}#{k} -> .__self__ -> {own}\n{own} -> .t -> {tensor(f'{method}{k}', freed='freed=1')}"
    return text


def test_cycles_that_one_line_closes_are_one_leak() -> None:
    finding = only(lambda step: bound("cosine", step) + bound("dot", step))
    assert finding.cut is not None and finding.cut.where == "head.py:7"
    assert (finding.count, finding.cut.frees_bytes, finding.bytes_per_step) == (20, 20 * MIB, 2 * MIB)


def waiting(calls: int, each: int = 1) -> str:
    return "".join(
        f"frame wait#{call} -> local rows -> list rows{call}\n{items(f'list rows{call}', each)}"
        for call in range(calls)
    )


def test_calls_that_pile_up_are_told_from_calls_whose_lists_grow() -> None:
    piles, grows = only(waiting), only(lambda step: waiting(3, each=step))
    assert (piles.rule, grows.rule) == ("frame-hold", "step-growth")
    assert piles.cut is not None and piles.cut.frees_bytes == 10 * MIB
    assert grows.cut is not None and (grows.cut.reference, grows.cut.frees_bytes) == ("local rows", 30 * MIB)
    assert judged(lambda _: waiting(3, each=2)).findings == ()


def caught(count: int) -> str:
    """Exceptions in a list that the frame of each one's traceback has as well."""
    return "frame main -> local errors -> list errors\n" + "".join(
        f"list errors -> [{k}] -> exception E#{k}\nexception E#{k} -> .__traceback__ -> object traceback{k}\n"
        f"object traceback{k} -> .tb_frame -> object frame{k}\nobject frame{k} -> local errors -> list errors\n"
        f"object frame{k} -> local x -> {tensor(f't{k}')}"
        for k in range(count)
    )


def test_what_leads_back_to_its_own_list_is_freed_when_the_list_is_emptied() -> None:
    finding = only(caught)
    assert finding.cut is not None and (finding.rule, finding.cut.written) == ("frame-hold", "errors[i] in main()")
    assert finding.cut.frees_bytes == finding.retained_bytes == 10 * MIB
    assert [hop.reference for hop in finding.trace if hop.frees_bytes == 10 * MIB] == ["[i]"]


def test_a_list_on_a_tensor_grows_and_not_the_tensor() -> None:
    finding = only(lambda step: f"module train -> .t -> {tensor('t', 8)}tensor t -> .rows -> list rows\n" + items(
        "list rows", step
    ))  # fmt: skip
    assert (finding.count, finding.retained_bytes) == (10, 10 * MIB)
    assert finding.cut is not None and (finding.cut.reference, finding.cut.frees_bytes) == (".rows", 10 * MIB)


def test_a_list_on_a_node_behind_a_tensor_is_a_leak() -> None:
    above = "module train -> .t -> tensor t\ntensor t -> .grad_fn -> node keep\nnode keep -> .rows -> list rows\n"
    finding = only(lambda step: above + items("list rows", step))
    assert finding.severity == "leak" and finding.cut is not None and finding.cut.frees_bytes == 10 * MIB


def hooked(outputs: int, hooks: int) -> str:
    return "module train -> .outputs -> list outputs\n" + "".join(
        f"list outputs -> [{k}] -> tensor o{k}\ntensor o{k} -> hook -> dict hooks{k} {hooks}\n"
        + "".join(
            f"dict hooks{k} -> [{n}] -> function f{k}x{n}\nfunction f{k}x{n} -> closure scale -> {tensor(f't{k}x{n}')}"
            for n in range(hooks)
        )
        for k in range(outputs)
    )


def test_hooks_pile_up_on_one_tensor_and_not_on_many() -> None:
    many_tensors, many_hooks = only(lambda step: hooked(step, 1)), only(lambda step: hooked(1, step))
    assert (many_tensors.rule, many_hooks.rule) == ("step-growth", "hook-pileup")
    assert many_tensors.cut is not None and many_tensors.cut.reference == ".outputs"
    assert many_hooks.see is None  # no pipeline


def gap(
    at: tuple[int, ...], counted: tuple[float, ...], heap: Heap = lambda _: "module train -> .x -> tensor x"
) -> Rank:
    """A rank of which so many MiB were counted at its snapshots, and nothing at its steps."""
    return rank_of(heap, at=at, last=at[-1], seen=lambda step: round(counted[at.index(step)] * MIB))


@pytest.mark.parametrize(
    ("at", "counted", "severities"),
    [
        (STEPS, (10, 12, 16, 17), ["leak"]),
        (STEPS, (10, 17.5, 17.8, 17.9), ["note"]),  # it rose once
        (STEPS, (10, 10.3, 10.9, 30), ["note"]),
        (LATER, (30, 10, 11, 12, 13, 14), ["leak"]),  # what is released once hides no growth after it
        (LATER, (30, 10, 11, 12, 13, 9), []),
    ],
)
def test_a_gap_is_a_leak_where_it_goes_on(
    at: tuple[int, ...], counted: tuple[float, ...], severities: list[str]
) -> None:
    found = judge(run_of(gap(at, counted))).findings
    assert [(f.rule, f.severity) for f in found] == [("native-hold", severity) for severity in severities]


def test_a_gap_while_shapes_are_new_at_each_snapshot_is_a_note() -> None:
    for shapes, severity, verdict in (((1, 2, 3, 4), "note", "inconclusive"), ((1, 2, 3, 3), "leak", "leaks")):
        heap = lambda step, at=shapes: f"module train -> .x -> tensor x{at[STEPS.index(step)]}"  # noqa: E731
        found = judge(run_of(gap(STEPS, (13, 15, 19, 20), heap)))
        assert ([f.severity for f in found.findings], found.verdict) == ([severity], verdict)


def test_counts_of_two_devices_make_no_gap() -> None:
    """The script put its accelerator to use after two snapshots: until then the host's bytes were counted."""
    one = gap(STEPS, (10, 12, 40, 60))
    snapshots = (
        replace(snapshot, counted_on="cpu" if snapshot.step < 9 else "cuda") for snapshot in one.heap_snapshots
    )
    assert judge(run_of(replace(one, heap_snapshots=tuple(snapshots)))).findings == ()


def test_a_recording_that_ended_before_its_script_is_not_judged_clean() -> None:
    whole = rank(lambda _: GROWING(2))
    lost = replace(whole, recording_ended=(RecordingEnded(10, "RuntimeError: no such thing"),))
    seen_to_the_end = replace(
        lost, heap_snapshots=(*lost.heap_snapshots, replace(lost.heap_snapshots[-1], occasion="end"))
    )
    growing_on = replace(lost, heap_snapshots=rank().heap_snapshots)
    verdicts = [judge(run_of(one)).verdict for one in (whole, lost, seen_to_the_end, growing_on)]
    assert verdicts == ["clean", "inconclusive", "clean", "leaks"]
    of_ranks = [judge(run_of(one)).ranks[0].verdict for one in (whole, lost, seen_to_the_end)]
    assert of_ranks == ["clean", "inconclusive", "clean"]
