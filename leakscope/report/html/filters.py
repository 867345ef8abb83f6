"""Filters and environment of the page's templates."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.util import cache_from_source
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

from jinja2 import BytecodeCache, Environment, FileSystemLoader, StrictUndefined
from jinja2.bccache import Bucket

from leakscope.units import bytes_text, listed_numbers

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


class _BesideTemplates(BytecodeCache):
    """In `__pycache__`, or wherever Python's own prefix for it says; jinja2 checks the source and both versions."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load_bytecode(self, bucket: Bucket) -> None:
        """Fill the bucket; what is not there, or of another version, stays to be compiled."""
        try:
            with self._path(bucket).open("rb") as stream:
                bucket.load_bytecode(stream)
        except (OSError, EOFError, ValueError, UnpicklingError):  # not there, or damaged
            bucket.reset()

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Keep what was compiled, whole or not at all, where Python would keep a module's."""
        if sys.dont_write_bytecode:
            return
        path = self._path(bucket)
        temporary = path.with_name(f"{path.name}.{os.getpid()}")
        with suppress(OSError):  # installed where this user may not write
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as stream:
                bucket.write_bytecode(stream)
            os.replace(temporary, path)

    def _path(self, bucket: Bucket) -> Path:
        return Path(cache_from_source(str(self._folder / f"{bucket.key}.py")))


def templates(folder: Path) -> Environment:
    """The templates of a folder; all that is filled in is escaped."""
    return Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        bytecode_cache=_BesideTemplates(folder),
    )
