"""The HTML reports: the page of a run, and the templates of every report."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from importlib.util import cache_from_source
from pathlib import Path
from pickle import UnpicklingError

from jinja2 import Environment, FileSystemBytecodeCache, PackageLoader, StrictUndefined
from jinja2.bccache import Bucket
from markupsafe import Markup, escape

from leakscope.units import bytes_text, listed_numbers

_PLACE = re.compile(r"([\w./-]{0,200}?)([A-Za-z0-9-]{0,10}\.[A-Za-z]\w{0,5}:\d+)")
"""A place and its end: for `src/norm_hooks.py:21` it is `hooks.py:21`."""


def place(text: str) -> Markup:
    """Text whose lines break between words or, in a path, after `/` and `_`, but never within `file.py:12`."""
    return Markup(_PLACE.sub(_breakable, str(escape(text))))


def _breakable(found: re.Match[str]) -> str:
    before = re.sub("[/_]", r"\g<0><wbr>", found[1])
    return f'{before}<span class="whole">{found[2]}</span>'


def ticked(text: str) -> Markup:
    """Text with code between backticks, and each place formatted by `place`."""
    pieces = text.split("`")
    if len(pieces) % 2 == 0:
        return place(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(place(p)) if i % 2 else place(p) for i, p in enumerate(pieces)
    )


class _BytecodeCache(FileSystemBytecodeCache):
    """Compiled templates in `__pycache__` or under Python's prefix for it: compiling takes 0.3 s."""

    def load_bytecode(self, bucket: Bucket) -> None:
        """Fill the bucket; a damaged file counts as missing, and jinja2 compiles the template again."""
        try:
            super().load_bytecode(bucket)
        except (EOFError, OSError, ValueError, UnpicklingError):
            bucket.reset()

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Write the bucket where Python would write a module's bytecode; a read-only installation has no cache."""
        if not sys.dont_write_bytecode:
            with suppress(OSError):
                Path(self.directory).mkdir(parents=True, exist_ok=True)
                super().dump_bytecode(bucket)


def environment() -> Environment:
    """The templates of this package; all values are escaped."""
    made = Environment(
        loader=PackageLoader("leakscope.report", "html"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        bytecode_cache=_BytecodeCache(str(Path(cache_from_source(__file__)).parent)),
    )
    made.filters |= {"bytes": bytes_text, "numbers": listed_numbers, "place": place, "ticked": ticked}
    return made
