"""Has this process been forked since? A wrapper asks on every call, and asking for the process's number is a system call."""

from __future__ import annotations

import os

FORKS = [0]
"""How many forks lie between this process and the one that first imported leakscope; differs in a child."""


def _count() -> None:
    FORKS[0] += 1


os.register_at_fork(after_in_child=_count)
