"""The user's own source files as they stood, so that a report can point at the line that assigns a name."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

from leakscope.capture.source.notebook import newest_first
from leakscope.capture.source.user_source import is_users, lines_of, short

_MAX_FILES = 300
"""Files kept of a run, chosen."""
_FRAME = re.compile(r'([\s|+]*)File ".*", line \d+')
"""Begins a frame in a traceback, and the place of a SyntaxError; its indentation is a group."""
_MAX_LINES = 20_000
"""Lines of a file that is kept, chosen: longer ones are generated."""


def users_sources() -> dict[str, tuple[str, ...]]:
    """Lines of every file of the user's that this process has imported, by the short name used for lines in a run.

    In a notebook those of its cells, as they ran last.
    """
    sources = {short(cell): tuple(line.rstrip("\n") for line in lines_of(cell)) for cell in newest_first()[:_MAX_FILES]}
    for module in list(sys.modules.values()):
        # the module's dict is read, not its attributes: a module may define __getattr__
        namespace = module.__dict__ if type(module).__name__ == "module" else {}
        filename = namespace.get("__file__")
        if type(filename) is not str or not filename.endswith(".py") or not is_users(filename):
            continue
        lines = lines_of(filename)
        if lines and len(lines) <= _MAX_LINES and len(sources) < _MAX_FILES:
            sources[short(filename)] = tuple(line.rstrip("\n") for line in lines)
    return sources


def without_source(stack: Sequence[str]) -> tuple[str, ...]:
    """The lines of a traceback without the source lines in it, and without what points into them."""
    kept, below = [], ""
    for line in stack:
        frame = _FRAME.match(line)
        if frame is None and below and line.startswith(below + "  "):
            continue
        below = "" if frame is None else frame[1]
        kept.append(line)
    return tuple(kept)
