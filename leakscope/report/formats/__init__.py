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
"""The group in which a package names its formats: `gitlab = "my_package:GITLAB"`, where `GITLAB` is a `Format`."""


class Format(Protocol):
    """One way to tell what was found."""

    @property
    def name(self) -> str:
        """What `--as` calls it."""
        ...

    @property
    def suffix(self) -> str:
        """How its files end: `.sarif`."""
        ...

    def render(self, run: Run, findings: Findings) -> str:
        """All of it, as the text of one file; what comes from the run is escaped.

        It is the same each time: made of these two alone, of no clock, random number, file or environment.
        """
        ...


@dataclass(frozen=True)
class OwnFormat:
    """A format of leakscope's own; its module, and what that draws with, is imported when it is asked for."""

    name: str
    suffix: str
    module: str

    def render(self, run: Run, findings: Findings) -> str:
        """The text that its module makes."""
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
"""A package cannot take the name of one of these."""


PICTURES = ("dot", "svg", "png")
"""What draws one finding alone, in `pictures.py`: no format of a run."""


def format_names() -> tuple[str, ...]:
    """Leakscope's own first; none of the others is imported to be named."""
    return tuple(dict.fromkeys([*(own.name for own in OWN), *sorted(_added())]))


def format_named(name: str) -> Format:
    """The format of that name.

    Raises KeyError where there is none, LeakscopeError where its package cannot be imported.
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
