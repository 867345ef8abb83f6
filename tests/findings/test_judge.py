"""Judging a run separates leaks from plateaus, notes, old garbage and inconclusive runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from support.heap_text import heap_from

from leakscope.findings.grouping import group_storages
from leakscope.findings.growth import series
from leakscope.findings.judge import Policy, judge, measured_cut
from leakscope.findings.model import Reason, Sighting
from leakscope.run.model import Collection, Ended, HeapSnapshot, Rank, Run, Step
from leakscope.run.rows import EndKind, RecordingEnded

STEPS = (3, 5, 9, 10)
TENSOR = 1 << 20


def losses(count: int, label: str = "list losses", size: int = TENSOR) -> str:
    text = f"module train -> .losses -> {label}\n"
    for k in range(count):
        text += f"{label} -> [{k}] -> tensor t{k}\ntensor t{k} -> storage -> storage s{k} {size}\n"
    return text


def rank(number: int, heaps: Sequence[str], full: Sequence[int] = (), steps: Sequence[int] = STEPS) -> Rank:
    looks = [HeapSnapshot(s, "step", heap_from(text), None, 0) for s, text in zip(steps, heaps, strict=True)]
    done = [Step(k, 0.1, None, None, (Collection(2, 0.1, 5, TENSOR),) if k in full else ()) for k in range(1, 11)]
    return Rank(number, tuple(done), tuple(looks), Ended("finished", 0, 10))


def run(*ranks: Rank, min_bytes: int = 64 * 1024) -> Run:
    return Run(("train.py",), ranks, len(ranks), "cpu", "2.13.0", "0", min_bytes=min_bytes)


@pytest.mark.parametrize(
    ("sizes", "grows"),
    [
        ((1, 2, 3), True),
        ((1, 2, 2), False),
        ((3, 2, 1), False),
        ((1, 3, 2, 4), False),
        ((1, 2), False),
        ((0, 0, 0), False),
    ],
)
def test_growth_is_more_at_each_of_three_looks(sizes: tuple[int, ...], grows: bool) -> None:
    steps = STEPS[: len(sizes)]
    assert series(steps, dict(zip(steps, sizes, strict=True))).grows is grows


@pytest.mark.parametrize(
    ("sizes", "grows", "certain"),
    [
        ((1, 1, 2, 3, 3, 4), True, True),  # an evaluation every three steps
        ((1, 1, 2, 3), True, False),
        ((0, 0, 1, 2, 3), True, True),  # begins late and goes on
        ((1, 2, 3, 4, 4, 4), False, True),  # a cache that is full
        ((1, 1, 2, 2, 2), False, False),
        ((1, 2, 3, 2, 3, 4), False, True),
    ],
)
def test_what_grows_every_few_steps_grows_and_what_came_to_rest_does_not(
    sizes: tuple[int, ...], grows: bool, certain: bool
) -> None:
    line = series((3, 5, 7, 9, 11, 12)[: len(sizes)], dict(zip((3, 5, 7, 9, 11, 12), sizes, strict=False)))
    assert line.grows is grows and (not grows or line.has_enough_rises is certain)


def test_growth_every_few_steps_is_spread_over_all_of_them() -> None:
    found = judge(run(rank(0, [losses(s // 3) for s in (3, 5, 7, 9, 11, 12)], steps=(3, 5, 7, 9, 11, 12))))
    (finding,) = found.findings
    assert found.verdict == "leaks" and finding.bytes_per_step == TENSOR / 3
    seen_twice = judge(run(rank(0, [losses(s // 3) for s in (3, 5, 7, 9)], steps=(3, 5, 7, 9))))
    assert [f.severity for f in seen_twice.findings] == ["note"]
    assert (seen_twice.verdict, seen_twice.exit_status) == ("inconclusive", 0)
    ended = HeapSnapshot(24, "end", heap_from(losses(8)), None, 0)
    one = rank(0, [losses(s // 3) for s in (3, 5, 7, 9)], steps=(3, 5, 7, 9))
    assert judge(run(replace(one, looks=(*one.looks, ended)))).verdict == "leaks"


def test_what_is_no_larger_at_the_end_has_come_to_rest() -> None:
    one = rank(0, [losses(s) for s in STEPS])
    ended = HeapSnapshot(16, "end", heap_from(losses(10)), None, 0)
    assert judge(run(replace(one, looks=(*one.looks, ended)))).verdict == "clean"
    for later in (
        replace(ended, heap=heap_from(losses(16))),
        replace(ended, heap=heap_from("")),
        replace(ended, step=11),
    ):
        assert judge(run(replace(one, looks=(*one.looks, later)))).verdict == "leaks"


def test_a_rank_without_steps_may_rest_between_two_looks_that_its_peers_brought_about() -> None:
    one = rank(0, [losses(s) for s in (3, 5, 9, 9)])
    peer = replace(one, steps=(), looks=tuple(replace(look, occasion="peer") for look in one.looks))
    assert judge(run(peer, rank(1, [losses(1)] * 4))).verdict == "leaks"


def test_a_rank_that_was_killed_is_no_clean_run() -> None:
    one = replace(rank(0, [losses(1)] * 4), ended=Ended("killed", 137, 10, "killed by SIGKILL"))
    found = judge(run(one, rank(1, [losses(1)] * 4)))
    assert found.verdict == "inconclusive"


def test_a_run_that_hung_is_no_clean_run() -> None:
    one = replace(rank(0, [losses(1)] * 4), ended=Ended(EndKind.HUNG, 124, 1, "no communication for 8 s"))
    found = judge(run(one, rank(1, [losses(1)] * 4)))
    assert found.verdict == "inconclusive"


def test_bytes_a_step_follow_the_steps_between_looks() -> None:
    assert series(STEPS, {3: 300, 5: 500, 9: 900, 10: 1000}).per_step == 100
    assert series(STEPS, {}).per_step == 0


def test_a_list_that_grows_is_a_leak_and_says_which_list() -> None:
    found = judge(run(rank(0, [losses(s) for s in STEPS])))
    (finding,) = found.findings
    assert (found.verdict, found.exit_status, finding.rule, finding.freed_by) == ("leaks", 23, "step-growth", "program")
    assert (finding.bytes_per_step, finding.retained_bytes, finding.count) == (TENSOR, 10 * TENSOR, 10)
    assert finding.cut is not None
    assert ".losses" in finding.cut.reference
    assert finding.cut.frees_bytes == 10 * TENSOR


def test_what_levels_off_is_no_leak() -> None:
    found = judge(run(rank(0, [losses(n) for n in (3, 5, 6, 6)])))
    assert (found.verdict, found.findings) == ("clean", ())


def test_little_growth_is_a_note_and_no_verdict() -> None:
    found = judge(run(rank(0, [losses(s, size=4) for s in STEPS])))
    assert [f.severity for f in found.findings] == ["note"]
    assert (found.verdict, found.exit_status) == ("clean", 0)
    assert found.why.reason == Reason.LITTLE_GREW


def test_too_few_looks_are_inconclusive() -> None:
    found = judge(run(rank(0, [losses(3), losses(5)], steps=(3, 5))))
    assert found.verdict == "inconclusive"
    assert judge(Run((), (), 1, "cpu", "", "")).verdict == "inconclusive"


def test_memory_that_is_only_counted_is_never_called_proved() -> None:
    one = rank(0, [losses(s) for s in STEPS])
    (finding,) = judge(run(one)).findings
    proving = run(replace(one, proved={finding.fingerprint: 10 * TENSOR}))
    (proved,) = judge(proving).findings
    assert proved.cut is not None and proved.cut.proved_bytes == 10 * TENSOR
    seen_by_two = replace(finding, sightings=(*finding.sightings, Sighting(1, 3, TENSOR)))
    of_two = replace(seen_by_two, cut=measured_cut(seen_by_two, proving))
    assert of_two.cut is not None and of_two.cut.proved_bytes is None  # the other rank did not answer
    less = measured_cut(finding, run(replace(one, proved={finding.fingerprint: 9 * TENSOR})))
    assert less is not None and less.proved_bytes == 9 * TENSOR
    only_counted = replace(finding, counted_bytes=TENSOR)
    counted = replace(only_counted, cut=measured_cut(only_counted, proving))
    assert counted.cut is not None and counted.cut.proved_bytes is None


def test_two_ranks_with_one_leak_are_one_finding() -> None:
    found = judge(run(*(rank(number, [losses(s) for s in STEPS]) for number in (0, 1))))
    (finding,) = found.findings
    assert finding.ranks == (0, 1)
    assert (finding.bytes_per_step, finding.retained_bytes) == (2 * TENSOR, 20 * TENSOR)
    assert finding.cut is not None
    assert finding.cut.frees_bytes == 20 * TENSOR
    assert len(finding.sightings) == 8


def seen_by(block: int) -> list[str]:
    held = "".join(
        f"list blocks -> [{k}] -> object Block#{k}\nobject Block#{k} -> .seen -> list seen{k}\n" for k in range(4)
    )
    texts = []
    for step in STEPS:
        own = losses(step, f"list seen{block}").partition("\n")[2]
        texts.append(f"module train -> .blocks -> list blocks\n{held}{own}")
    return texts


def test_one_item_of_many_is_told_by_its_number_where_it_is_the_same_on_every_rank() -> None:
    for blocks, told in (((2, 2), "train.blocks[2].seen"), ((2, 3), "train.blocks[i].seen")):
        (finding,) = judge(run(*(rank(number, seen_by(block)) for number, block in enumerate(blocks)))).findings
        assert finding.ranks == (0, 1) and finding.cut is not None and finding.cut.written == told
        assert [hop.reference for hop in finding.trace][1] == told.removeprefix("train.blocks").removesuffix(".seen")


def test_the_fingerprint_knows_no_index_no_size_and_no_rank() -> None:
    prints = {
        judge(run(rank(number, [shift + losses(s, size=size) for s in STEPS]), min_bytes=1)).findings[0].fingerprint
        for number, size, shift in (
            (0, TENSOR, ""),
            (3, 2 * TENSOR, ""),
            (0, TENSOR, "frame main -> local x -> object x\n"),
        )
    }
    assert len(prints) == 1
    other = judge(run(rank(0, [losses(s).replace(".losses", ".outputs") for s in STEPS]))).findings[0].fingerprint
    assert other not in prints


def test_suppressed_and_known_findings_are_listed_apart() -> None:
    recorded = run(rank(0, [losses(s) for s in STEPS]))
    fingerprint = judge(recorded).findings[0].fingerprint
    for found in (
        judge(recorded, Policy(suppress=[fingerprint])), judge(recorded, Policy(suppress=["step-growth"])),
        judge(recorded, Policy(baseline=[fingerprint])),
    ):  # fmt: skip
        assert (found.verdict, found.findings, len(found.suppressed)) == ("clean", (), 1)


def test_looks_of_the_warm_up_and_after_the_end_are_not_judged() -> None:
    looks = rank(0, [losses(n) for n in (1, 2, 3)], steps=(1, 2, 3))
    assert judge(run(looks)).findings == ()


CYCLE = """
function f freed=1 -> closure f -> function f
function f -> closure t -> tensor t freed=1
tensor t -> storage -> storage s 8388608 freed=1
"""


def test_garbage_that_comes_back_after_a_full_collection_is_a_leak_and_old_garbage_is_none() -> None:
    again = judge(run(rank(0, [CYCLE] * len(STEPS), full=(4, 8))))
    assert (again.verdict, [f.rule for f in again.findings]) == ("leaks", ["tensor-cycle"])
    assert judge(run(rank(0, [CYCLE] * len(STEPS)))).findings == ()


def waiting(calls: int, each: int = 1) -> str:
    text = ""
    for call in range(calls):
        text += f"frame wait#{call} -> local rows -> list rows{call}\n"
        for k in range(each):
            text += f"list rows{call} -> [{k}] -> tensor t{call}x{k}\n"
            text += f"tensor t{call}x{k} -> storage -> storage s{call}x{k} {TENSOR}\n"
    return text


def test_garbage_that_came_once_and_stands_is_no_growth() -> None:
    for heaps in (["", CYCLE, CYCLE, CYCLE], ["", "", CYCLE, CYCLE], ["", "", "", CYCLE]):
        assert judge(run(rank(0, heaps))).findings == ()


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
        text += f"method {method}#{k} -> .__self__ -> {own}\n{own} -> .t -> tensor {method}{k} freed=1\n"
        text += f"tensor {method}{k} -> storage -> storage {method}{k} {TENSOR} freed=1\n"
    return text


def test_cycles_that_one_line_closes_are_one_leak() -> None:
    (finding,) = judge(run(rank(0, [bound("cosine", s) + bound("dot", s) for s in STEPS]))).findings
    assert finding.cut is not None and finding.cut.where == "head.py:7"
    assert (finding.count, finding.cut.frees_bytes, finding.bytes_per_step) == (20, 20 * TENSOR, 2 * TENSOR)


def test_calls_that_pile_up_are_cut_in_every_call() -> None:
    (finding,) = judge(run(rank(0, [waiting(s) for s in STEPS]))).findings
    assert finding.rule == "frame-hold"
    assert finding.cut is not None and finding.cut.frees_bytes == 10 * TENSOR


def test_a_fixed_number_of_calls_whose_lists_grow_piles_nothing_up() -> None:
    (finding,) = judge(run(rank(0, [waiting(3, each=s) for s in STEPS]))).findings
    assert finding.rule == "step-growth"
    assert finding.cut is not None and (finding.cut.reference, finding.cut.frees_bytes) == ("local rows", 30 * TENSOR)


def test_a_fixed_number_of_calls_is_no_leak() -> None:
    assert judge(run(rank(0, [waiting(3, each=2) for _ in STEPS]))).findings == ()


def caught(count: int) -> str:
    """Exceptions in a list that the frame of each one's traceback has as well."""
    text = "frame main -> local errors -> list errors\n"
    for k in range(count):
        text += f"list errors -> [{k}] -> exception E#{k}\nexception E#{k} -> .__traceback__ -> object traceback{k}\n"
        text += f"object traceback{k} -> .tb_frame -> object frame{k}\nobject frame{k} -> local errors -> list errors\n"
        text += f"object frame{k} -> local x -> tensor t{k}\ntensor t{k} -> storage -> storage s{k} {TENSOR}\n"
    return text


