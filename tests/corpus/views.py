"""Small views that keep a large storage."""

from __future__ import annotations

from typing import Any

import torch

from corpus.case import LeakCase


class HeldView(LeakCase):
    rule = "view-hold"
    freed_by = "program"
    per_step: Any = 1

    def begin(self) -> None:
        self.kept: list[Any] = []


class SliceKept(HeldView):
    cut = r"\.kept"

    def leak(self) -> None:
        self.kept.append(self.tensor()[:3])

    def clean(self) -> None:
        self.kept.append(self.tensor()[:3].clone())


class NumpyViewKept(HeldView):
    cut = r"\.kept"

    def leak(self) -> None:
        self.kept.append(self.tensor().numpy()[:3])

    def clean(self) -> None:
        self.kept.append(self.tensor().numpy()[:3].copy())


class WholeNumpyKept(HeldView):
    """The array spans the whole storage: no view to blame, but a list that grows."""

    rule = "step-growth"
    cut = r"\.kept"

    def leak(self) -> None:
        self.kept.append(self.tensor().numpy())

    def clean(self) -> None:
        self.kept.append(float(self.tensor().numpy().sum()))


class MemoryviewKept(HeldView):
    cut = r"\.kept"

    def leak(self) -> None:
        self.kept.append(memoryview(self.tensor().numpy())[:3])

    def clean(self) -> None:
        self.kept.append(bytes(memoryview(self.tensor().numpy())[:3]))


class ExpandedKept(HeldView):
    """One number of a large storage, shown many times: the view seems larger than it needs to be."""

    cut = r"\.kept"

    def leak(self) -> None:
        self.kept.append(self.tensor()[:1].expand(4 * self.prime))

    def clean(self) -> None:
        self.kept.append(self.tensor()[:1].clone().expand(4 * self.prime))


class BaseKept(HeldView):
    cut = r"\.kept"

    def leak(self) -> None:
        view = self.tensor()[:3]
        view.data = torch.zeros(3)
        self.kept.append(view)

    def clean(self) -> None:
        view = self.tensor()[:3].detach().clone()
        view.data = torch.zeros(3)
        self.kept.append(view)


class StorageObjectKept(HeldView):
    rule = "step-growth"
    cut = r"\.kept"

    def leak(self) -> None:
        self.kept.append(self.tensor().untyped_storage())

    def clean(self) -> None:
        self.kept.append(self.tensor().untyped_storage().nbytes())
