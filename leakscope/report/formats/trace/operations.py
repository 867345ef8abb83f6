"""How is communication told in a trace? Each operation as a span from its issue to the death of its storage."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from leakscope.record.model import Rank
from leakscope.record.rows.comm import CommOperation
from leakscope.report.cleaning import cleaned
from leakscope.report.formats.trace.clock import MICROSECOND

_Event = dict[str, Any]
_CATEGORY = "comm"


MOST = 100_000
"""Operations of all ranks in one trace, chosen: half a million events, which a viewer opens within seconds."""


def comm_events(rank: Rank, most: int = MOST) -> Iterator[_Event]:
    """The last operations of a rank, as spans that may overlap, so asynchronous: the operation, within it the time in
    flight, and single moments.

    An id is the process's own (`id2`), for ranks count their operations alike.
    """
    latest = rank.operations[max(len(rank.operations) - most, 0) :]
    timed = [operation for operation in latest if math.isfinite(operation.issued)]
    moments = (moment for operation in timed for moment in _moments(operation))
    last = max((moment for moment in moments if moment is not None and math.isfinite(moment)), default=0.0)
    for operation in timed:
        for phase, name, moment, more in _of_operation(operation, last):
            yield {
                "ph": phase,
                "name": name,
                "cat": _CATEGORY,
                "id2": {"local": hex(operation.id)},
                "pid": rank.number,
                "tid": 0,
                "ts": moment * MICROSECOND,
                **more,
            }


def _moments(operation: CommOperation) -> tuple[float | None, ...]:
    return operation.issued, operation.waited, operation.completed, operation.tensor_died, operation.storage_died


def _of_operation(operation: CommOperation, last: float) -> Iterator[tuple[str, str, float, _Event]]:
    """Phase, name, moment and arguments of each event, in their order."""
    issued = operation.issued
    gone = max(_known(operation.storage_died, last), issued)
    done = min(max(_known(operation.completed, _known(operation.waited, gone)), issued), gone)
    name = _name(operation)
    yield "b", name, issued, {"args": _arguments(operation)}
    yield "b", "in flight", issued, {}
    within = (("waited for", operation.waited), ("Python tensor died", operation.tensor_died))
    known = [(moment, text) for text, moment in within if moment is not None and math.isfinite(moment)]
    told = sorted((min(max(moment, issued), gone), text) for moment, text in known)
    yield from (("n", text, moment, {}) for moment, text in told if moment <= done)
    yield "e", "in flight", done, {}
    yield from (("n", text, moment, {}) for moment, text in told if moment > done)
    yield "e", name, gone, {}


def _known(moment: float | None, otherwise: float) -> float:
    return moment if moment is not None and math.isfinite(moment) else otherwise


def _name(operation: CommOperation) -> str:
    peer = operation.source if operation.peer is None else operation.peer
    towards = "" if peer is None else f" {'from' if 'recv' in operation.direction else 'to'} {peer}"
    tag = "" if operation.tag is None else f" tag {operation.tag}"
    return cleaned(f"{operation.direction}{towards}{tag}")


def _arguments(operation: CommOperation) -> _Event:
    told: _Event = {
        "bytes": operation.bytes,
        "step": operation.step,
        "group": operation.group,
        "shape": list(operation.shape),
        "dtype": operation.dtype,
        "issued at": operation.issued_at,
        **({} if operation.storage_died is not None else {"storage": "alive at the end"}),
        **({"failed": operation.failed} if operation.failed else {}),
    }
    return cleaned(told)