def test_what_leads_back_to_the_list_that_it_is_in_goes_when_the_list_is_emptied() -> None:
    (finding,) = judge(run(rank(0, [caught(s) for s in STEPS]))).findings
    assert finding.cut is not None and (finding.rule, finding.cut.written) == ("frame-hold", "errors[i] in main()")
    assert finding.cut.frees_bytes == finding.retained_bytes == 10 * TENSOR
    assert [hop.reference for hop in finding.trace if hop.frees_bytes == 10 * TENSOR] == ["[i]"]


def of_state(records: int) -> str:
    text = "module train -> .state -> tensor state\ntensor state -> storage -> storage own 8\n"
    text += "tensor state -> .records -> list records\n"
    for k in range(records):
        text += f"list records -> [{k}] -> tensor t{k}\ntensor t{k} -> storage -> storage s{k} {TENSOR}\n"
    return text


def test_a_list_on_a_tensor_grows_and_not_the_tensor() -> None:
    (finding,) = judge(run(rank(0, [of_state(s) for s in STEPS]))).findings
    assert (finding.rule, finding.count, finding.retained_bytes) == ("step-growth", 10, 10 * TENSOR)
    assert finding.cut is not None and (finding.cut.reference, finding.cut.frees_bytes) == (".records", 10 * TENSOR)


