"""Hands on to what a process starts that it is followed; the part that knows nothing of leakscope's does it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from leakscope.capture.process.patches import Patches
from leakscope.options import Options
from leakscope.originals import Path
from leakscope.record.folder import write_json
from leakscope.record.secrets import masked

OPTIONS = ".follow.json"
"""In the run's folder: the options of those that are followed, and the command line as the run shows it."""


def light() -> Any:
    """The part that a followed process begins with, which is loaded once."""
    return sys.modules.get("leakscope_following") or import_module("leakscope.capture.follow.site.leakscope_following")


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
