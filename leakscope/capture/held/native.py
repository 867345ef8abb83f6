"""What does C++ hold for this tensor, grad node or saved tensor?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from leakscope.capture.heap.native.autograd import Held, Types, node_holds, saved_holds, tensor_holds
from leakscope.capture.heap.native.raw_memory import Words
from leakscope.capture.held.kinds import Kind
from leakscope.capture.torch_older import SAVED_TENSORS_TELL

UNTOLD = "this torch's saved tensors do not tell what they hold"
"""A problem: what they hold is missing."""


def held_in_native(obj: Any, kind: Kind, types: Types, problems: list[str], words: Words) -> Iterator[Held]:
    """Each reference; `problems` get a sentence for what could not be read, as do the gaps of `types`."""
    if kind is Kind.TENSOR:
        yield from tensor_holds(obj, problems)
    elif kind is Kind.GRAD_NODE:
        yield from node_holds(obj, types, words)
    elif kind is Kind.SAVED and SAVED_TENSORS_TELL:
        yield from saved_holds(obj, "", types, words)
    elif kind is Kind.SAVED:
        problems.append(UNTOLD)
