"""Memory retained by an interactive session is separated from what the program holds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.heap_text import heap_from

from leakscope.findings.holders import live_memory
from leakscope.findings.live_objects import RetentionKind, SessionHolder, is_interactive, keepers_of, last_error
from leakscope.graph.model import HeapGraph
from leakscope.report.holders import together

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
    told = [(held.name, held.kept, held.where) for held in alive.lines]
    assert ("x", RetentionKind.PROGRAM, "") in told
    assert ("Out[3], _, _3", RetentionKind.OUTPUT, "In[3]") in told
    assert any(kept == RetentionKind.ERROR and "acts" in name for name, kept, _ in told)
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
    assert together(alive.lines[0]) == "when big and outputs displayed by the session are all gone"
    assert [step.bytes for step in alive.typed if step.variables == ("big",)] == [500]
