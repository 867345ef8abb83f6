"""One finding as a drawing: `--as dot`, `svg` or `png`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leakscope.errors import LeakscopeError
from leakscope.findings.model import Finding, Findings
from leakscope.report import drawing
from leakscope.units import plural

if TYPE_CHECKING:
    from leakscope.run.model import Run

_MOST = 500
"""Maximum objects of a picture, heuristic: dot takes seconds for them."""
_FINGERPRINT = 8
"""Characters of a fingerprint; a shorter number is a position in the list."""


@dataclass(frozen=True)
class Picture:
    """A drawing of one finding, requested like a format."""

    name: str
    """Its name for `--as`: one of `formats.PICTURES`."""
    finding: str
    """Argument of `finding_named`."""

    @property
    def suffix(self) -> str:
        """The suffix of its files."""
        return f".{self.name}"

    def render(self, run: Run, findings: Findings) -> str | bytes:  # noqa: ARG002 - as a format's
        """Render the picture.

        Raises:
            LeakscopeError: There is no such finding, nothing to draw of it, or `dot` is not installed.

        """
        source = dot_source(finding_named(findings, self.finding))
        if self.name == "dot":
            return source
        image = drawing.rendered(source, self.name)
        return image.decode() if self.name == "svg" else image


def finding_named(findings: Findings, name: str) -> Finding:
    """The finding of a fingerprint, of its unique prefix, or at that position in the list, from 1.

    Raises LeakscopeError if there is none, or more than one.
    """
    listed = findings.findings + findings.suppressed
    if name.isascii() and name.isdigit() and len(name) < _FINGERPRINT and 1 <= int(name) <= len(listed):
        return listed[int(name) - 1]
    found = [finding for finding in listed if name and finding.fingerprint.startswith(name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise LeakscopeError(f"{name!r} begins the fingerprints of {plural(len(found), 'finding')}; give more of it")
    known = ", ".join(finding.fingerprint for finding in listed[:_FINGERPRINT])
    raise LeakscopeError(f"no finding is {name!r}; " + (f"there are {known}" if known else "the run has none"))


def dot_source(finding: Finding) -> str:
    """The drawing in Graphviz's language.

    Raises:
        LeakscopeError: No reference of the finding is known, or too many are.

    """
    drawn = drawing.of_finding(finding, _MOST)
    if drawn is None:
        raise LeakscopeError(f"nothing to draw of {finding.fingerprint}: no reference is known, or too many are")
    return drawing.dot_source(drawn)
