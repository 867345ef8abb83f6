"""How is a value set on the page: a size, numbers, text with code in it, a drawing?"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from leakscope.report.wording import listed_numbers
from leakscope.units import bytes_text

if TYPE_CHECKING:
    from markupsafe import Markup


_END = re.compile(r"[A-Za-z0-9-]{0,10}\.[A-Za-z]\w{0,5}:\d+")
"""The end of a place: of `src/norm_hooks.py:21` it is `hooks.py:21`."""


def place(text: str) -> Markup:
    """Text in which the end of each place, the line's number with it, is never broken into two lines."""
    from markupsafe import Markup, escape

    return Markup(_END.sub(r'<span class="whole">\g<0></span>', str(escape(text))))


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
