"""Operations over time: each send and receive as a bar from issue to completion to Python death to storage death."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from leakscope.record.rows.comm import CommOperation
from leakscope.report.cleaning import cleaned, one_line
from leakscope.units import bytes_text, seconds_text

STEPS_SHOWN = 2
"""Steps at the most, chosen, that are drawn."""
ROWS_SHOWN = 80
"""Rows at the most, chosen, that are drawn."""
_STRETCHES = 5
"""Stretches that the ticks of an axis mark off."""
_LEFT, _WIDTH, _ROW, _TOP = 250.0, 980.0, 20.0, 30.0


@dataclass(frozen=True)
class Timeline:
    """One rank's drawing and what it leaves out."""

    svg: str
    steps: tuple[int, ...]
    left_out: int
    """Operations of the shown steps that found no room."""
    alive: int
    """Operations of the shown steps whose storage was alive when the run ended."""


def timeline(operations: Sequence[CommOperation]) -> Timeline | None:
    """The operations of at most two steps, microbatch by microbatch; None where none was timed.

    The steps shown are the last but one and the one before it, as the last is cut short by the end of the run.
    """
    timed = [operation for operation in operations if math.isfinite(operation.issued)]
    numbers = sorted({row.step for row in timed})
    if not numbers:
        return None
    steps = tuple(numbers[-STEPS_SHOWN - 1 : -1] if len(numbers) > STEPS_SHOWN else numbers)
    chosen = sorted((row for row in timed if row.step in steps), key=_order)
    shown = cleaned(chosen[:ROWS_SHOWN])
    start = min(row.issued for row in shown)
    end = _end(timed, shown, steps)
    alive = sum(_moment(row.storage_died) is None for row in chosen)
    return Timeline(_svg(shown, start, end), steps, len(chosen) - len(shown), alive)


def _order(row: CommOperation) -> tuple[int, int, float]:
    return row.step, row.microbatch, row.issued


def _end(timed: Sequence[CommOperation], shown: Sequence[CommOperation], steps: Sequence[int]) -> float:
    """Right edge: the last event shown, but not far beyond the step after the last one shown."""
    start = min(row.issued for row in shown)
    events = [
        _moment(moment)
        for row in shown
        for moment in (row.issued, row.waited, row.completed, row.tensor_died, row.storage_died)
    ]
    last = max(event for event in events if event is not None)
    later = [row.issued for row in timed if row.step > steps[-1]]
    issued = max(row.issued for row in shown)
    limit = max(min(later), issued) + 0.15 * (min(later) - start) if later else last
    return max(min(last, limit), start + 1e-6)


def _svg(rows: Sequence[CommOperation], start: float, end: float) -> str:
    scale = (_WIDTH - _LEFT - 20) / (end - start)

    def across(moment: float) -> float:
        return _LEFT + (min(moment, end) - start) * scale

    places = _places(rows)
    height = places[-1] + _ROW + 10
    parts = [
        f'<svg class="timeline" viewBox="0 0 {_WIDTH:.0f} {height:.0f}" role="img" ',
        'xmlns="http://www.w3.org/2000/svg"><title>Sends and receives over time</title>',
    ]
    for tick in range(_STRETCHES + 1):
        x = _LEFT + tick * (_WIDTH - _LEFT - 20) / _STRETCHES
        label = escape(seconds_text(tick * (end - start) / _STRETCHES))
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="20" y2="{height - 6:.1f}"/>')
        kind, shift = ("tick last", 14) if tick == _STRETCHES else ("tick", 0)
        parts.append(f'<text class="{kind}" x="{x + shift:.1f}" y="13">{label}</text>')
    group: tuple[int, int] | None = None
    for row, y in zip(rows, places, strict=True):
        this = row.step, row.microbatch
        if this != group:
            title = f"step {this[0]}, microbatch {this[1]}"
            parts.append(f'<text class="group" x="0" y="{y - 8:.1f}">{title}</text>')
            group = this
        parts.append(f'<text class="row" x="8" y="{y + 11:.1f}">{escape(_label(row))}</text>')
        parts.append(_bars(row, y, end, across))
    return "".join(parts) + "</svg>"


def _places(rows: Sequence[CommOperation]) -> list[float]:
    """Top of each row; a new microbatch leaves room for its heading."""
    places: list[float] = []
    y, group = _TOP, None
    for row in rows:
        this = row.step, row.microbatch
        if this != group:
            y += 22.0
            group = this
        places.append(y)
        y += _ROW
    return places


def _bars(row: CommOperation, y: float, end: float, across: Callable[[float], float]) -> str:
    issued = row.issued
    completed, waited = _moment(row.completed), _moment(row.waited)
    tensor, storage = _moment(row.tensor_died), _moment(row.storage_died)
    gone = end if storage is None else storage
    python = min(gone, end if tensor is None else tensor)
    done = min(gone, waited if completed is None and waited is not None else end if completed is None else completed)
    marks = ((issued, done, "flight"), (done, max(done, python), "held"), (max(done, python), gone, "ghost"))
    parts = [f"<g><title>{escape(_tooltip(row))}</title>"]
    for left, right, kind in marks:
        if right > left and left < end:
            x = across(left)
            width = max(across(right) - x, 1.0)
            parts.append(f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="14"/>')
    if waited is not None and waited <= end:
        x = across(waited)
        parts.append(f'<line class="waited" x1="{x:.1f}" x2="{x:.1f}" y1="{y - 2:.1f}" y2="{y + 16:.1f}"/>')
    if storage is None or storage > end:
        x = across(end)
        parts.append(f'<polygon class="on" points="{x:.1f},{y:.1f} {x + 10:.1f},{y + 7:.1f} {x:.1f},{y + 14:.1f}"/>')
    return "".join(parts) + "</g>"


def _label(row: CommOperation) -> str:
    peer = row.source if row.peer is None else row.peer  # of a receive from anybody: who sent it
    direction = one_line(row.direction)[:12]
    towards = "" if peer is None else f" {'from' if direction.startswith(('recv', 'irecv')) else 'to'} {peer}"[:10]
    tag = "" if row.tag is None else f" tag {row.tag}"[:12]
    return f"{direction}{towards}{tag}  {bytes_text(row.bytes)}"


def _tooltip(row: CommOperation) -> str:
    sizes = ", ".join(map(str, row.shape))
    events = (
        ("waited for", row.waited),
        ("completed", row.completed),
        ("Python tensor died", row.tensor_died),
        ("storage died", row.storage_died),
    )
    moments = [f"{event}: {_after(_moment(moment), row.issued)}" for event, moment in events]
    issued = f"issued at {row.issued_at or 'unknown place'}, {seconds_text(row.issued)} into the run"
    return "\n".join([f"{_label(row)} {row.dtype}[{sizes}] group {row.group}", issued, *moments])


def _after(moment: float | None, issued: float) -> str:
    return "not seen" if moment is None else f"+{seconds_text(moment - issued)}"


def _moment(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
