"""Runs edited copies of source files in place of the originals, in a process that tries a fix.

The copies are found by the import system, by `python script.py` and `python -m module`, by processes that
`multiprocessing` spawns, and by `inspect` and tracebacks. Nothing is written to the originals or their bytecode caches:
every file keeps its name, `__file__` and `co_filename`.
"""

from __future__ import annotations

import _frozen_importlib_external
import _io
import io

from leakscope.originals import open_file, os

TYPE_CHECKING = False  # typing itself takes milliseconds to import
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

NAME = "overlay"
"""The file of a run's folder that lists the originals with their copies, one pair a line, separated by a tab."""


def write_overlay(folder: str, copies: Mapping[str, str]) -> None:
    """Make the processes of a run use copies of some files.

    Args:
        folder: The folder of the run.
        copies: Real path of each original, mapped to that of its copy.

    """
    with open_file(os.path.join(folder, NAME), "w", encoding="utf-8") as file:
        file.writelines(f"{original}\t{copy}\n" for original, copy in copies.items())


def copies_in(folder: str) -> dict[str, str]:
    """Real path of each original, mapped to that of its copy; {} if a folder has none."""
    try:
        with open_file(os.path.join(folder, NAME), encoding="utf-8") as file:
            return dict(line.rstrip("\n").split("\t") for line in file)
    except FileNotFoundError:
        return {}


def install_overlay(folder: str) -> bool:
    """Use the copies of a run from here on; returns whether there are any.

    `SourceLoader.get_code` reads the file through `_io.open_code` and neither reads nor writes bytecode if the file has
    no time stamp (CPython Lib/importlib/_bootstrap_external.py); `runpy` and leakscope's own start use `io.open_code`.
    """
    copies = copies_in(folder)
    if not copies:
        return False
    source_loader: Any = _frozen_importlib_external.SourceFileLoader
    open_code, path_stats = _io.open_code, source_loader.path_stats

    def open_edited(path: Any) -> Any:
        copy = copies.get(os.path.realpath(path))
        if copy is None:
            return open_code(path)
        _show_in_tracebacks(os.fspath(path), copy)
        return open_code(copy)

    def no_stats(self: Any, path: Any) -> Any:
        if os.path.realpath(path) in copies:
            raise OSError(f"{path} is replaced by a copy")
        return path_stats(self, path)

    _io.open_code = io.open_code = open_edited
    source_loader.path_stats = no_stats
    return True


def _show_in_tracebacks(path: str, copy: str) -> None:
    """Make `linecache` return the lines of the copy.

    An entry without a time stamp is never checked (CPython Lib/linecache.py, checkcache).
    """
    import linecache
    import tokenize

    with tokenize.open(copy) as file:
        lines = file.readlines()
    linecache.cache[path] = (sum(map(len, lines)), None, lines, path)
