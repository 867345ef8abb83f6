"""Rows of a rank's files, read as `read_run` reads them, for tests that need no process."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from leakscope.run.damage import Damage
from leakscope.run.reader import read_rows
from leakscope.run.rows import FinalOperation, from_json

Line = Mapping[str, Any]


def rows(wire_last: Sequence[Line] | None = None, **files: Sequence[Line]) -> dict[str, Any]:
    """Fields of a `Rank`: what these lines are read as, by their file; `wire_last` is its file's one operation."""
    damage = Damage()
    with TemporaryDirectory() as folder:
        for stem, reported in files.items():
            Path(folder, f"{stem}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in reported))
        read = read_rows(Path(folder), damage)
    assert not damage.notes(), damage.notes()
    final = [
        from_json(FinalOperation, {"newest": False, **line, "state": line["state"].strip()}) for line in wire_last or ()
    ]
    return {**read, "final_operation": final[-1] if final else None, "final_operation_known": wire_last is not None}
