"""How is a value set on the page: a size, numbers, text with code in it, a drawing?"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from leakscope.report.wording import listed_numbers
from leakscope.units import bytes_text

if TYPE_CHECKING:
    from markupsafe import Markup


def ticked(text: str) -> Markup:
    """Text with what stands between backticks set as code."""
    from markupsafe import Markup, escape

    pieces = text.split("`")
    if len(pieces) % 2 == 0:
        return escape(text)
    return Markup("").join(Markup("<code>{}</code>").format(p) if i % 2 else escape(p) for i, p in enumerate(pieces))


def as_drawing(svg: str) -> Markup | None:
    """A drawing whose texts are escaped already; None where there is none."""
    from markupsafe import Markup

    return Markup(svg) if svg else None


FILTERS: dict[str, Callable[..., Any]] = {"bytes": bytes_text, "numbers": listed_numbers, "ticked": ticked}
"""Filters of the templates, by the name they have there."""
