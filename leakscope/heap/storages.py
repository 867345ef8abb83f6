"""The storage of a tensor, the bytes it owns, and who shares it."""

from __future__ import annotations

from typing import Any

import torch

from leakscope.process import torch_compat
from leakscope.process.raw_types import mro
from leakscope.process.torch_compat import (
    OUTSIDE_OF_MODES,
    StorageBase,
    TensorBase,
    dispatch_keys,
    has_storage,
    storage_address,
    uses_of_storage,
    without_functions,
    without_gradients,
)

_untyped_storage = TensorBase.untyped_storage


def storage_of(tensor: Any) -> int | None:
    """Address of the tensor's StorageImpl; None if it has none (sparse, meta, wrappers)."""
    if not has_storage(tensor):
        return None
    try:
        return int(storage_address(tensor)) if _owns_memory(tensor) else None
    except RuntimeError:
        return None


def sparse_parts(tensor: Any) -> list[tuple[str, Any]]:
    """Yield (name, tensor) for the parts of a sparse tensor; nothing for others.

    The parts are views that share the storages. What C++ keeps has no Python object and gets none, except for a tensor
    made in inference mode, which returns its own. Neither autograd nor a dispatch mode of the script is triggered.
    """
    getters = _PARTS.get(TensorBase.layout.__get__(tensor))
    if getters is None or not OUTSIDE_OF_MODES or dispatch_keys(tensor).has(_PYTHON):
        return []
    try:
        # within a mode's handler a sparse tensor would return its own parts
        with torch_compat.with_keys(*OUTSIDE_OF_MODES), torch_compat.without_dispatch(), without_gradients():
            return [(f".{getter.__name__}()", getter(tensor)) for getter in getters]
    except RuntimeError:  # a batched tensor, or one on a device that does not report it
        return []


_ROWS = (TensorBase.crow_indices, TensorBase.col_indices, TensorBase.values)
_COLUMNS = (TensorBase.ccol_indices, TensorBase.row_indices, TensorBase.values)
_PARTS = {
    torch.sparse_coo: (torch_compat.sparse_indices, torch_compat.sparse_values),
    torch.sparse_csr: _ROWS, torch.sparse_bsr: _ROWS, torch.sparse_csc: _COLUMNS, torch.sparse_bsc: _COLUMNS,
}  # fmt: skip


def tensor_over(obj: Any, address: int) -> Any:
    """A tensor or storage with the storage at `address`: the object itself, or a part of it."""
    if TensorBase not in mro(type(obj)) or has_storage(obj):
        return obj
    return next((part for _, part in sparse_parts(obj) if storage_of(part) == address), obj)


def _owns_memory(tensor: Any) -> bool:
    """False for meta tensors and wrappers, whose storage has a nominal size only.

    The data pointer is read for wrappers only, and the device for none: a subclass may override it.
    """
    keys = dispatch_keys(tensor)
    if not (keys.has(_PYTHON) or keys.has(_FUNCTIONALIZE) or keys.has(_LAZY)):
        return not TensorBase.is_meta.__get__(tensor)
    storage = _untyped_storage(tensor)
    if is_meta(storage):
        return False
    try:
        return bool(StorageBase.data_ptr(storage))
    except RuntimeError:
        return False


_PYTHON, _FUNCTIONALIZE, _LAZY = torch_compat.PYTHON, torch_compat.FUNCTIONALIZE, torch_compat.LAZY


def is_meta(storage: Any) -> bool:
    """Whether a storage has only a size, which may be symbolic."""
    return bool(StorageBase.device.__get__(storage).type == "meta")


def device_of(obj: Any) -> torch.device:
    """Device of a tensor or storage; a subclass that overrides its device is not called."""
    if TensorBase in mro(type(obj)) and not dispatch_keys(obj).has(_PYTHON):
        device: torch.device = TensorBase.device.__get__(obj)
        return device
    behind: torch.device = StorageBase.device.__get__(storage_object(obj))
    return behind


def storage_object(obj: Any) -> Any:
    """The Python storage of a tensor, or the storage itself."""
    if TensorBase not in mro(type(obj)):
        return obj
    # an uninitialized parameter of a lazy module has no storage; a user's class would run its own code
    with without_functions():
        return _untyped_storage(obj)


def storage_bytes(tensor: Any) -> int:
    """Allocated bytes of the tensor's storage."""
    storage = _untyped_storage(tensor)
    return int(StorageBase.nbytes(storage))


def storage_uses(address: int) -> int:
    """Number of owners of a storage: tensors, and one for its Python object."""
    return int(uses_of_storage(address))


def tensor_bytes(tensor: Any) -> int:
    """Bytes that the tensor's own elements take, whatever its storage owns; -1 for symbolic sizes.

    Elements repeated by `expand` count once.
    """
    if parts := sparse_parts(tensor):
        return sum(tensor_bytes(part) for _, part in parts)
    item = int(TensorBase.element_size(tensor))
    if TensorBase.layout.__get__(tensor) is not torch.strided or TensorBase.is_nested.__get__(tensor):
        count = TensorBase.numel(tensor)
        return count * item if type(count) is int else -1
    count = 1
    for size, stride in zip(TensorBase.size(tensor), TensorBase.stride(tensor), strict=True):
        if type(size) is not int or type(stride) is not int:
            return -1  # int() and bool() of a symbol would specialise it in the code being compiled
        count *= size if stride or not size else 1
    return count * item
