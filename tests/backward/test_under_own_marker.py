"""`leakscope.backward` passes the `no_tensor_leaks` marker."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from leakscope.backward import output_edges, stage_backward, stage_backward_input, stage_backward_weight


def stage() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))


@pytest.mark.no_tensor_leaks
def test_a_whole_backward_leaves_nothing_unreachable() -> None:
    layers, inputs = stage(), torch.randn(4, 8, requires_grad=True)
    outputs = [layers(inputs)]
    edges = output_edges(outputs)
    stage_backward(edges, [torch.ones(4, 8)], [inputs], boxed=True)


@pytest.mark.no_tensor_leaks
def test_a_split_backward_leaves_nothing_unreachable() -> None:
    layers, inputs = stage(), torch.randn(4, 8, requires_grad=True)
    _, groups = stage_backward_input([layers(inputs)], [torch.ones(4, 8)], [inputs], layers.parameters())
    stage_backward_weight(layers.parameters(), groups)
