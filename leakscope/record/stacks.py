"""Where was a rank when it was told to end?"""

from __future__ import annotations

import re

from leakscope.errors import Unreadable
from leakscope.files import read_regular
from leakscope.originals import Path

_LEFT_OUT = ("/leakscope/capture/", "/leakscope/bootstrap.py", "<frozen ")
_MOST_BYTES = 1 << 24
"""A larger file is not read; chosen: faulthandler writes a few kilobytes a thread."""


def read_stack(path: Path) -> tuple[str, ...]:
    """The stack that faulthandler wrote when the rank was told to end, the innermost call last; () where there is none.

    Of several threads the one that the signal met is taken, else the main thread, which faulthandler lists last.
    """
    try:
        text = read_regular(path, _MOST_BYTES).decode(errors="replace")
    except Unreadable:
        return ()
    sections = re.split(r"^(?:Current thread|Thread) .*\n", text, flags=re.MULTILINE)
    stacks = [re.findall(r"^  File .*", section, flags=re.MULTILINE) for section in sections[1:]]
    shown = [[line for line in reversed(stack) if not any(ours in line for ours in _LEFT_OUT)] for stack in stacks]
    running = [stack for stack in shown if any("/lib/python" not in line for line in stack)]
    return ("Stack when it was told to end (most recent call last):", *running[-1]) if running else ()
