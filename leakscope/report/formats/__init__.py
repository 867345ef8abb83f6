"""The formats of a report: leakscope's own, and those that other packages add."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Protocol

from leakscope.errors import LeakscopeError

if TYPE_CHECKING:
    from leakscope.findings.model import Findings
    from leakscope.run.model import Run

ENTRY_POINTS = "leakscope.formats"
"""Entry point group for formats of other packages: `gitlab = "my_package:GITLAB"`, where `GITLAB` is a `Format`."""


class Format(Protocol):
    """An output format."""

    @property
    def name(self) -> str:
        """Its name for `--as`."""
        ...

    @property
    def suffix(self) -> str:
        """The suffix of its files: `.sarif`."""
        ...

    def render(self, run: Run, findings: Findings) -> str:
        """Render the findings as the text of one file, with all recorded text escaped.

        Deterministic: depends only on its arguments, not on a clock, random number, file or environment.
        """
        ...


@dataclass(frozen=True)
class OwnFormat:
    """A format of leakscope, whose module is imported on first use."""

    name: str
    suffix: str
    module: str

    def render(self, run: Run, findings: Findings) -> str:
        """Render with its module."""
        text: str = import_module(self.module).render(run, findings)
        return text


OWN: tuple[Format, ...] = (
    OwnFormat("text", ".txt", "leakscope.report.text.page"),
    OwnFormat("json", ".json", "leakscope.report.formats.as_json"),
    OwnFormat("html", ".html", "leakscope.report.html.page"),
    OwnFormat("markdown", ".md", "leakscope.report.formats.as_markdown"),
    OwnFormat("sarif", ".sarif", "leakscope.report.formats.as_sarif"),
    OwnFormat("junit", ".xml", "leakscope.report.formats.as_junit"),
    OwnFormat("trace", ".trace.json", "leakscope.report.formats.as_trace"),
)
"""Names that other packages cannot use."""


PICTURES = ("dot", "svg", "png")
"""Formats of a single finding, rendered by `report.drawing`."""


def format_names() -> tuple[str, ...]:
    """Leakscope's formats first; the others are not imported."""
    return tuple(dict.fromkeys([*(own.name for own in OWN), *sorted(_added())]))


def format_named(name: str) -> Format:
    """The format of that name.

    Raises KeyError if there is none, LeakscopeError if its package cannot be imported.
    """
    own = next((own for own in OWN if own.name == name), None)
    if own is not None:
        return own
    entry = _added()[name]
    try:
        added: Format = entry.load()
    except (ImportError, AttributeError) as error:
        raise LeakscopeError(f"the format {name} ({entry.value}) cannot be imported: {error}") from None
    return added


def _added() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}
