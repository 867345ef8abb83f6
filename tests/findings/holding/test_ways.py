"""All reference paths to a tensor are found, and the number reported is bounded."""

from __future__ import annotations

from support.heap_text import heap_from

from leakscope.findings.holders import paths_to
from leakscope.findings.live_objects import ReferencePaths
from leakscope.graph.model import HeapGraph, ObjectKind

HEAP = """
    frame main -> local trainer -> object trainer
    object trainer -> .losses -> list losses
    list losses -> [2] -> tensor x
    module train -> .cache -> dict cache
    dict cache -> ['x'] -> tensor x
    tensor x -> storage -> storage x 90
    node Exp -> saved result -> tensor saved
    tensor saved -> storage -> storage x
    frame main -> local y -> tensor y
    tensor y -> .grad_fn -> node Exp
    tensor y -> storage -> storage y 4
"""


def ways_of(graph: HeapGraph, name: str = "x", most: int = 12) -> ReferencePaths:
    storage = next(s for s in graph.of_kind(ObjectKind.STORAGE).tolist() if graph.object(s).label == f"storage {name}")
    tensor = int(graph.holder[graph.into(storage)[0]])
    return paths_to(graph, tensor, most)


def test_each_way_is_written_as_code_with_what_autograd_holds() -> None:
    ways = ways_of(heap_from(HEAP))
    assert [way.written for way in ways.ways] == [
        "train: cache['x']",
        "main(): trainer.losses[2]",
        "main(): y.grad_fn, saved result",
    ]
    assert (ways.more, ways.all_counted, ways.bytes) == (0, True, 90)


def test_what_repeats_is_counted_where_that_is_shorter() -> None:
    nested = ["module train -> .pairs -> list p0", "list p0 -> [1] -> list p1", "list p1 -> [1] -> tensor x"]
    nodes = [f"node n{k} -> .next_functions[0] -> node n{k + 1}" for k in range(3)]
    deep = [
        "frame main -> local y -> tensor y",
        "tensor y -> .grad_fn -> node n0",
        *nodes,
        "node n3 -> .variable -> tensor x",
    ]
    ways = ways_of(heap_from("\n".join([*nested, *deep, "tensor x -> storage -> storage x 8"])))
    assert [way.written for way in ways.ways] == [
        "train: pairs[1][1]",
        "main(): y.grad_fn.next_functions[0] (3 times).variable",
    ]


def test_the_shortest_way_by_each_reference_comes_first() -> None:
    many = "\n".join(f"frame f{k} -> local t -> object trainer" for k in range(20))
    ways = ways_of(heap_from(HEAP + many), most=3)
    assert len({way.links[-2].name for way in ways.ways}) == 3
    assert ways.more == 20


def test_ways_without_number_are_not_all_counted() -> None:
    rungs = [f"list r{k} -> [{side}] -> list r{k + 1}" for k in range(14) for side in (0, 1)]
    graph = heap_from("\n".join(["frame main -> local r -> list r0", *rungs, "list r14 -> [0] -> tensor x",
                                 "tensor x -> storage -> storage x 8"]))  # fmt: skip
    ways = ways_of(graph)
    assert not ways.all_counted
    assert len(ways.ways) == 12


def test_garbage_is_no_way_but_is_told() -> None:
    graph = heap_from(
        HEAP
        + """
        object node freed=1 -> .itself -> object node
        object node -> .kept -> tensor x
    """
    )
    ways = ways_of(graph)
    assert len(ways.ways) == 3
    assert ways.of_garbage


def test_a_tensor_that_native_code_holds_too_has_that_way_as_well() -> None:
    graph = heap_from("""
        frame main -> local x -> native x
        native x -> storage -> storage x 8
    """)
    assert [way.written for way in ways_of(graph).ways] == ["main(): x", "native code (native x)"]


def test_the_shortest_way_is_told_however_long() -> None:
    chain = [f"node n{k} -> .next_functions[0] -> node n{k + 1}" for k in range(400)]
    last = ["node n400 -> saved self -> tensor x", "tensor x -> storage -> storage x 8"]
    ways = ways_of(heap_from("\n".join(["frame main -> local loss -> node n0", *chain, *last])))
    assert [way.written for way in ways.ways] == ["main(): loss.next_functions[0] (400 times), saved self"]
    assert not ways.all_counted
