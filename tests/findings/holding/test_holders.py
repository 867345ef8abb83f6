"""Live memory is attributed once to each holder, with what releasing it frees and all paths to it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.heap_text import heap_from

from leakscope.findings.holders import live_memory, paths_to
from leakscope.findings.live_objects import (
    LiveMemory,
    ModelPart,
    ReferencePaths,
    ReleasePlan,
    RetentionKind,
    SessionHolder,
    is_interactive,
    keepers_of,
    last_error,
)
from leakscope.graph.model import HeapGraph, ObjectKind

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


TWICE = """
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


def paths_of(graph: HeapGraph, name: str = "x", most: int = 12) -> ReferencePaths:
    storage = next(s for s in graph.of_kind(ObjectKind.STORAGE).tolist() if graph.object(s).label == f"storage {name}")
    tensor = int(graph.holder[graph.into(storage)[0]])
    return paths_to(graph, tensor, most)


def test_each_way_is_written_as_code_with_what_autograd_holds() -> None:
    ways = paths_of(heap_from(TWICE))
    assert [way.written for way in ways.ways] == [
        "train: cache['x']",
        "main(): trainer.losses[2]",
        "main(): y.grad_fn, saved result",
    ]
    assert (ways.more, ways.all_counted, ways.bytes) == (0, True, 90)


def test_the_shortest_way_by_each_reference_comes_first() -> None:
    many = "\n".join(f"frame f{k} -> local t -> object trainer" for k in range(20))
    ways = paths_of(heap_from(TWICE + many), most=3)
    assert len({way.links[-2].name for way in ways.ways}) == 3
    assert ways.more == 20


def test_ways_without_number_are_not_all_counted() -> None:
    rungs = [f"list r{k} -> [{side}] -> list r{k + 1}" for k in range(14) for side in (0, 1)]
    graph = heap_from("\n".join(["frame main -> local r -> list r0", *rungs, "list r14 -> [0] -> tensor x",
                                 "tensor x -> storage -> storage x 8"]))  # fmt: skip
    ways = paths_of(graph)
    assert not ways.all_counted
    assert len(ways.ways) == 12


def test_of_equally_long_paths_that_of_the_first_reference_comes_first() -> None:
    graph = heap_from("""
        module m -> .b -> list b
        module m -> .a -> list a
        list a -> [0] -> tensor x
        list b -> [0] -> tensor x
        tensor x -> storage -> storage x 8
    """)
    assert [way.written for way in paths_of(graph).ways] == ["m: a[0]", "m: b[0]"]


def test_garbage_is_no_way_but_is_told() -> None:
    graph = heap_from(
        TWICE
        + """
        object node freed=1 -> .itself -> object node
        object node -> .kept -> tensor x
    """
    )
    ways = paths_of(graph)
    assert len(ways.ways) == 3
    assert ways.of_garbage


def test_a_tensor_that_native_code_holds_too_has_that_way_as_well() -> None:
    graph = heap_from("""
        frame main -> local x -> native x
        native x -> storage -> storage x 8
    """)
    assert [way.written for way in paths_of(graph).ways] == ["main(): x", "native code (native x)"]


def test_the_shortest_way_is_told_however_long() -> None:
    chain = [f"node n{k} -> .next_functions[0] -> node n{k + 1}" for k in range(400)]
    last = ["node n400 -> saved self -> tensor x", "tensor x -> storage -> storage x 8"]
    ways = paths_of(heap_from("\n".join(["frame main -> local loss -> node n0", *chain, *last])))
    assert [way.written for way in ways.ways] == ["main(): loss.next_functions[0] (400 times), saved self"]
    assert not ways.all_counted


