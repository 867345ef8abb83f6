"""Where does a file of a run lie in its repository? Code hosts know it by that path."""

from __future__ import annotations

from posixpath import basename, isabs, join, normpath
from typing import NamedTuple
from urllib.parse import quote

from leakscope.findings.naming.place import place_of
from leakscope.record.model import Run

_OUTSIDE = ".."
_MODULE = "-m"


class TreeLine(NamedTuple):
    """A line of a file."""

    path: str
    """From the root of the repository, or of the folder in which packages are installed."""
    line: int
    is_packages: bool = False
    """It is an installed package's."""

    @property
    def uri(self) -> str:
        """The path as a URI reference; a file outside of both by its whole path."""
        return ("file://" if isabs(self.path) else "") + quote(self.path)


def tree_line(run: Run, where: str) -> TreeLine | None:
    """The line that `train.py:41 forward` points at; None where it names none."""
    place = place_of(where)
    if place is None:
        return None
    file = place.file.replace("\\", "/")
    if file.startswith("<") and file.endswith(">"):
        return TreeLine(file[1:-1], place.line, is_packages=True) if file[1:-1] else None
    return TreeLine(_in_repository(run, file), place.line)


def script_line(run: Run) -> TreeLine:
    """The first line of what was run, for what no line is known of."""
    if run.command[:1] != (_MODULE,):
        return TreeLine(_in_repository(run, _named(run.command[0]) if run.command else "unknown"), 1)
    module = "".join(run.command[1:2]).replace(".", "/") or "unknown"
    names = (f"{module}/__main__.py", f"{module}.py")
    return TreeLine(_in_repository(run, next((name for name in names if name in run.sources), names[-1])), 1)


def _in_repository(run: Run, file: str) -> str:
    if run.repository.script and run.command and file == _named(run.command[0]):
        return run.repository.script
    if isabs(file):
        return file
    path = normpath(join(run.repository.folder, file))
    return basename(path) if path.startswith(_OUTSIDE) else path


def _named(script: str) -> str:
    """A script as the places of a run name it: by its own name alone where it lies outside of the working folder."""
    path = normpath(script.replace("\\", "/"))
    return basename(path) if isabs(path) or path.startswith(_OUTSIDE) else path
