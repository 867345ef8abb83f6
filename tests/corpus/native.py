"""Storage that no Python object and no autograd path explains."""

from __future__ import annotations

import ctypes

import torch
from torch import nn

from corpus.case import LeakCase


class NativeHold(LeakCase):
    rule = "native-hold"
    freed_by = "program"
    tells = ""
    frees = False


class ForgottenReference(NativeHold):
    """A C extension that takes a reference and never gives it back."""

    per_step = 1

    def begin(self) -> None:
        self.taken: list[int] = []

    def leak(self) -> None:
        tensor = self.tensor()
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(tensor))
        self.taken.append(id(tensor))

    def clean(self) -> None:
        tensor = self.tensor()
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(tensor))
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(tensor))

    def end(self) -> None:
        for address in self.taken:
            ctypes.pythonapi.Py_DecRef(ctypes.c_void_p(address))


class AutocastRegionNeverLeft(NativeHold):
    """A cache that is emptied only when the outermost region is left."""

    tells = ""

    def begin(self) -> None:
        torch.autocast_increment_nesting()

    def leak(self) -> None:
        self._forward()

    def clean(self) -> None:
        self._forward()
        torch.clear_autocast_cache()

    def _forward(self) -> None:
        weight = nn.Parameter(torch.ones(1, self.prime))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            torch.nn.functional.linear(torch.ones(1, self.prime), weight)

    def end(self) -> None:
        torch.autocast_decrement_nesting()
        torch.clear_autocast_cache()
