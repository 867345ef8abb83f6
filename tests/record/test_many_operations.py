"""Operations stored in columns round-trip, and equal heaps are shared between snapshots."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from support.examples import comm_operations

from leakscope.run.damage import Damage
from leakscope.run.operations import Operations, column, read_operations
from leakscope.run.rows import to_json


def test_columns_return_operations_in_order_of_issue() -> None:
    some = comm_operations()
    some = (replace(some[0], tag=(1 << 64) - 1, peer=None, waited=None, failed="it broke", shape=()), *some[1:])
    kept = Operations(reversed(some))
    ordered = sorted(some, key=lambda operation: operation.issued)
    assert len(kept) == len(some) and kept == ordered and list(kept) == ordered
    assert kept[0] == ordered[0] and kept[-2:] == tuple(ordered[-2:]) and kept != ordered[1:]
    for name in ("id", "peer", "tag", "waited", "dropped", "failed", "shape"):
        assert list(column(kept, name)) == list(column(ordered, name)) == [getattr(o, name) for o in ordered]


def _read(folder: Path, *lines: object) -> tuple[Operations, tuple[str, ...]]:
    (folder / "wire.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    damage = Damage()
    return read_operations(folder, damage), damage.notes()


def test_later_lines_complete_or_damage_an_operation(tmp_path: Path) -> None:
    first, second, third = (to_json(operation) for operation in comm_operations()[:3])
    read, notes = _read(tmp_path, first, second, {"id": second["id"], "waited": 77.5, "dropped": True}, third)
    assert [o.id for o in read] == [first["id"], second["id"], third["id"]] and not notes
    assert read[1].waited == 77.5 and read[1].dropped and not read[0].dropped
    read, notes = _read(tmp_path, first, {"id": first["id"], "bytes": -1}, {"id": 99, "waited": 1.0}, second)
    assert [o.id for o in read] == [second["id"]]
    assert len(notes) == 1 and "bytes" in notes[0]
    read, notes = _read(tmp_path, {"id": 1, "bytes": 3}, first, {"id": 1, "bytes": "x"}, {"id": 1, "bytes": 5})
    assert [o.bytes for o in read] == [5] and not notes, "the last line counts"
