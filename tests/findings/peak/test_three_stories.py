"""The stories of the avoidable peak: how much it is, who holds it, and that letting go saves exactly that."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest
import torch
from support.lived_steps import KIB, Lived, measured_peak, watched
from torch import Tensor, nn

BATCH = (256, 256)
BATCH_BYTES = 256 * 256 * 4
SCRATCH_BYTES = 1024 * KIB
"""Stands for the rest of the step, whose peak the batch is not needed at."""


def forward_only(net: nn.Module, batch: Tensor) -> Tensor:
    """The batch itself is not saved for backward: its rounded copy is."""
    loss: Tensor = net(batch.to(torch.float16).float()).pow(2).mean()
    return loss


def net_of(width: int = 256) -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(width, 8)


def train(net: nn.Module, loss: Tensor) -> None:
    for parameter in net.parameters():
        parameter.grad = None
    scratch = torch.zeros(SCRATCH_BYTES // 4)
    del scratch
    loss.backward()


class CallerHolds:
    """A loop whose caller holds the batch while the callee has long moved on; `cured` takes it out of the box."""

    def __init__(self, cured: bool) -> None:
        self.net, self.cured = net_of(), cured

    def __call__(self) -> None:
        batch = torch.randn(BATCH)
        box = [batch]
        if self.cured:
            del batch
        self.progress(box)

    def progress(self, box: list[Tensor]) -> None:
        loss = forward_only(self.net, box.pop())
        train(self.net, loss)


def boxed_backward(saved: list[Tensor], grad: Tensor, cured: bool) -> Tensor:
    """A hand-written backward of three matrix products; it needs each saved tensor once."""
    for _ in range(3):
        tensor = saved.pop() if cured else saved[0]
        grad = grad @ tensor
        del tensor
    scratch = torch.zeros(SCRATCH_BYTES // 4)
    return grad + scratch[0]


class ArgumentsAlive:
    """A backward that is handed its saved tensors as an argument, which its caller's variable holds."""

    def __init__(self, cured: bool) -> None:
        self.cured = cured

    def __call__(self) -> None:
        saved = [torch.randn(BATCH) for _ in range(3)]
        if self.cured:
            boxed_backward(saved, torch.ones(8, 256), True)
        else:
            self.unboxed(*saved)

    def unboxed(self, first: Tensor, second: Tensor, third: Tensor) -> None:
        grad = torch.ones(8, 256) @ third @ second @ first
        del grad
        scratch = torch.zeros(SCRATCH_BYTES // 4)
        del scratch


class LateByOne:
    """A pipeline that lets an output go one microbatch after it was sent."""

    def __init__(self, cured: bool) -> None:
        self.cured = cured
        self.sent: deque[Tensor] = deque()

    def __call__(self) -> None:
        for _ in range(4):
            self.sent.append(torch.randn(BATCH))
            self.send(self.sent[-1])
            while len(self.sent) > (0 if self.cured else 1):
                self.sent.popleft()
            scratch = torch.zeros(SCRATCH_BYTES // 4)
            del scratch
        self.sent.clear()

    def send(self, output: Tensor) -> None:
        output.sum()


@pytest.mark.parametrize(
    ("story", "truth", "holder", "line"),
    [
        (CallerHolds, BATCH_BYTES, "batch in CallerHolds.__call__()", "batch = torch.randn(BATCH)\n        box"),
        (
            ArgumentsAlive,
            3 * BATCH_BYTES,
            "saved in ArgumentsAlive.__call__(), first, second and third in ArgumentsAlive.unboxed()",
            "saved = [",
        ),
        (LateByOne, BATCH_BYTES, "self.sent[i] in LateByOne.__call__()", "self.sent: deque"),
    ],
)
def test_story(story: Callable[[bool], Callable[[], None]], truth: int, holder: str, line: str) -> None:
    leaky, cured = story(False), story(True)
    lived = watched(leaky)
    assert lived.avoidable == pytest.approx(truth, rel=0.05)
    (finding,) = lived.reported
    assert finding.cut is not None and finding.cut.written == holder
    assert finding.cut.frees_bytes == pytest.approx(truth, rel=0.05)
    assert finding.cut.where.endswith(f"test_three_stories.py:{_line_of(line)}")
    assert watched(cured).avoidable == 0
    assert measured_peak(leaky) - measured_peak(cured) == pytest.approx(_predicted(lived), rel=0.05)


def _predicted(lived: Lived) -> int:
    assert lived.peak is not None
    return lived.peak.fall(lived.peak.held_by("user"))


def _line_of(text: str) -> int:
    with open(__file__, encoding="utf-8") as stream:
        source = stream.read()
    return source[: source.index(text)].count("\n") + 1
