"""The functions that a source defines, and those whose names are like one that was typed."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import PurePosixPath

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_MOST = 3
"""Names that are offered in place of one that is not there; chosen: one line has room for them."""
_LIKE = 0.5
"""Ratio of difflib's from which on a name is like another; its default of 0.6 misses `step` for `train_step`."""


def functions_in(tree: ast.AST, above: tuple[str, ...] = ()) -> Iterator[str]:
    """Each function, by its name and those of the classes and functions that it stands in: `Trainer.training_step`."""
    for node in ast.iter_child_nodes(tree):
        within = (*above, node.name) if isinstance(node, (*_FUNCTIONS, ast.ClassDef)) else above
        if isinstance(node, _FUNCTIONS):
            yield ".".join(within)
        yield from functions_in(node, within)


def like(name: str, names: Sequence[str]) -> tuple[str, ...]:
    """Those of the names that may have been meant by one that is none of them, the most alike first."""
    last = name.rpartition(".")[2].lower()
    lasts = {has: has.rpartition(".")[2].lower() for has in names}
    close = get_close_matches(name, names, _MOST, _LIKE)
    close += [has for has, its in lasts.items() if its == last or get_close_matches(last, [its], 1, _LIKE)]
    return tuple(dict.fromkeys(close))[:_MOST]


def like_in(name: str, sources: Mapping[str, Sequence[str]], script: str) -> tuple[str, ...]:
    """The same of all kept files; what is no function of the `script` has its module before it."""
    names = []
    for file, lines in sources.items():
        try:
            tree = ast.parse("\n".join(lines))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        is_script = PurePosixPath(file).name == PurePosixPath(script).name
        module = "" if is_script else f"{PurePosixPath(file).with_suffix('').as_posix().replace('/', '.')}."
        names += [f"{module}{function}" for function in functions_in(tree)]
    return like(name, names)
