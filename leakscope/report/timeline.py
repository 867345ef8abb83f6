"""The wire over time: each send and receive as a bar from issue to completion to Python death to storage death."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from leakscope.report.cleaning import cleaned, one_line
from leakscope.units import bytes_text, seconds_text

STEPS_SHOWN = 2
ROWS_SHOWN = 80
_LEFT, _WIDTH, _ROW, _TOP = 250.0, 980.0, 20.0, 30.0

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Timeline:
    """One rank's drawing and what it leaves out."""

    svg: str
    steps: tuple[int, ...]
    left_out: int
    """Operations of the shown steps that found no room."""
    alive: int
    """Operations of the shown steps whose storage was alive when the run ended."""


def timeline(rows: Sequence[Row]) -> Timeline | None:
    """The operations of at most two steps, microbatch by microbatch; None where none was timed.

    The steps shown are the last but one and the one before it, as the last is cut short by the end of the run.
    """
    timed = [row for row in rows if _time(row, "issued") is not None]
    numbers = sorted({_whole(row, "step") for row in timed})
    if not numbers:
        return None
    steps = tuple(numbers[-STEPS_SHOWN - 1 : -1] if len(numbers) > STEPS_SHOWN else numbers)
    chosen = sorted((row for row in timed if _whole(row, "step") in steps), key=_order)
    shown = cleaned(chosen[:ROWS_SHOWN])
    start = min(_issued(row) for row in shown)
    end = _end(timed, shown, steps)
    alive = sum(_time(row, "storage_died") is None for row in chosen)
    return Timeline(_svg(shown, start, end), steps, len(chosen) - len(shown), alive)


def _order(row: Row) -> tuple[int, int, float]:
    return _whole(row, "step"), _whole(row, "microbatch"), _issued(row)


def _end(timed: Sequence[Row], shown: Sequence[Row], steps: Sequence[int]) -> float:
    """Right edge: the last event shown, but not far beyond the step after the last one shown."""
    start = min(_issued(row) for row in shown)
    names = ("issued", "waited", "completed", "tensor_died", "storage_died")
    events = [_time(row, name) for row in shown for name in names]
    last = max(event for event in events if event is not None)
    later = [_issued(row) for row in timed if _whole(row, "step") > steps[-1]]
    issued = max(_issued(row) for row in shown)
    limit = max(min(later), issued) + 0.15 * (min(later) - start) if later else last
    return max(min(last, limit), start + 1e-6)


def _svg(rows: Sequence[Row], start: float, end: float) -> str:
    scale = (_WIDTH - _LEFT - 20) / (end - start)

    def across(moment: float) -> float:
        return _LEFT + (min(moment, end) - start) * scale

    places = _places(rows)
    height = places[-1] + _ROW + 10
    parts = [
        f'<svg class="timeline" viewBox="0 0 {_WIDTH:.0f} {height:.0f}" role="img" ',
        'xmlns="http://www.w3.org/2000/svg"><title>Sends and receives over time</title>',
    ]
    for tick in range(6):
        x = _LEFT + tick * (_WIDTH - _LEFT - 20) / 5
        label = escape(seconds_text(tick * (end - start) / 5))
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="20" y2="{height - 6:.1f}"/>')
        kind, shift = ("tick last", 14) if tick == 5 else ("tick", 0)
        parts.append(f'<text class="{kind}" x="{x + shift:.1f}" y="13">{label}</text>')
    group: tuple[int, int] | None = None
    for row, y in zip(rows, places, strict=True):
        this = _whole(row, "step"), _whole(row, "microbatch")
        if this != group:
            title = f"step {this[0]}, microbatch {this[1]}"
            parts.append(f'<text class="group" x="0" y="{y - 8:.1f}">{title}</text>')
            group = this
        parts.append(f'<text class="row" x="8" y="{y + 11:.1f}">{escape(_label(row))}</text>')
        parts.append(_bars(row, y, end, across))
    return "".join(parts) + "</svg>"


def _places(rows: Sequence[Row]) -> list[float]:
    """Top of each row; a new microbatch leaves room for its heading."""
    places: list[float] = []
    y, group = _TOP, None
    for row in rows:
        this = _whole(row, "step"), _whole(row, "microbatch")
        if this != group:
            y += 22.0
            group = this
        places.append(y)
        y += _ROW
    return places


def _bars(row: Row, y: float, end: float, across: Any) -> str:
    issued = _issued(row)
    completed, waited = _time(row, "completed"), _time(row, "waited")
    tensor, storage = _time(row, "tensor_died"), _time(row, "storage_died")
    gone = end if storage is None else storage
    python = min(gone, end if tensor is None else tensor)
    done = min(gone, waited if completed is None and waited is not None else end if completed is None else completed)
    marks = ((issued, done, "flight"), (done, max(done, python), "held"), (max(done, python), gone, "ghost"))
    parts = [f"<g><title>{escape(_told(row))}</title>"]
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


def _label(row: Row) -> str:
    peer = row.get("source") if row.get("peer") is None else row["peer"]  # of a receive from anybody: who sent it
    direction = one_line(str(row.get("direction", "?")))[:12]
    towards = "" if peer is None else f" {'from' if direction.startswith(('recv', 'irecv')) else 'to'} {peer}"[:10]
    tag = f" tag {row['tag']}"[:12] if row.get("tag") not in (None, "") else ""
    return f"{direction}{towards}{tag}  {bytes_text(_time(row, 'bytes'))}"


def _told(row: Row) -> str:
    shape = row.get("shape")
    sizes = ", ".join(str(size) for size in shape) if isinstance(shape, (list, tuple)) else ""
    moments = []
    for name, said in (
        ("waited", "waited for"),
        ("completed", "completed"),
        ("tensor_died", "Python tensor died"),
        ("storage_died", "storage died"),
    ):
        moment = _time(row, name)
        moments.append(f"{said}: {'not seen' if moment is None else '+' + seconds_text(moment - _issued(row))}")
    issued = f"issued at {row.get('issued_at') or 'unknown place'}, {seconds_text(_issued(row))} into the run"
    return "\n".join([f"{_label(row)} {row.get('dtype', '')}[{sizes}] group {row.get('group', '')}", issued, *moments])


def _issued(row: Row) -> float:
    moment = _time(row, "issued")
    assert moment is not None
    return moment


def _time(row: Row, name: str) -> float | None:
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def _whole(row: Row, name: str) -> int:
    value = row.get(name)
    return value if isinstance(value, int) else 0
