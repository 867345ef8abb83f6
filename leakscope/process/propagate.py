"""The rank of this process, and its place in the tree of processes, before it joins others."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from leakscope.options import Options, launchers_number
from leakscope.originals import Path, os
from leakscope.process.guard import CLOCK
from leakscope.process.patches import Patches
from leakscope.run.processes import Who
from leakscope.run.secrets import masked
from leakscope.run.writer import write_json


def who_am_i() -> Who:
    """What is known of this process before it joins a group."""
    multiprocessing = sys.modules.get("multiprocessing.process")
    place = () if multiprocessing is None else tuple(multiprocessing.current_process()._identity)
    rank, world = (launchers_number(os.environ, *said) for said in (("RANK", -1), ("WORLD_SIZE", 1)))
    return Who(os.getpid(), os.getppid(), CLOCK.wall_time(), place, rank if 0 <= rank < world else None, max(world, 1))


OPTIONS = ".follow.json"
"""In the run's folder: the options of those that are followed, and the command line as the run shows it."""


def light() -> Any:
    """The part that a followed process begins with, which is loaded once."""
    return sys.modules.get("leakscope_following") or import_module("leakscope.process.site.leakscope_following")


def hand_on(options: Options, patches: Patches) -> None:
    """Follow what this process, the first, starts. Raises OSError."""
    folder = options.folder
    told, *command = options.to_words()
    write_json(folder / OPTIONS, [told, *masked(command)])
    following = light()
    following.follow(str(folder))
    for owner, name, made in following.places():
        patches.replace(owner, name, made)
    patches.add("following of children", following.stop)


def options_in(folder: str) -> Options:
    """Those of the processes of this run that are followed. Raises Unreadable or ValueError."""
    from leakscope.files import read_json

    return Options.from_words(read_json(Path(folder) / OPTIONS))


def is_followed(program: str, words: Sequence[str]) -> bool:
    """Whether this Python, followed, is what runs."""
    return bool(light().is_followed(program, words))


def environment() -> dict[str, str]:
    """What the environment of a process that is followed says beside the rest; nothing where none is."""
    told: dict[str, str] = light().told()
    return told
