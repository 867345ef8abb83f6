"""Two runs as one page that opens offline."""

from __future__ import annotations

from pathlib import Path

from leakscope.findings.suppressions import Change, Comparison
from leakscope.report import html
from leakscope.report.compare import wording
from leakscope.report.escape import cleaned
from leakscope.report.html.filters import FILTERS
from leakscope.report.messages.sentences import title
from leakscope.verdict import Verdict

_COLOURS = {0: Verdict.CLEAN, 2: Verdict.INCONCLUSIVE}
"""Exit status to the verdict whose colour it has; else that of leaks."""
_PARTS = Path(html.__file__).with_name("parts")
"""The styles that all pages have."""


def render(comparison: Comparison) -> str:
    """The whole page, without a script or an outside address; everything that came from the runs is escaped."""
    from markupsafe import Markup

    from leakscope.report.html.filters import templates

    comparison = cleaned(comparison)
    environment = templates(Path(__file__).parent)
    environment.filters |= {**FILTERS, "sentence": lambda text: text[:1].upper() + text[1:]}
    styles = [(_PARTS / name).read_text(encoding="utf-8") for name in ("page.css", "narrow.css", "print.css")]
    return environment.get_template("page.html").render(
        styles=Markup("\n".join(styles)),
        comparison=comparison,
        colour=_COLOURS.get(comparison.exit_status, Verdict.LEAKS),
        kinds=[(change, wording.HEADINGS[change], comparison.of(change)) for change in Change],
        words=wording,
        title=title,
    )
