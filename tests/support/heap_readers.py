"""What both readers of the heap say otherwise of the same objects."""

from __future__ import annotations

import gc
from dataclasses import fields
from typing import Any

import numpy as np

from leakscope.heap import _sweep_fallback, sweep
from leakscope.heap.address_index import HeapColumns
from leakscope.process.raw_types import type_name


def tracked(built: list[Any]) -> list[Any]:
    return list({id(obj): obj for obj in built if gc.is_tracked(obj)}.values())


def differences(objects: list[Any], *, counts: bool = True) -> list[str]:
    """What both readers say otherwise of these objects."""
    names = [field.name for field in fields(HeapColumns)]
    python = _sweep_fallback.read(objects, True)
    untracked = [(id(obj), type_name(type(obj))) for obj in python.untracked]
    python.untracked.clear()  # it would count among their references
    read = sweep.read_natively(objects, True)
    found = []
    for name in names:
        ours, theirs = getattr(read, name), getattr(python, name)
        if isinstance(ours, np.ndarray):
            if "counts" in name and not counts:
                continue
            if ours.dtype != theirs.dtype or ours.shape != theirs.shape or (ours != theirs).any():
                found.append(f"{name}: {theirs[:20]} by Python, {ours[:20]} by C")
        elif name == "untracked":
            if [(id(obj), type_name(type(obj))) for obj in ours] != untracked:
                found.append(f"untracked: {untracked} by Python, {list(map(type, ours))} by C")
        elif name == "dicts":
            for column in fields(theirs):
                if getattr(ours, column.name).tolist() != getattr(theirs, column.name).tolist():
                    found.append(f"dicts.{column.name}")
    queries = np.concatenate([python.addresses, python.addresses + 8, python.firsts, np.array([0, -1, 1 << 62])])
    if read.book.find(queries).tolist() != python.book.find(queries).tolist():
        found.append("find")
    some = [*queries[:50].tolist(), -1, 1 << 80]
    if list(map(read.book.find_one, some)) != list(map(python.book.find_one, some)):
        found.append("find_one")
    read.untracked.clear()
    return found
