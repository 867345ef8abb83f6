"""Ranks and rows for tests that need no process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leakscope.run.model import Ended, Rank, Run
from leakscope.run.rows import EndKind
from support.recorded_rows import rows


@dataclass(frozen=True)
class Pair:
    """What two ranks answered, and the rows they wrote."""

    answers: tuple[dict[str, Any], dict[str, Any]]
    lines: tuple[list[dict[str, Any]], list[dict[str, Any]]]


def rank_with(number: int, ended: Ended | None = None, **files: Sequence[Mapping[str, Any]]) -> Rank:
    return Rank(number, (), (), ended or Ended(EndKind.FINISHED, 0, 3), **rows(**files))


def run_of(*ranks: Rank) -> Run:
    return Run(("train.py",), ranks, len(ranks), "cpu", "2.13.0", "0.1.0")


def row(number: int, direction: str, peer: int | None, nth: int, **more: Any) -> dict[str, Any]:
    return {
        "id": number, "direction": direction, "peer": peer, "tag": 0, "group": "default", "bytes": 1024, "shape": [256],
        "dtype": "float32", "buffers": 1, "step": nth, "microbatch": 0, "nth": nth,
        "issued_at": f"train.py:{10 + number} exchange", "issued": float(number), "waited": None,
        "completed": None, "tensor_died": None, "storage_died": None, **more,
    }  # fmt: skip
