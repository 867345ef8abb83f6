"""Which of a call's arguments are tensors with memory of their own?"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from leakscope.capture.heap.raw_types import mro, type_dict
from leakscope.capture.torch_private import TensorBase, no_dispatch_of_its_own

PLAIN: dict[type, bool] = {torch.Tensor: True, torch.nn.Parameter: True}
"""Type to whether it is a tensor with memory of its own, as far as is known; `is_plain` finds out."""


def argument(args: tuple[Any, ...], kwargs: dict[str, Any], place: int, name: str, missing: Any) -> Any:
    """The argument at this place or of this name."""
    return args[place] if place < len(args) else kwargs.get(name, missing)


def is_plain(value: Any) -> bool:
    """Whether this is a tensor with memory of its own: not one of a type that answers for others, as a DTensor does."""
    kind = type(value)
    plain = PLAIN.get(kind)
    if plain is None:
        bases = mro(kind)
        own = next((type_dict(b)["__torch_dispatch__"] for b in bases if "__torch_dispatch__" in type_dict(b)), None)
        plain = PLAIN[kind] = TensorBase in bases and own is no_dispatch_of_its_own
    return plain


def tensors_among(values: Iterable[Any]) -> list[Any]:
    """Plain tensors among arguments and in lists of them, each once, in order."""
    tensors: dict[int, Any] = {}
    for value in values:
        for item in value if type(value) in (list, tuple) else (value,):
            for tensor in item if type(item) in (list, tuple) else (item,):
                if is_plain(tensor):
                    tensors[id(tensor)] = tensor
    return list(tensors.values())
