"""Is this a process forked from the one that is recorded?

Wrappers ask on every call, and asking for the number of the process would be a system call.
"""

from __future__ import annotations

import os

ForkMark = list[bool]
"""Empty, and so false, in the process where it was asked for; true in every process forked from that one since."""

_MARKS: list[ForkMark] = [[]]
"""The mark of this process; the only entry."""


def in_forked_child() -> ForkMark:
    """To be kept, and tested like a truth value whenever the question comes up: that runs no line of Python."""
    return _MARKS[0]


def _forked() -> None:
    _MARKS[0].append(True)  # whoever holds it was made before the fork
    _MARKS[0] = []


os.register_at_fork(after_in_child=_forked)
