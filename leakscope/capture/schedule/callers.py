"""Where the script calls what ends a step: through a library's call, and from which of its loops."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from types import FrameType
from typing import NamedTuple

from leakscope.capture.source.user_source import is_ours, is_users
from leakscope.originals import Path, os

_TORCH = f"{os.sep}site-packages{os.sep}torch{os.sep}"
_MOST_BETWEEN = 256
"""Calls from elsewhere after which those of a library are all taken again. An adaptive solver evaluates a model 14 to
some hundred times for one call; at 32 its evaluations end steps, at ten thousand a trainer of an unknown library that
began with a check of its own has no step in a short run.
"""
_MOST_CHAINS = 8
"""Places in the script that are remembered, to name the function that makes a step."""
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_COMPREHENSIONS = ("<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class LibraryCalls:
    """Tells the first of the calls that one call of a library makes: a solver evaluates a model many times.

    The return of a running library function is not seen without tracing the script. Where it first called is: a step
    goes from one call at that place to the next. Loops of a trainer call at one place, so each of theirs ends a step.
    Nothing of a frame is kept but numbers.
    """

    def __init__(self) -> None:
        self._first: int | None = None
        self._others = 0

    def is_first(self, frame: FrameType | None) -> bool:
        """Whether a call that runs below `frame` is made by the script, or is the first of a library's call."""
        place = _place_in_library(frame)
        if place is None:
            return True
        if self._first is None or self._others >= _MOST_BETWEEN:
            self._first = place
        if place == self._first:
            self._others = 0
            return True
        self._others += 1
        return False


def _place_in_library(frame: FrameType | None) -> int | None:
    """A hash of the lines from the script's innermost frame to a call, None where no library's stand between them."""
    place: list[tuple[int, int]] = []
    between = False
    while frame is not None:
        file = frame.f_code.co_filename
        if is_users(file):
            return hash((*place, id(frame.f_code), frame.f_lasti)) if between else None
        between = between or _is_library(file)
        place.append((id(frame.f_code), frame.f_lasti))
        frame = frame.f_back
    return None


@lru_cache(maxsize=4096)
def _is_library(file: str) -> bool:
    """Whether a file that is not the script's is neither torch's nor leakscope's."""
    return _TORCH not in file and not is_ours(file)


class Place(NamedTuple):
    """A line of the script that runs a call."""

    file: str
    line: int
    module: str
    function: str
    """Qualified name of the function that it is in, `<module>` outside of all."""


class ScriptCalls:
    """The ways by which the script came to some calls, as lines alone."""

    def __init__(self) -> None:
        self._chains: dict[tuple[Place, ...], None] = {}

    def note(self, frame: FrameType | None) -> None:
        """Note the frames of the script below which something happens."""
        if len(self._chains) >= _MOST_CHAINS:
            return
        chain = []
        while frame is not None:
            code = frame.f_code
            if is_users(code.co_filename):
                module = frame.f_globals.get("__name__")
                chain.append(
                    Place(code.co_filename, frame.f_lineno, module if type(module) is str else "", code.co_qualname)
                )
            frame = frame.f_back
        self._chains[tuple(reversed(chain))] = None

    def step_functions(self) -> tuple[str, ...]:
        """Functions that a loop of the script calls, as `--step-function` takes them: those in which it came to pass.

        Of several loops in one another the outermost that calls a function counts.
        """
        return tuple(dict.fromkeys(name for chain in self._chains for name in _called_in_loop(chain)))


def _called_in_loop(chain: tuple[Place, ...]) -> Iterator[str]:
    for caller, called in pairwise(chain):
        if (caller.function.endswith(_COMPREHENSIONS) or _is_in_loop(caller)) and "<" not in called.function.replace(
            ".<locals>.", "."
        ):
            name = called.function.rpartition("<locals>.")[2]
            yield name if called.module in ("__main__", "") else f"{called.module}.{name}"
            return


def _is_in_loop(place: Place) -> bool:
    """Whether a line is in a loop of its own function."""
    try:
        tree = ast.parse(Path(place.file).read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return False
    own = within = False
    waiting: list[tuple[ast.AST, bool]] = [(tree, False)]
    while waiting:
        node, in_loop = waiting.pop()
        first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", None) or 0
        if isinstance(node, ast.stmt) and first <= place.line <= last:
            own, within = True, in_loop
        for below in ast.iter_child_nodes(node):
            around = in_loop and not isinstance(node, _FUNCTIONS)
            waiting.append((below, around or isinstance(node, _LOOPS)))
    return own and within
