"""How is a value set on the page: a size, numbers, text with code in it, a drawing?"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from leakscope.report.wording import listed_numbers
from leakscope.units import bytes_text

if TYPE_CHECKING:
    from markupsafe import Markup


_PLACE = re.compile(r"([\w./-]{0,200}?)([A-Za-z0-9-]{0,10}\.[A-Za-z]\w{0,5}:\d+)")
"""A place and its end: of `src/norm_hooks.py:21` that is `hooks.py:21`."""


def place(text: str) -> Markup:
    """Text in which the end of each place, the line's number with it, is never broken into two lines, and what comes
    before it rather between two words than within one.
    """
    from markupsafe import Markup, escape

    return Markup(_PLACE.sub(_breakable, str(escape(text))))


def _breakable(found: re.Match[str]) -> str:
    before = re.sub("[/_]", r"\g<0><wbr>", found[1])
    return f'{before}<span class="whole">{found[2]}</span>'


def ticked(text: str) -> Markup:
    """Text with what stands between backticks set as code, and each place as `place` sets it."""
    from markupsafe import Markup

    pieces = text.split("`")
    if len(pieces) % 2 == 0:
        return place(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(place(p)) if i % 2 else place(p) for i, p in enumerate(pieces)
    )


def as_drawing(svg: str) -> Markup | None:
    """A drawing whose texts are escaped already; None where there is none."""
    from markupsafe import Markup

    return Markup(svg) if svg else None


FILTERS: dict[str, Callable[..., Any]] = {
    "bytes": bytes_text,
    "numbers": listed_numbers,
    "place": place,
    "ticked": ticked,
}
"""Filters of the templates, by the name they have there."""
