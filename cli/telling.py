"""How is something told on the terminal, and what if that is full, closed, or read no further?"""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from typing import TextIO

import click

from leakscope.errors import LeakscopeError

_STDOUT, _STDERR = 1, 2


def have_streams() -> None:
    """Open those that were closed before we began, on nothing: else they would be None, and the next file that is
    opened would have the number at which C code writes its warnings. What we start finds them closed, as we did.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
            if getattr(sys, name) is None:
                setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))


def tell(text: str, painted: bool = False) -> str:
    """Write to stdout, in its encoding; why that could not be done, "" where it was or where nobody reads on.

    `painted`: with colours, which are not to be taken out again.
    Python would say of what is left in a buffer that cannot be written that it ignored an error, and exit with 120.
    """
    try:
        click.echo(in_encoding_of(sys.stdout, text), nl=not text.endswith("\n"), color=painted or None)
    except OSError as error:
        _forget(_STDOUT)
        return "" if error.errno == errno.EPIPE else f"cannot write to stdout: {error.strerror}"
    return ""


def tell_or_fail(text: str, painted: bool = False) -> None:
    """As `tell`, for a command that does nothing else. Raises LeakscopeError."""
    problem = tell(text, painted)
    if problem:
        raise LeakscopeError(problem)


def settle() -> None:
    """To be called at the very end."""
    for stream, number in ((sys.stdout, _STDOUT), (sys.stderr, _STDERR)):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            _forget(number)


def note(text: str, prefix: str = "leakscope:") -> None:
    """A note on stderr, one line, where somebody can read it; a path in it may hold what moves a cursor."""
    try:
        line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
        click.echo(f"{prefix} {in_encoding_of(sys.stderr, line)}", err=True)
    except OSError:
        _forget(_STDERR)


_DRAWN = {"┬─": "|-", "├─": "|-", "╰→": "`-", "│": "|", "─": "-", "↓": "v", "→": "->"}
"""What traces are drawn with to what stands for it, as wide, where an encoding does not have all of it."""


def in_encoding_of(stream: TextIO | None, text: str) -> str:
    """The text as the stream's encoding can write it: drawn in ASCII where it has no box characters, and of the rest an
    escape for what it lacks.
    """
    encoding = getattr(stream, "encoding", None) or "utf-8"
    if not text.isascii() and not _has(encoding, "".join(_DRAWN)):
        for drawn, plain in _DRAWN.items():
            text = text.replace(drawn, plain)
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _has(encoding: str, text: str) -> bool:
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def _forget(number: int) -> None:
    """What waits in the buffers of a stream goes nowhere."""
    with suppress(OSError), open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), number)
