"""Where leakscope's own backward does it right: the function and the line, read from its source."""

from __future__ import annotations

import ast
from functools import lru_cache
from pathlib import Path

_BACKWARD = Path(__file__).resolve().parent.parent / "backward"


@lru_cache(maxsize=1)
def _all() -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for path in sorted(_BACKWARD.glob("*.py")):
        text = path.read_text(encoding="utf-8")
        functions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
        for number, line in enumerate(text.splitlines(), 1):
            _, mark, slug = line.partition("# cure: ")
            if mark:
                around = [f for f in functions if f.lineno <= number <= (f.end_lineno or 0)]
                name = min(around, key=lambda f: (f.end_lineno or 0) - f.lineno).name if around else ""
                public = name if name and not name.startswith("_") else f"{path.stem}.{name}".rstrip(".")
                found.setdefault(slug.strip(), []).append(f"leakscope.backward.{public} (leakscope/backward/{path.name}:{number})")
    return {slug: tuple(places) for slug, places in found.items()}


def places(slug: str) -> tuple[str, ...]:
    """`leakscope.backward.stage_backward_weight (leakscope/backward/split.py:88)` for a `# cure: <slug>` mark."""
    return _all().get(slug, ())
