"""Where leakscope's own backward does it right: the function that its user calls and the line, read from its source."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

_BACKWARD = Path(__file__).resolve().parents[2] / "backward"


@lru_cache(maxsize=1)
def _all() -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for path in sorted(_BACKWARD.glob("*.py")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            _, _, mark = line.partition("# cure: ")
            slug, _, function = mark.strip().partition(" in ")
            if slug:
                found.setdefault(slug, []).append(
                    f"leakscope.backward.{function} (leakscope/backward/{path.name}:{number})"
                )
    return {slug: tuple(places) for slug, places in found.items()}


def places(slug: str) -> tuple[str, ...]:
    """`leakscope.backward.stage_backward_weight (leakscope/backward/split.py:88)` for a mark `# cure: <slug> in <function>`."""
    return _all().get(slug, ())