def test_a_list_on_a_node_behind_a_tensor_is_told() -> None:
    def heap(step: int) -> str:
        text = "module train -> .y -> tensor y\ntensor y -> .grad_fn -> node keep\nnode keep -> .cache -> list cache\n"
        return text + losses(step, "list cache").replace("module train -> .losses -> list cache\n", "")

    (finding,) = judge(run(rank(0, [heap(s) for s in STEPS]))).findings
    assert finding.severity == "leak" and finding.cut is not None and finding.cut.frees_bytes == 10 * TENSOR


def hooked(outputs: int, hooks: int) -> str:
    text = "module train -> .outputs -> list outputs\n"
    for k in range(outputs):
        text += f"list outputs -> [{k}] -> tensor o{k}\n"
        text += f"tensor o{k} -> hook -> dict hooks{k} {hooks}\n"
        for n in range(hooks):
            text += (
                f"dict hooks{k} -> [{n}] -> function f{k}x{n}\nfunction f{k}x{n} -> closure scale -> tensor t{k}x{n}\n"
            )
            text += f"tensor t{k}x{n} -> storage -> storage s{k}x{n} {TENSOR}\n"
    return text


def test_one_hook_on_each_of_many_tensors_is_no_pileup_and_many_on_one_are() -> None:
    (many_tensors,) = judge(run(rank(0, [hooked(s, 1) for s in STEPS]))).findings
    (many_hooks,) = judge(run(rank(0, [hooked(1, s) for s in STEPS]))).findings
    assert (many_tensors.rule, many_hooks.rule) == ("step-growth", "hook-pileup")
    assert many_tensors.cut is not None and many_tensors.cut.reference == ".outputs"
    assert many_hooks.see is None  # no pipeline


