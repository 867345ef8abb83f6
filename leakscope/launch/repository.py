"""Where in its repository is a script run? Code hosts know files by their path from there."""

from __future__ import annotations

import os
from pathlib import Path

_MARK = ".git"
"""A folder, or a file in a work tree of its own, at the root of a repository."""


def in_repository(script: str) -> dict[str, str]:
    """The working folder and the script, each from the root of the repository that the script is in, else the folder:
    `{"folder": "examples", "script": "examples/train.py"}`; what is not in it is left out, and all where there is none.

    Args:
        script: its path; "" where a module is run.

    """
    try:
        folder = Path.cwd().resolve()
        file = (folder / script).resolve() if script else folder
        root = next((above for start in (file, folder) for above in (start, *start.parents) if _is_root(above)), None)
    except OSError:
        return {}
    if root is None:
        return {}
    paths = {"folder": folder, **({"script": file} if script else {})}
    return {name: path.relative_to(root).as_posix() for name, path in paths.items() if path.is_relative_to(root)}


def _is_root(folder: Path) -> bool:
    return os.path.lexists(folder / _MARK)
