"""Parts of a rank's files that are left out because they are damaged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from leakscope.errors import Unreadable
from leakscope.files import parse_json, read_json, read_lines
from leakscope.originals import Path

T = TypeVar("T")

_MAX_PARTS = 3
"""Maximum damaged parts of one file that are reported one by one. Heuristic."""


class Damage:
    """Collects the sentences about omitted files and lines while one rank is read."""

    def __init__(self, grows: bool = False) -> None:
        """`grows` if lines are still being added, so that the last one of a file may be incomplete."""
        self._grows = grows
        self._notes: list[str] = []
        self._parts: Counter[str] = Counter()
        self._files: dict[str, None] = {}

    def of_file(self, name: str, why: object) -> None:
        """Record that a whole file is omitted."""
        self._files[name] = None
        self._notes.append(f"{name} is damaged and was skipped: {why}")

    def of_part(self, name: str, part: str, why: object) -> None:
        """Record that a part of a file is omitted: `line 7`."""
        self._files[name] = None
        self._parts[name] += 1
        if self._parts[name] <= _MAX_PARTS:
            self._notes.append(f"{part} of {name} is damaged and was skipped: {why}")

    def note(self, text: str) -> None:
        """Record a sentence about something that was never complete."""
        self._notes.append(text)

    def notes(self) -> tuple[str, ...]:
        """Return all sentences, in the order in which the files were read."""
        more = {name: parts - _MAX_PARTS for name, parts in self._parts.items() if parts > _MAX_PARTS}
        return (*self._notes, *(f"{count} more damaged parts of {name} were skipped" for name, count in more.items()))

    def files(self) -> tuple[str, ...]:
        """Names of the files that are omitted or incomplete."""
        return tuple(self._files)

    def read(self, path: Path, read: Callable[[Any], T], otherwise: T) -> T:
        """Pass the content of a JSON file to `read`; return `otherwise` if it is missing or damaged."""
        if not is_there(path):
            return otherwise
        try:
            return read(read_json(path))
        except (ValueError, Unreadable) as error:
            self.of_file(path.name, error)
            return otherwise

    def each(self, path: Path, read: Callable[[Any], T]) -> Iterator[T]:
        """Pass each complete line of a file to `read`; empty if there is no file."""
        if not is_there(path):
            return
        lines = self._lines(path)
        number, line = 1, next(lines, None)
        while line is not None:
            after = next(lines, None)
            try:
                yield read(parse_json(line))
            except Unreadable as error:
                if after is not None:
                    self.of_part(path.name, f"line {number}", error)
                elif not self._grows:
                    self.note(f"the last line of {path.name} was cut off when the rank died and was skipped")
            except ValueError as error:
                self.of_part(path.name, f"line {number}", error)
            number, line = number + 1, after

    def _lines(self, path: Path) -> Iterator[bytes]:
        try:
            yield from read_lines(path)
        except Unreadable as error:
            self.of_file(path.name, error)


def is_there(path: Path) -> bool:
    """Whether anything has this name, including a broken link."""
    try:
        path.lstat()
    except OSError as error:
        return not isinstance(error, FileNotFoundError)
    return True
