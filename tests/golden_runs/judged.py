"""The findings of recorded runs as plain fields: `python -m golden_runs.judged` in tests/ records them anew.

Each archive is one run as `leakscope run` wrote it, with the script it ran in the `sources` of its run.json.
"""

from __future__ import annotations

import json
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

from leakscope.findings.judge import judge
from leakscope.findings.model import Findings, by_kind
from leakscope.run.reader import read_run

HERE = Path(__file__).parent
EXPECTED = HERE / "expected.json"
NAMES = sorted(path.name.removesuffix(".tar.xz") for path in HERE.glob("*.tar.xz"))
SENTENCES = {("See", "does"), ("See", "lines")}
"""Fields that are text for a reader."""
INDEXES = {
    ("CutReference", "indexes"), ("Hop", "index"), ("Hop", "references"), ("Finding", "storages"),
    ("Finding", "cut_in"), ("CycleReference", "holder_index"), ("CycleReference", "index"),
    ("CycleReference", "held_index"),
}  # fmt: skip
"""Fields that have a meaning beside the heap alone."""


def judged(name: str) -> Any:
    """The fields of one run's findings, with the growth of the run by category."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(HERE / f"{name}.tar.xz") as archive:
            archive.extractall(folder, filter="data")
        found = judge(read_run(Path(folder), snapshots=True))
    lines = [line for intervals in found.ledgers.values() for interval in intervals for line in interval.lines]
    return {"growth": plain({str(k): v for k, v in by_kind(lines).items() if v}), **plain(found)}


def plain(value: Any) -> Any:
    """JSON of a value: of a dataclass the fields that differ from their defaults."""
    if is_dataclass(value) and not isinstance(value, type):
        return dict(_fields(value))
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(plain(item) for item in value)
    if isinstance(value, float):
        return round(value, 6)
    return str(value) if isinstance(value, str) else value


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    kind = type(value).__name__
    if not isinstance(value, Findings):
        yield "is", kind
    for field in fields(value):
        item = getattr(value, field.name)
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        if item != default and item is not None and (kind, field.name) not in SENTENCES | INDEXES:
            yield field.name, plain(item)


def differences(expected: Any, found: Any, where: str = "") -> Iterator[str]:
    """Each field that differs, by its path."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in sorted({*expected, *found}):
            yield from differences(expected.get(key), found.get(key), f"{where}.{key}" if where else key)
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for place, pair in enumerate(zip(expected, found, strict=True)):
            yield from differences(*pair, f"{where}[{place}]")
    elif expected != found:
        yield f"{where}: {expected!r} -> {found!r}"


@cache
def expected() -> dict[str, Any]:
    """What was recorded of each run."""
    recorded: dict[str, Any] = json.loads(EXPECTED.read_text(encoding="utf-8"))
    return recorded


def main() -> None:
    """Record the fields of every run; with --check, end with 1 at the first run that differs."""
    if "--check" not in sys.argv:
        text = json.dumps({name: judged(name) for name in NAMES}, indent=1, ensure_ascii=False)
        EXPECTED.write_text(text + "\n", encoding="utf-8")
        return
    for name in NAMES:
        different = list(differences(expected()[name], judged(name)))
        if different:
            sys.exit(f"{name}: {different[0]}")


if __name__ == "__main__":
    main()
