"""Live memory is attributed once to each holder, with the bytes that releasing it frees."""

from __future__ import annotations

from support.heap_text import heap_from

from leakscope.findings.holders import live_memory
from leakscope.findings.live_objects import LiveMemory, ModelPart, ReleasePlan, RetentionKind

HEAP = """
    frame main -> local losses -> list losses
    list losses -> [0] -> tensor a
    list losses -> [1] -> tensor b
    tensor a -> storage -> storage a 400
    tensor b -> storage -> storage b 300
    frame main -> local x -> tensor x
    module train -> .cache -> dict cache
    dict cache -> ['x'] -> tensor x
    tensor x -> storage -> storage x 90
    object node freed=1 -> .itself -> object node
    object node -> .kept -> tensor dead freed=1
    tensor dead -> storage -> storage dead 50 freed=1
    native held -> storage -> storage held 20
"""


def line(alive: LiveMemory, name: str) -> ReleasePlan:
    going = next(held.letting_go for held in alive.lines if held.name == name)
    assert going is not None
    return going


def test_lines_add_up_to_all_memory_biggest_first() -> None:
    alive = live_memory(heap_from(HEAP))
    assert alive.bytes == 860
    assert [held.bytes for held in alive.lines] == [700, 90, 50, 20]
    assert alive.storages == sum(held.storages for held in alive.lines) == 5


def test_holders_that_are_not_told_are_counted() -> None:
    alive = live_memory(heap_from(HEAP), most=2)
    assert (alive.smaller, alive.smaller_bytes) == (2, 70)
    assert sum(held.bytes for held in alive.lines) + alive.smaller_bytes == alive.bytes


def test_shared_memory_is_told_with_all_that_has_to_go() -> None:
    going = line(live_memory(heap_from(HEAP)), "x in main()")
    assert (sorted(going.written), going.bytes) == (["train.cache['x']", "x in main()"], 90)


def test_garbage_and_native_code_have_lines_of_their_own() -> None:
    alive = live_memory(heap_from(HEAP))
    kept = {held.kept: held for held in alive.lines}
    assert kept[RetentionKind.WAITS_FOR_GC].bytes == 50
    assert kept[RetentionKind.WAITS_FOR_GC].letting_go is not None
    assert kept[RetentionKind.NATIVE].bytes == 20
    assert kept[RetentionKind.NATIVE].letting_go is None


def test_a_model_is_one_holder_and_its_gradients_another() -> None:
    alive = live_memory(
        heap_from("""
        frame main -> local net -> network net
        network net -> .weight -> parameter weight
        network net -> .bias -> parameter bias
        parameter weight -> storage -> storage weight 64
        parameter bias -> storage -> storage bias 8
        parameter weight -> .grad -> tensor grad
        tensor grad -> storage -> storage grad 64
        network net -> .seen -> list seen
        list seen -> [0] -> tensor s
        tensor s -> storage -> storage s 500
    """)
    )
    assert [(held.name, held.part, held.bytes) for held in alive.lines] == [
        ("net.seen in main()", ModelPart.NONE, 500),
        ("net in main()", ModelPart.PARAMETERS, 72),
        ("net in main()", ModelPart.GRADIENTS, 64),
    ]
    assert [held.letting_go.bytes for held in alive.lines if held.letting_go] == [500, 72, 64]


def test_what_the_allocator_alone_has_is_a_line() -> None:
    graph = heap_from("frame main -> local x -> tensor x\ntensor x -> storage -> storage x 90")
    alive = live_memory(graph, device="cuda", counted_bytes=512)
    assert (alive.bytes, [held.kept for held in alive.lines]) == (602, [RetentionKind.UNSEEN, RetentionKind.PROGRAM])


def test_nothing_is_freed_where_the_look_hides_references() -> None:
    alive = live_memory(heap_from(HEAP), hides=True)
    assert {held.letting_go for held in alive.lines} == {None}
