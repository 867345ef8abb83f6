"""Reference paths prefer roots named by the user and use callback frames only as a last resort."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from support.heap_text import heap_from

from leakscope.findings.grouping import ReferenceKey
from leakscope.findings.naming import as_expression, hops
from leakscope.graph.model import HeapGraph
from leakscope.graph.paths import paths_from_roots

HELD_TWICE = """
    frame main where=train.py:9 -> local trainer -> object Trainer
    callback LS.on_step_end where=train.py:4 -> local trainer -> object Trainer
    object Trainer -> .model -> network Net
    callback LS.on_step_end -> local model -> network Net
    network Net -> .kept -> list kept 3
    list kept -> [2] -> tensor a
    tensor a -> storage -> storage a 400
"""


def index_of(heap: HeapGraph, name: str) -> int:
    return next(k for k in range(len(heap)) if heap.object(k).name == name)


def told(heap: HeapGraph) -> str:
    """The reference of what holds the one storage, as it is written."""
    path = paths_from_roots(heap).path_to(heap, int(heap.storages[0]))
    kept = next(k for k in path if heap.reference(k).name == ".kept")
    return as_expression(heap, path, kept)


def test_a_callback_s_argument_loses_to_a_root_that_is_there_from_step_to_step() -> None:
    assert told(heap_from(HELD_TWICE)) == "trainer.model.kept in main()"


def test_what_only_a_callback_holds_is_told_by_it_and_before_a_library_s_frame() -> None:
    lines = [line for line in HELD_TWICE.splitlines() if "main" not in line]
    assert told(heap_from("\n".join(lines))) == "model.kept in LS.on_step_end()"
    library = HELD_TWICE.replace("main where=train.py:9", "run where=<lib/run.py>:9").replace(".model", "._model")
    assert told(heap_from(library)) == "model.kept in LS.on_step_end()"


def test_a_trace_begins_with_what_was_given_and_is_written_by_that_name() -> None:
    heap = heap_from(HELD_TWICE)
    trainer, net = index_of(heap, "Trainer"), index_of(heap, "Net")
    assert told(replace(heap, given={trainer: "trainer"})) == "trainer.model.kept"
    both = replace(heap, given={trainer: "trainer", net: "trainer.model"})
    assert told(both) == "trainer.model.kept"
    path = paths_from_roots(both).path_to(both, int(both.storages[0]))
    assert int(both.holder[path[0]]) == net
    first = hops(both, net, path, 1, {}, (None, None))[0]
    assert first.object.startswith("trainer.model (")


def test_a_fingerprint_has_the_name_only_where_types_do_not_tell_two_given_objects_apart() -> None:
    heap = heap_from(HELD_TWICE + "object Trainer -> .teacher -> network Net2")
    net, other = index_of(heap, "Net"), index_of(heap, "Net2")

    def said(given: dict[int, str]) -> str:
        named = replace(heap, given=given)
        path = paths_from_roots(named).path_to(named, int(named.storages[0]))
        return ReferenceKey.of_path(named, net, path).fingerprint

    assert said({net: "trainer.model"}) == said({net: "model"})
    alike = replace(heap, type=np.where(np.arange(len(heap)) == other, heap.type[net], heap.type))
    assert alike.object(net).type == alike.object(other).type
    heap = alike
    assert said({net: "model", other: "teacher"}) != said({net: "teacher", other: "model"})
