"""`leakscope.backward` keeps the interface that torch's pipelining relies on."""

from __future__ import annotations

import doctest
import inspect

import pytest
import torch
from torch import nn
from torch.distributed.pipelining import _IR, _backward, stage

from leakscope import backward

NAMES = ["stage_backward", "stage_backward_input", "stage_backward_weight"]


@pytest.mark.parametrize("name", NAMES)
def test_signatures_begin_like_torchs(name: str) -> None:
    mine = inspect.signature(getattr(backward, name)).parameters
    torchs = inspect.signature(getattr(_backward, name)).parameters
    positional = [one for one in mine.values() if one.kind is one.POSITIONAL_OR_KEYWORD]
    assert [one.name for one in positional] == list(torchs)
    assert [one.default for one in positional] == [one.default for one in torchs.values()]
    assert all(one.kind is one.KEYWORD_ONLY for one in list(mine.values())[len(torchs) :])


def test_install_rebinds_all_names_and_restores_them() -> None:
    modules = (_backward, stage, _IR)
    found = {(module, name): getattr(module, name, None) for module in modules for name in NAMES}
    chunk = stage._PipelineStageBase.backward_one_chunk
    with backward.install():
        for module, name in found:
            if hasattr(module, name):
                assert getattr(module, name) is getattr(backward, name)
        assert _IR.stage_backward is _backward.stage_backward
        with backward.install():
            pass
        assert stage.stage_backward_weight is backward.stage_backward_weight
    installed = backward.install()
    assert stage.stage_backward is backward.stage_backward
    installed.uninstall()
    installed.uninstall()
    assert {key: getattr(key[0], key[1], None) for key in found} == found
    assert stage._PipelineStageBase.backward_one_chunk is chunk


def test_groups_have_torchs_keys() -> None:
    layer = nn.Linear(3, 3)
    x = torch.randn(2, 3, requires_grad=True)
    dinputs, groups = backward.stage_backward_input([layer(x).sum()], None, [x], layer.parameters())
    assert x.grad is dinputs[0]
    (group,) = groups
    assert {type(node).__name__ for node in group["params"]} == {"AccumulateGrad"}
    assert isinstance(group["params"], set) and isinstance(group["intermediates"], list)
    group["grads"] = [(torch.full((2, 3), 2.0),)]
    assert backward.stage_backward_weight(layer.parameters(), groups) == (None, None)
    assert torch.equal(layer.bias.grad, torch.full((3,), 4.0))
    kept = layer.weight.grad
    assert "intermediates" not in group and "grads" not in group
    with pytest.raises(KeyError, match="grads"):
        backward.stage_backward_weight(layer.parameters(), groups)
    _, groups = backward.stage_backward_input([layer(x).sum()], None, [x], layer.parameters())
    before = backward.stage_backward_weight(layer.parameters(), groups, retain_graph=True)
    assert before[0] is kept and layer.weight.grad is kept


def test_the_docstring_example_runs() -> None:
    result = doctest.testmod(backward)
    assert result.attempted >= 8 and result.failed == 0
