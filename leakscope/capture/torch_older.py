"""What newer torch tells of itself, how is it had from an older one? Learned from objects made for it."""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from leakscope.capture.private_names import Part, at, bind, getter, nothing
from leakscope.originals import Path, os

_HEAD = 2
"""Words of a Python object before its own fields; a SavedTensor's first is the address of a SavedVariable."""
DATA, HOOKS = 0, 7
"""Words of a SavedVariable at which its tensor and its hooks stand (torch/csrc/autograd/saved_variable.h, 2.6, 2.9)."""
_WRAP = "_Z16THPVariable_WrapRKN2at10TensorBaseE"
"""`THPVariable_Wrap(const at::TensorBase&)` of libtorch_python: the Python object of a tensor."""
_without_functions, _without_dispatch = (
    getattr(torch._C, name, nullcontext) for name in ("DisableTorchFunction", "_DisableTorchDispatch")
)


@dataclass(frozen=True)
class SavedLayout:
    """The tables of virtual functions by which objects of C++ are known, and what gives a tensor's Python object."""

    tensor: int
    """TensorImpl."""
    undefined: int
    """UndefinedTensorImpl."""
    hooks: int
    """PySavedVariableHooks: {table, pack hook, unpack hook, packed object} (python_saved_variable_hooks.h)."""
    wrap: Callable[[int], Any]
    """Of the address of a word that points to a TensorImpl."""


@cache
def saved_layout() -> SavedLayout | None:
    """How memory tells what a saved tensor holds, where it does not say so itself; None where that is not as known."""
    try:
        wrap = getattr(ctypes.PyDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_python.so")), _WRAP)
    except (OSError, AttributeError):
        return None
    wrap.restype, wrap.argtypes = ctypes.py_object, [ctypes.c_void_p]
    packed: list[None] = []

    def pack(_: Any) -> list[None]:
        return packed

    def unpack(_: Any) -> Any:
        raise AssertionError("nobody asks for it")

    with (
        _without_functions(),
        _without_dispatch(),
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autograd.graph.saved_tensors_hooks(pack, unpack),
    ):
        tensor = torch.empty(0, requires_grad=True, device="cpu", dtype=torch.float32)
        node: Any = tensor.exp().grad_fn
    saved = node._raw_saved_result
    variable = _word(id(saved), _HEAD)
    hooks = _word(variable, HOOKS)
    if not hooks or [_word(hooks, place) for place in (1, 2, 3)] != [id(pack), id(unpack), id(packed)]:
        return None
    return SavedLayout(_word(int(tensor._cdata)), _word(_word(variable, DATA)), _word(hooks), wrap)


def _word(address: int, place: int = 0) -> int:
    """A word of memory; 0 where there is none: in another torch it may stand elsewhere, and this be no address."""
    size = struct.calcsize("P")
    try:
        memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        return int(struct.unpack("P", os.pread(memory, size, address + place * size))[0])
    except (OSError, OverflowError, struct.error):
        return 0
    finally:
        os.close(memory)


def _counts_in_python() -> bool:
    with torch.inference_mode(False), _without_functions(), _without_dispatch():
        parameter, gradient = (torch.empty(0, device="cpu", dtype=torch.float32) for _ in range(2))
        before = sys.getrefcount(gradient)
        parameter.grad = gradient
        return sys.getrefcount(gradient) > before


COUNTS_IN_PYTHON = _counts_in_python()
"""Whether C++ keeps one Python reference to a tensor while it has owners beside the Python object (since torch 2.10:
c10/util/intrusive_ptr.h, "PyObject preservation").

Before, the Python object owns the C++ one until Python lets it go; then C++ takes it over and has the only reference to
it, until Python is handed it again (c10/core/impl/PyObjectSlot.h, `owns_pyobj`).
"""
give_back_tensor, give_back_storage = (
    nothing if COUNTS_IN_PYTHON else bind(f"torch._C.{base}._fix_weakref", Part.LOOKS)
    for base in ("TensorBase", "StorageBase")
)
"""Make a Python object that C++ has taken over Python's again."""
SAVED_TENSORS_TELL = hasattr(at("torch._C._autograd.SavedTensor"), "data")
"""Whether a saved tensor says itself what it holds; in torch 2.9 and older memory does."""
SAVED_TENSOR = bind(
    "torch._C._autograd.SavedTensor", Part.NATIVE, works=lambda _: SAVED_TENSORS_TELL or saved_layout() is not None
)
if SAVED_TENSORS_TELL:
    saved_data = getter("torch._C._autograd.SavedTensor.data", Part.NATIVE)
    saved_unpack_hook = getter("torch._C._autograd.SavedTensor.unpack_hook", Part.NATIVE)
else:
    saved_data = saved_unpack_hook = nothing
    saved_layout()  # now, as the script has no mode yet that would hear of it


def _flags_at() -> int | None:
    """Which word of a SavedTensor says whether Python owns what it shows; None where none is as known.

    It is pybind11's (pybind11/detail/common.h, `struct instance`): the last one, whose lowest bit is `owned`.
    """
    make = at("torch._C._autograd._make_saved_tensor")
    if make is None or not SAVED_TENSORS_TELL:
        return None
    with (
        _without_functions(),
        _without_dispatch(),
        torch.inference_mode(False),
        torch.enable_grad(),
        # not `lambda tensor: tensor`: the output that a node saves would hold the node, in a cycle that gc never frees
        torch.autograd.graph.saved_tensors_hooks(nothing, nothing),  # type: ignore[arg-type]
    ):
        tensor = torch.empty(0, requires_grad=True, device="cpu", dtype=torch.float32)
        node: Any = tensor.exp().grad_fn
        owned, shown = make(tensor, False), node._raw_saved_result
    place = int(type(owned).__basicsize__) // struct.calcsize("P") - 1
    return place if [_word(id(each), place) & 1 for each in (owned, shown)] == [1, 0] else None


OWNED_FLAGS = _flags_at()
"""Word of a SavedTensor whose lowest bit says that Python owns what it shows, as checkpointing's do; None where no such
can be made or told apart.

Any other shows what a grad node has, and is left pointing at freed memory when the node goes: torch's getters do not
keep the node alive.
"""