@pytest.mark.parametrize(
    ("counted", "severity"),
    [((10, 12, 16, 17), "leak"), ((10, 17.5, 17.8, 17.9), "note"), ((10, 10.3, 10.9, 30), "note")],
)
def test_a_gap_that_rises_once_is_a_note_and_one_that_goes_on_is_a_leak(
    counted: tuple[float, ...], severity: str
) -> None:
    looks = tuple(
        HeapSnapshot(s, "step", heap_from("module train -> .x -> tensor x"), int(c * TENSOR), 0)
        for s, c in zip(STEPS, counted, strict=True)
    )
    done = tuple(Step(k, 0.1, None, None, ()) for k in range(1, 11))
    (finding,) = judge(run(Rank(0, done, looks, Ended("finished", 0, 10)))).findings
    assert (finding.rule, finding.severity) == ("native-hold", severity)


def test_what_is_let_go_of_once_hides_no_growth_after_it() -> None:
    done = tuple(Step(k, 0.1, None, None, ()) for k in range(1, 13))
    for counted, told in (((30, 10, 11, 12, 13, 14), ["leak"]), ((30, 10, 11, 12, 13, 9), [])):
        looks = tuple(
            HeapSnapshot(s, "step", heap_from("module train -> .x -> tensor x"), c * TENSOR, 0)
            for s, c in zip((3, 5, 7, 9, 11, 12), counted, strict=True)
        )
        assert [f.severity for f in judge(run(Rank(0, done, looks, Ended("finished", 0, 12)))).findings] == told


