"""Renders a run and its findings: terminal, page, JSON, SARIF, JUnit, Markdown, memory snapshots."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from leakscope.report.formats import format_named, format_names
from leakscope.run.descriptors import write_whole
from leakscope.run.writer import write_json

if TYPE_CHECKING:
    from leakscope.findings.model import Findings
    from leakscope.run.model import Run

Render = Callable[["Run", "Findings"], str]


class _Formats(Mapping[str, Render]):
    """Renderers by name, imported on first use."""

    def __getitem__(self, name: str) -> Render:
        return format_named(name).render

    def __iter__(self) -> Iterator[str]:
        return iter(format_names())

    def __len__(self) -> int:
        return len(format_names())


FORMATS: Mapping[str, Render] = _Formats()
"""`FORMATS["html"](run, findings)` returns the page; text, json, html, markdown, sarif, junit, trace, and formats of
other packages.
"""


def load() -> None:
    """Import what text and page need, to save time later."""
    import_module("leakscope.report.text.page")
    import_module("leakscope.report.html.page").load()


def write(run: Run, findings: Findings, folder: Path) -> None:
    """Write `findings.json` and `report.html` into `folder`, each atomically.

    Raises OSError if the folder cannot be written.
    """
    from leakscope.report.formats.as_json import as_data

    write_json(folder / "findings.json", as_data(run, findings))
    page = FORMATS["html"](run, findings)
    write_whole(folder / "report.html", page.encode())
