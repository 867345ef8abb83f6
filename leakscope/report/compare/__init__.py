"""Reports what leaks in one run and not in another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module

from leakscope.findings.suppressions import Comparison

Render = Callable[[Comparison], str]


def _of(module: str) -> Render:
    def render(comparison: Comparison) -> str:
        text: str = import_module(f"{__name__}.{module}").render(comparison)
        return text

    return render


FORMATS: Mapping[str, Render] = {name: _of(f"as_{name}") for name in ("text", "json", "markdown", "html")}
"""What a format needs is imported when it is asked for; each is pure."""
