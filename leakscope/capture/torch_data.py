"""What of torch's DataLoader is nobody's promise: the iterator that starts workers, and what it is known to have."""

from __future__ import annotations

import inspect
import multiprocessing
import sys
from collections.abc import Mapping
from typing import Any

from leakscope.capture.heap.raw_types import instance_dict
from leakscope.capture.private_names import Part, bind
from leakscope.capture.torch_private import LOADER_WORKERS

LOADER_ITERATOR = bind("torch.utils.data.dataloader._MultiProcessingDataLoaderIter", Part.WORKERS)
"""Starts the workers when it is made, and ends them in `ENDS_WORKERS`."""
ENDS_WORKERS = "_shutdown_workers"
bind(f"torch.utils.data.dataloader._MultiProcessingDataLoaderIter.{ENDS_WORKERS}", Part.WORKERS)


_CONTEXT = "_DataLoader__multiprocessing_context"


def setting(loader: Any, name: str) -> Any:
    """What a loader was made with; no property of the user's is run."""
    return (instance_dict(loader, type(loader)) or {}).get(name)


def method_of(loader: Any) -> str:
    """How a loader starts its workers: `fork`. Nothing is decided by asking."""
    context = setting(loader, _CONTEXT)
    named = None if context is None else context.get_start_method(allow_none=True)
    # the first is the default
    return str(named or multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0])


def places_in_worker(target: Any) -> tuple[int, int, int] | None:
    """Of the arguments of what runs in a worker, the places of its number, its dataset and the queue that it asks for
    what to load next; None for any other function.
    """
    if getattr(target, "__module__", "") != LOADER_WORKERS:
        return None
    names = list(inspect.signature(target).parameters)
    wanted = ("worker_id", "dataset", "index_queue")
    if not set(wanted) <= set(names):
        return None
    number, dataset, queue = map(names.index, wanted)
    return number, dataset, queue


def workers_of(iterator: Any) -> list[Any]:
    """The processes that an iterator has started, in the order of their ids; none where that is not known."""
    workers = vars(iterator).get("_workers")
    return list(workers) if type(workers) is list else []


def pins(iterator: Any) -> bool:
    """Whether a thread of this process copies an iterator's batches into pinned memory."""
    return vars(iterator).get("_pin_memory_thread") is not None


def pinned_bytes() -> int | None:
    """Pinned host memory that tensors have; None where no device is in use, or torch does not count it.

    Blocks that torch's allocator keeps for reuse are not part of it (ATen/core/CachingHostAllocator.h: `active_bytes`
    is what is in use, `allocated_bytes` has the cached blocks as well).
    """
    cuda = sys.modules.get("torch.cuda")
    stats, is_initialized = getattr(cuda, "host_memory_stats", None), getattr(cuda, "is_initialized", None)
    if stats is None or is_initialized is None or not is_initialized():
        return None
    try:
        told = stats()
    except RuntimeError:  # an error of the device that an operation has met
        return None
    active = told.get("active_bytes.current") if isinstance(told, Mapping) else None
    return active if type(active) is int else None