def test_a_gap_while_shapes_are_new_at_each_look_is_a_note_that_says_so() -> None:
    done = tuple(Step(k, 0.1, None, None, ()) for k in range(1, 11))
    for shapes, severity in (((1, 2, 3, 4), "note"), ((1, 2, 3, 3), "leak")):
        looks = tuple(
            HeapSnapshot(s, "step", heap_from(f"module train -> .x -> tensor x{shape}"), (10 + s) * TENSOR, 0)
            for s, shape in zip(STEPS, shapes, strict=True)
        )
        found = judge(run(Rank(0, done, looks, Ended("finished", 0, 10))))
        (finding,) = found.findings
        assert finding.severity == severity
        assert found.verdict == ("inconclusive" if severity == "note" else "leaks")


def test_counts_of_two_devices_make_no_gap() -> None:
    """The script put its accelerator to use after two looks: until then the host's bytes were counted."""
    heap = heap_from("module train -> .x -> tensor x")
    counts = zip(STEPS, (10, 12, 40, 60), ("cpu", "cpu", "cuda", "cuda"), strict=True)
    looks = tuple(HeapSnapshot(step, "step", heap, size * TENSOR, 0, counted_on=on) for step, size, on in counts)
    done = tuple(Step(k, 0.1, None, None, ()) for k in range(1, 11))
    assert judge(run(Rank(0, done, looks, Ended("finished", 0, 10)))).findings == ()


def test_a_recording_that_ended_before_its_script_is_not_judged_clean() -> None:
    why = "recording ended at step 10: RuntimeError: no such thing (in Work.wait)"
    whole = rank(0, [losses(2)] * 4)
    lost = replace(whole, recording_ended=(RecordingEnded(10, why),))
    assert judge(run(whole)).verdict == "clean"
    findings = judge(run(lost))
    assert findings.verdict == "inconclusive"
    growing = replace(lost, looks=rank(0, [losses(k) for k in (1, 2, 3, 4)]).looks)
    assert judge(run(growing)).verdict == "leaks"
    seen_to_the_end = replace(lost, looks=(*lost.looks, replace(lost.looks[-1], occasion="end")))
    assert judge(run(seen_to_the_end)).verdict == "clean"
