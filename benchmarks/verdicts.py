"""Compares what two versions of leakscope report of recorded runs, format by format."""

from __future__ import annotations

import difflib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FORMATS = ("json", "text", "html", "sarif", "junit")
IGNORED = {"format"}
"""Numbers of file formats, which say nothing about a run."""
OWN_LINE = re.compile(r"(leakscope/[\w/]+\.py):\d+")
"""A line of leakscope's own source, as in a `see` hint: it moves with every edit."""
LONGEST = 200
"""Characters of a difference that are shown."""


def render(out: Path, runs: list[Path]) -> None:
    """Write what this version says of each run in each format."""
    from importlib import import_module

    import leakscope

    formats = import_module("leakscope.report").FORMATS
    out.mkdir(parents=True, exist_ok=True)
    for folder in runs:
        try:
            try:
                run = leakscope.read_run(folder, snapshots=True)
            except leakscope.LeakscopeError as error:
                (out / f"{folder.name}.error").write_text(str(error), encoding="utf-8")
                continue
            findings = leakscope.judge(run)
            for name in FORMATS:
                (out / f"{folder.name}.{name}").write_text(formats[name](run, findings), encoding="utf-8")
        except Exception as error:  # noqa: BLE001 - a version that fails on a run differs there
            (out / f"{folder.name}.error").write_text(f"{type(error).__name__}: {error}", encoding="utf-8")


def differences(base: Any, new: Any, where: str = "") -> Iterator[str]:
    """Each leaf of two JSON documents that differs, by its path."""
    if isinstance(base, dict) and isinstance(new, dict):
        for key in sorted({*base, *new} - IGNORED):
            yield from differences(base.get(key, "(absent)"), new.get(key, "(absent)"), f"{where}.{key}")
    elif isinstance(base, list) and isinstance(new, list) and len(base) == len(new):
        for place, (before, after) in enumerate(zip(base, new, strict=True)):
            yield from differences(before, after, f"{where}[{place}]")
    elif base != new:
        yield f"{where}: {base!r:.{LONGEST}} -> {new!r:.{LONGEST}}"


def verdict_of(path: Path) -> str:
    """What a version wrote, lines of its own source left out; "" where it wrote nothing."""
    return OWN_LINE.sub(r"\1", path.read_text(encoding="utf-8")) if path.exists() else ""


def compare(base: Path, new: Path) -> int:
    """Print what differs between two folders that `render` wrote; the number of files that do."""
    different = 0
    names = sorted({path.name for folder in (base, new) for path in folder.iterdir()})
    for name in names:
        before, after = (verdict_of(folder / name) for folder in (base, new))
        if before == after:
            continue
        if name.endswith(".json") and before and after:
            lines = list(differences(json.loads(before), json.loads(after)))
        else:
            changed = difflib.unified_diff(before.splitlines(), after.splitlines(), "base", "new", n=0, lineterm="")
            lines = [line[:LONGEST] for line in changed if not line.startswith(("---", "+++", "@@"))]
        if lines:
            different += 1
            print(f"{name}: {len(lines)} differences")
            print("\n".join(f"    {line}" for line in lines[:12]))
    print(f"{len(names) - different} of {len(names)} files say the same")
    return different


def main(arguments: list[str]) -> int:
    """Run one of the two commands."""
    if arguments[:1] == ["render"] and len(arguments) > 2:
        render(Path(arguments[1]), [Path(name) for name in arguments[2:]])
        return 0
    if arguments[:1] == ["compare"] and len(arguments) == 3:
        return 1 if compare(Path(arguments[1]), Path(arguments[2])) else 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
