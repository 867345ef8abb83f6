"""Where leakscope's own backward does it right: the function that its user calls and the line, read from its source."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

_BACKWARD = Path(__file__).resolve().parents[2] / "backward"
_MARK = "# see also: "
"""Opens a comment in that source: `# see also: <slug> in <function>`."""


def places(slug: str) -> tuple[str, ...]:
    """`leakscope.backward.stage_backward (leakscope/backward/full.py:88)` for each line marked with this slug."""
    return _marked_lines().get(slug, ())


@lru_cache(maxsize=1)
def _marked_lines() -> dict[str, tuple[str, ...]]:
    marked: dict[str, list[str]] = {}
    for path in sorted(_BACKWARD.glob("*.py")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            slug, _, function = line.partition(_MARK)[2].strip().partition(" in ")
            if slug:
                place = f"leakscope.backward.{function} (leakscope/backward/{path.name}:{number})"
                marked.setdefault(slug, []).append(place)
    return {slug: tuple(lines) for slug, lines in marked.items()}
