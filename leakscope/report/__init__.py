"""The same story told many ways."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path

from leakscope.findings.model import Findings
from leakscope.record.folder import write_json
from leakscope.record.model import Run

Render = Callable[[Run, Findings], str]

_MODULES = {"text": "as_text", "json": "as_json", "html": "as_html", "sarif": "as_sarif", "junit": "as_junit"}


class _Formats(Mapping[str, Render]):
    """Renderers by name; a renderer's module, and what it draws with, is imported when it is asked for."""

    def __getitem__(self, name: str) -> Render:
        render: Render = import_module(f"{__name__}.{_MODULES[name]}").render
        return render

    def __iter__(self) -> Iterator[str]:
        return iter(_MODULES)

    def __len__(self) -> int:
        return len(_MODULES)


FORMATS: Mapping[str, Render] = _Formats()
"""`FORMATS["html"](run, findings)` is the page; the names are text, json, html, sarif and junit."""


def write(run: Run, findings: Findings, folder: Path) -> None:
    """Write `findings.json` and `report.html` into `folder`, each appearing whole or not at all.

    Raises OSError where the folder cannot be written.
    """
    write_json(folder / "findings.json", json.loads(FORMATS["json"](run, findings)))
    page = FORMATS["html"](run, findings)
    temporary = folder / f".report.html.{os.getpid()}"
    temporary.write_text(page, encoding="utf-8")
    os.replace(temporary, folder / "report.html")
