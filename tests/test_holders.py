"""`holders` reports all tensor memory and what releasing it frees, and keeps no object alive."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch

import leakscope
from leakscope.findings.live_objects import HolderMemory, ModelPart, RetentionKind
from leakscope.profiler.holders import Holders


class Watched:
    """Which storages are alive, and of how many bytes; asked of weak references, from outside."""

    def __init__(self) -> None:
        self._bytes: dict[int, int] = {}

    def add(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        size = self._bytes[id(self) + len(self._bytes)] = storage.nbytes()
        number = len(self._bytes) - 1
        weakref.finalize(storage, self._bytes.__setitem__, id(self) + number, 0)
        assert size
        return tensor

    @property
    def bytes(self) -> int:
        return sum(self._bytes.values())

    def freed_by(self, let_go: Callable[[], object]) -> int:
        before = self.bytes
        let_go()
        return before - self.bytes


@pytest.fixture
def no_gc() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()
    gc.collect()


def line_of(reported: Holders, name: str) -> HolderMemory:
    return next(line for line in reported.lines if line.name.startswith(f"{name} in "))


def freed(line: HolderMemory) -> int:
    assert line.letting_go is not None
    return line.letting_go.bytes


def test_lines_add_up_and_letting_go_frees_what_is_told(no_gc: None) -> None:
    watched = Watched()
    before = leakscope.holders().bytes
    losses = [watched.add(torch.ones(1000 + k)) for k in range(3)]
    shared = watched.add(torch.ones(5000))
    other = {"shared": shared}
    small = watched.add(torch.ones(3000))[:2]
    node: list[object] = [watched.add(torch.ones(2000))]
    node.append(node)
    del node
    reported = leakscope.holders(most=1000)
    assert reported.bytes - before == watched.bytes
    assert sum(line.bytes for line in reported.lines) == reported.bytes
    assert watched.freed_by(losses.clear) == freed(line_of(reported, "losses"))
    line = line_of(reported, "shared")
    assert line.letting_go is not None
    assert "other['shared'] in " in " ".join(line.letting_go.written)
    del shared
    assert watched.freed_by(other.clear) == line.letting_go.bytes == 20_000
    assert freed(line_of(reported, "small")) == 12_000
    del small
    garbage = next(line for line in reported.lines if line.kept == RetentionKind.WAITS_FOR_GC)
    assert garbage.bytes >= 8_000 == watched.freed_by(gc.collect)


def test_a_model_and_its_optimizer_are_a_line_each() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(8, 64)).sum().backward()
    optimizer.step()
    reported = leakscope.holders()
    parts = {line.part: line.bytes for line in reported.lines if line.name.startswith(("net in", "optimizer in"))}
    size = sum(p.untyped_storage().nbytes() for p in net.parameters())
    assert parts[ModelPart.PARAMETERS] == parts[ModelPart.GRADIENTS] == size
    assert parts[ModelPart.STATE] > 2 * size
    gradients = next(line for line in reported.lines if line.part == ModelPart.GRADIENTS)
    assert freed(gradients) == size


def test_an_error_in_a_variable_is_what_to_let_go_of() -> None:
    def fails() -> None:
        inner = torch.ones(7000)
        raise ValueError(inner.shape)

    kept = None
    try:
        fails()
    except ValueError as error:
        kept = error
    line = next(line for line in leakscope.holders().lines if line.name.startswith("inner in "))
    assert kept is not None
    assert line.letting_go is not None
    assert [written.partition(" in ")[0] for written in line.letting_go.written] == ["kept"]
    assert line.letting_go.bytes == 28_000


def test_every_way_to_a_tensor_and_none_of_the_call_itself() -> None:
    x = torch.ones(100, requires_grad=True)
    y = (x * 2).exp()
    paths = leakscope.holders(y)
    function = "test_every_way_to_a_tensor_and_none_of_the_call_itself()"
    assert [path.written for path in paths.ways] == [f"{function}: y", f"{function}: y.grad_fn, saved result"]
    assert paths.ways[0].where.startswith("tests/test_holders.py:")
    assert "400 B would be freed when y in" in str(paths)
    assert json.loads(paths.to_json())["bytes"] == 400
    assert "saved result>" in paths.dot


def test_nothing_is_kept_alive() -> None:
    x = torch.ones(1000)
    alive = weakref.ref(x)
    paths, picture, reported = leakscope.holders(x), leakscope.draw(x), leakscope.holders()
    del x
    assert alive() is None
    assert paths.found.bytes == 4000
    assert picture.objects > 1
    assert reported.bytes >= 4000


def test_printed_it_is_a_table_and_as_html_escaped() -> None:
    kept = {"<b>": torch.ones(3_000_000)}
    reported = leakscope.holders(most=3)
    first = str(reported).splitlines()
    assert first[0].startswith("tensor memory alive: ")
    assert first[2].split() == ["held", "would", "be", "freed", "holder", "line"]
    assert "11.44 MiB" in first[3]
    assert "<b>" not in reported._repr_html_().replace("<p><b>", "")
    assert json.loads(reported.to_json())["lines"][0]["bytes"] == 12_000_000
    assert kept


def test_bad_input_is_one_sentence() -> None:
    with pytest.raises(TypeError, match="got int"):
        leakscope.holders(5)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="most must be"):
        leakscope.holders(most=0)
    with pytest.raises(ValueError, match="meta"):
        leakscope.holders(torch.ones(3, device="meta"))
    with pytest.raises(ValueError, match="max_depth"):
        leakscope.draw([], max_depth=0)


def test_an_error_that_is_being_handled_is_told_as_that() -> None:
    def fails() -> None:
        inner = torch.ones(6000)
        raise ValueError(inner.shape)

    try:
        fails()
    except ValueError:
        reported = leakscope.holders()
    line = next(line for line in reported.lines if line.name.startswith("inner in "))
    assert line.letting_go is not None
    assert line.letting_go.written == ("the ValueError that is being handled",)


def test_parameters_that_outputs_hold_too_are_told_with_the_few_handles_to_let_go_of() -> None:
    net = torch.nn.Linear(50, 50)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    kept = {"outputs": [net(torch.ones(2, 50)) for _ in range(6)]}
    kept["outputs"][0].sum().backward()
    optimizer.step()
    line = next(
        line for line in leakscope.holders().lines if line.part == ModelPart.PARAMETERS and line.bytes == 10_200
    )
    assert line.letting_go is not None
    written = {text.partition(" in ")[0] for text in line.letting_go.written}
    assert written == {"net", "optimizer", "kept['outputs']"}
    assert line.letting_go.bytes == line.bytes


def test_an_array_over_a_tensor_is_told_by_its_name() -> None:
    arrays = {"ones": torch.ones(4321).numpy(), "kept": []}
    line = line_of(leakscope.holders(), "arrays['ones']")
    assert line.bytes == freed(line) == 17_284
    assert arrays