NOTEBOOK = """
    module __main__ -> .x -> tensor x
    module __main__ -> .Out -> dict out
    module __main__ -> ._ -> tensor shown
    module __main__ -> ._3 -> tensor shown
    dict out -> [3] -> tensor shown
    dict out -> [2] -> tensor x
    tensor x -> storage -> storage x 100
    tensor shown -> storage -> storage shown 40
    object shell -> ._trait_values -> dict traits
    module __main__ -> .get_ipython -> object shell
    dict traits -> ['user_ns_hidden'] -> dict hidden
    dict hidden -> ['_'] -> tensor shown
    dict hidden -> ['own'] -> tensor own
    tensor own -> storage -> storage own 7
    object shell -> .InteractiveTB -> object tb
    object tb -> .tb -> exception error
    module sys -> .last_value -> exception error
    exception error -> .__traceback__ -> object frame
    object frame -> local acts -> tensor acts
    tensor acts -> storage -> storage acts 60
"""


def as_ipython(graph: HeapGraph) -> HeapGraph:
    """The graph with the types that IPython's objects have."""
    types = {"shell": "ipykernel.zmqshell.ZMQInteractiveShell", "tb": "IPython.core.ultratb.AutoFormattedTB"}
    strings = (*graph.strings, *types.values())
    names = {name: len(graph.strings) + k for k, name in enumerate(types)}
    kinds = graph.type.copy()
    for index in range(len(graph)):
        kinds[index] = names.get(graph.object(index).name, kinds[index])
    return replace(graph, strings=strings, type=kinds)


@pytest.fixture
def notebook() -> HeapGraph:
    return as_ipython(heap_from(NOTEBOOK))


def test_outputs_and_the_last_error_are_the_sessions(notebook: HeapGraph) -> None:
    keepers = {
        keeper: [notebook.reference(r).name for r in references] for keeper, references in keepers_of(notebook).items()
    }
    assert keepers == {
        SessionHolder.OUTPUTS: ["._", "._3", "[3]", "[2]", "['_']"],
        SessionHolder.LAST_ERROR: [".last_value"],
        SessionHolder.TRACEBACK: [".tb"],
    }
    assert last_error(notebook) == "error"
    assert is_interactive(notebook)


def test_memory_is_named_by_the_program_before_the_session(notebook: HeapGraph) -> None:
    alive = live_memory(notebook)
    assert {held.letting_go.error_names for held in alive.lines if held.letting_go} == {("last_value",)}
    reported = [(held.name, held.kept, held.where) for held in alive.lines]
    assert ("x", RetentionKind.PROGRAM, "") in reported
    assert ("Out[3], _, _3", RetentionKind.OUTPUT, "In[3]") in reported
    assert any(kept == RetentionKind.ERROR and "acts" in name for name, kept, _ in reported)
    assert alive.bytes == 207 == sum(held.bytes for held in alive.lines)


def test_garbage_is_collected_last() -> None:
    error = "\n".join(NOTEBOOK.splitlines()[13:])
    garbage = (
        error
        + """
        object node freed=1 -> .itself -> object node
        object node -> .kept -> tensor dead freed=1
        tensor dead -> storage -> storage dead 5 freed=1
        module __main__ -> .get_ipython -> object shell
        module __main__ -> .a -> tensor a
        module __main__ -> .b -> tensor a
        tensor a -> storage -> storage a 9
    """
    )
    typed = live_memory(as_ipython(heap_from(garbage))).typed
    assert [(step.variables, step.collects, step.bytes) for step in typed] == [
        ((), False, 60), (("a",), False, 0), (("b",), False, 9), ((), True, 5),
    ]  # fmt: skip


def test_what_the_cell_before_has_shown_is_no_error_and_goes_by_itself() -> None:
    shown = """
    object shell -> .last_execution_result -> object result
    object result -> .result -> tensor big
    dict hidden -> ['__'] -> tensor big
    module __main__ -> .big -> tensor big
    tensor big -> storage -> storage big 500
    """
    alive = live_memory(as_ipython(heap_from(NOTEBOOK + shown)))
    assert (alive.lines[0].name, alive.lines[0].bytes) == ("big", 500)
    assert [step.bytes for step in alive.typed if step.variables == ("big",)] == [500]
