"""Reads regular files only, and JSON without NaN and Infinity."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from leakscope.errors import Unreadable
from leakscope.originals import Path, json, os

MAX_BYTES = 1 << 29
"""Maximum bytes of a file that is read. Heuristic: a heap snapshot of a million objects takes a fifth of it."""

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_HALF = re.compile(rb"\\u[dD][89abAB]..(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F]")
"""A lone surrogate as JSON escapes it, which cannot be encoded, or text that looks like one."""


def read_regular(path: Path, most: int = MAX_BYTES) -> bytes:
    """The content of a regular file, or of the target of a link; if the file grows meanwhile, its first bytes.

    Nothing else is opened: a pipe waits for its writer, a device may have no end. Raises Unreadable with the reason
    and without the file's name: `it is a named pipe, not a regular file`.
    """
    with _opened(path, most) as (stream, size):
        return stream.read(size)


def read_lines(path: Path, most: int = MAX_BYTES) -> Iterator[bytes]:
    """Yield the lines of a regular file without their ends; raises Unreadable as `read_regular` does."""
    with _opened(path, most) as (stream, size):
        left = size
        while left and (line := stream.readline(left)):
            left -= len(line)
            yield from line.splitlines()  # split as the whole is, also at a lone carriage return


@contextmanager
def _opened(path: Path, most: int) -> Iterator[tuple[BinaryIO, int]]:
    """Open a regular file, and yield it with its size in bytes; raises Unreadable."""
    try:
        _size_of(os.stat(path), most)  # opening a device may have effects
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(opened, "rb") as stream:
            yield stream, _size_of(os.fstat(opened), most)
    except FileNotFoundError:
        raise Unreadable("there is no such file") from None
    except OSError as error:
        raise Unreadable(f"it cannot be read ({error.strerror})") from None
    except ValueError:  # a NUL in the name
        raise Unreadable("it is not a valid file name") from None
    except MemoryError:
        raise Unreadable("there is not enough memory to read it") from None


def _size_of(about: os.stat_result, most: int) -> int:
    """Size of a file in bytes; raises Unreadable unless it is a regular file of at most `most` bytes."""
    if not stat.S_ISREG(about.st_mode):
        kind = next((name for is_one, name in _KINDS if is_one(about.st_mode)), "something else")
        raise Unreadable(f"it is {kind}, not a regular file")
    if about.st_size > most:
        raise Unreadable(f"it has {about.st_size} bytes; the limit is {most}")
    return about.st_size


def read_json(path: Path, most: int = MAX_BYTES) -> Any:
    """Parse a JSON file; raises Unreadable with the reason and without the file's name."""
    return parse_json(read_regular(path, most))


def parse_json(data: bytes) -> Any:
    """Parse JSON in UTF-8; raises Unreadable."""
    try:
        value = _JSON.decode(data.decode())
        some = b"\\ud" in data or b"\\uD" in data  # found a hundred times faster than a surrogate
        return _whole(value) if some and _HALF.search(data) else value
    except RecursionError:
        raise Unreadable("it is nested too deeply") from None
    except MemoryError:
        raise Unreadable("there is not enough memory to read it") from None
    except ValueError as error:
        raise Unreadable(f"it is not valid JSON: {error}") from None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON number")


_JSON = json.JSONDecoder(parse_constant=_refuse)


def _whole(value: Any) -> Any:
    """The value with each lone surrogate written as an escape."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, list):
        return [_whole(item) for item in value]
    if isinstance(value, dict):
        return {_whole(key): _whole(item) for key, item in value.items()}
    return value
