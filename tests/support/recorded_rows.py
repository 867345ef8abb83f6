"""Rows of a rank's files, read as `read_run` reads them, for tests that need no process."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from leakscope.record import reading
from leakscope.record.rows.comm import ContextsAtStep, FinalOperation
from leakscope.record.rows.device import DeviceBlocks, DeviceFailure, DeviceStep
from leakscope.record.rows.host import SHORTAGE_ROWS, AllocationFailure, GcFreeze, MemoryThere
from leakscope.record.rows.lifetimes import LIFETIME_ROWS
from leakscope.record.rows.row import from_json

Line = Mapping[str, Any]


def rows(wire_last: Sequence[Line] | None = None, **files: Sequence[Line]) -> dict[str, Any]:
    """Fields of a `Rank`: what these lines are read as, by their file; `wire_last` is its file's one operation."""
    lines = {stem: json.loads(json.dumps(list(told))) for stem, told in files.items()}
    final = [
        from_json(FinalOperation, {"newest": False, **line, "state": line["state"].strip()}) for line in wire_last or ()
    ]
    return {
        "operations": reading._operations(lines),
        "final_operation": final[-1] if final else None,
        "final_operation_known": wire_last is not None,
        "contexts": reading._rows(lines, ContextsAtStep),
        "lifetimes": reading._rows(lines, *LIFETIME_ROWS),
        "device_steps": reading._rows(lines, DeviceStep),
        "device_blocks": reading._rows(lines, DeviceBlocks),
        "device_failures": reading._rows(lines, DeviceFailure),
        "allocation_failures": reading._rows(lines, AllocationFailure),
        "memory_shortages": reading._rows(lines, *SHORTAGE_ROWS),
        "gc_freezes": reading._rows(lines, GcFreeze),
        "host_memory": reading._rows(lines, MemoryThere),
    }
