"""Where in the user's source is this name made?"""

from __future__ import annotations

import ast
import linecache
import tokenize
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from io import TextIOWrapper
from types import CodeType
from typing import Final

from leakscope.capture.source.library_files import ROOTS, SITE_PACKAGES, is_installed, writer_of
from leakscope.capture.source.notebook import cell_name
from leakscope.originals import Path, open_file, os

_READ: Final = 4
"""Fields of an entry of `linecache.cache` whose lines are there: size, time, lines, name (CPython Lib/linecache.py)."""
_OWN = str(Path(__file__).resolve().parents[2]) + os.sep


_RUNNERS = frozenset(
    {
        "leakscope", "torch", "pytest", "unittest", "accelerate", "deepspeed", "lightning", "lightning_fabric", "ray",
        "IPython", "ipykernel", "coverage", "memray", "scalene", "viztracer", "debugpy", "pyinstrument", "kernprof",
    }
)  # fmt: skip
"""Packages that are run as a module to run something of the user's: the file that is named is all of them that counts
as the user's.
"""
_ADOPTED: list[str] = []
"""Files, and folders with a separator at their end, that are the user's wherever they lie."""


def adopt_script(filename: str, module: str = "") -> None:
    """Count what the user runs as the user's, also where it is installed among the libraries.

    Of a script that is its file and what lies beside it, of a `module` its whole package.
    """
    path = os.path.realpath(filename)
    if is_users(filename) or not os.path.isfile(path):
        return
    _ADOPTED.append(path)
    folder = os.path.dirname(path)
    package = module.partition(".")[0]
    if package:
        above = [str(parent) for parent in Path(path).parents if parent.name == package]
        folder = above[0] if above else ""
    if folder and not _holds_libraries(folder) and os.path.basename(folder) not in _RUNNERS:
        _ADOPTED.append(folder + os.sep)
    is_users.cache_clear()
    _short.cache_clear()


def _holds_libraries(folder: str) -> bool:
    """Whether packages are installed right in this folder, or it has some of the standard library's modules."""
    within = folder + os.sep
    return within in ROOTS or within.endswith(SITE_PACKAGES)


@lru_cache(maxsize=4096)
def is_users(filename: str) -> bool:
    """Whether a file is the user's own code: no library's, nor written by one, and not leakscope's."""
    if not filename or (filename.startswith("<") and not cell_name(filename)):
        return False
    path = os.path.realpath(filename)
    if any(path == adopted or (adopted.endswith(os.sep) and path.startswith(adopted)) for adopted in _ADOPTED):
        return True
    return not path.startswith(_OWN) and not is_installed(path) and not writer_of(path)


def is_ours(filename: str) -> bool:
    """Whether a file is leakscope's own."""
    return os.path.realpath(filename).startswith(_OWN)


def short(filename: str) -> str:
    """The file as a person would write it: relative to the working directory where it lies below it.

    A cell of a notebook is `In[5]`, by the number of its last run.
    """
    return cell_name(filename) or _short(filename)


@lru_cache(maxsize=4096)
def _short(filename: str) -> str:
    if not is_users(filename):
        return library_name(filename)
    try:
        return str(Path(filename).resolve().relative_to(Path.cwd()))
    except (ValueError, OSError):
        return Path(filename).name


def library_name(filename: str) -> str:
    """A library's file from its package on, marked so: `<torch/nn/modules/module.py>`."""
    path = os.path.realpath(filename)
    for root in ROOTS:
        if path.startswith(root):
            return f"<{path[len(root) :].removeprefix('site-packages/')}>"
    if SITE_PACKAGES in path:  # of an environment beside this one, which a .pth file names
        return f"<{path.rpartition(SITE_PACKAGES)[2]}>"
    writer = writer_of(path)
    return f"<{writer}/{Path(filename).name}>" if writer else f"<{Path(filename).name}>"


def at(filename: str, line: int) -> str:
    """`train.py:12`."""
    return f"{short(filename)}:{line}"


def of_code(code: CodeType) -> str:
    """`train.py:12`, the line where a function is defined."""
    return at(code.co_filename, code.co_firstlineno)


def lines_of(filename: str) -> list[str]:
    """Lines of a source file, [] where there is none to read.

    What a notebook has put into `linecache.cache` is taken from there. A file is read without it: what `linecache`
    reads it keeps in the user's process for good.
    """
    kept = linecache.cache.get(filename)
    if kept is not None and len(kept) == _READ:
        return kept[2]
    try:
        with open_file(filename, "rb") as source:  # not by tokenize.open: pyfakefs replaces the `open` that it calls
            encoding, _ = tokenize.detect_encoding(source.readline)
            source.seek(0)
            return TextIOWrapper(source, encoding).readlines()
    except (OSError, SyntaxError, UnicodeDecodeError):
        return []


@lru_cache(maxsize=256)
def _tree(filename: str) -> ast.Module | None:
    lines = lines_of(filename)
    try:
        return ast.parse("".join(lines)) if lines else None
    except (SyntaxError, ValueError):
        return None


def forget() -> None:
    """Let go of the parsed files, tens of thousands of objects each; the lines that were found stay known."""
    _tree.cache_clear()


@lru_cache(maxsize=4096)
def class_line(filename: str, qualname: str) -> int:
    """Line of a class statement by qualified name, 0 where the file does not show it."""
    scope = _scope(filename, qualname)
    return scope.lineno if isinstance(scope, ast.ClassDef) else 0


@lru_cache(maxsize=4096)
def attribute_line(filename: str, qualname: str, attribute: str, last: bool = False) -> int:
    """Line of the first `self.<attribute> = ...` in a class (its `__init__` first), 0 where there is none.

    `last` asks for the last one instead: what a later method puts there. A None or number counts only where nothing
    else is ever assigned: it holds no memory.
    """
    scope = _scope(filename, qualname)
    if scope is None:
        return 0
    methods = [n for n in ast.walk(scope) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    methods.sort(key=lambda n: (n.name != "__init__", n.lineno))
    nodes = [node for method in methods for node in ast.walk(method)]
    lines = _lines(nodes, lambda t: isinstance(t, ast.Attribute) and t.attr == attribute)
    return lines[-1 if last else 0] if lines else 0


@lru_cache(maxsize=4096)
def class_attribute_line(filename: str, qualname: str, attribute: str, last: bool = False) -> int:
    """Line that binds a name in a class's own body, else that of a method which sets such an attribute, 0 if not shown.

    `last` asks for the line that binds it last. A method of that name counts as bound where it is defined.
    """
    scope = _scope(filename, qualname)
    if not isinstance(scope, ast.ClassDef):
        return 0
    lines = _bound(list(_own_nodes(scope)), attribute)
    if lines:
        return max(lines) if last else min(lines)
    return attribute_line(filename, qualname, attribute, last)


@lru_cache(maxsize=4096)
def local_line(filename: str, qualname: str, name: str, last: bool = False, arguments: bool = True) -> int:
    """Line that first binds a local of a function (or, with qualname "", a module's global), 0 if not shown.

    `last` asks for the line that binds it last: in `h = zeros(); for x in data: h = cell(x, h)` the loop's. A None or
    number counts only where nothing else is ever bound to it. Without `arguments` it is 0 for what is an argument.
    """
    scope = _scope(filename, qualname) if qualname else _tree(filename)
    if scope is None:
        return 0
    # what is bound here goes before what is bound inside
    for nodes in (list(_own_nodes(scope)), list(ast.walk(scope))):
        lines = _bound(nodes, name)
        if not lines:
            lines = [n.lineno for n in nodes if isinstance(n, ast.arg) and n.arg == name]
            if lines and not arguments:
                return 0
        if lines:
            return max(lines) if last else min(lines)
    return 0


def _bound(nodes: list[ast.AST], name: str) -> list[int]:
    """Lines that bind a name; where nothing does, those of the functions and classes of that name."""
    lines = _lines(nodes, lambda t: _names(t, name))
    return lines or [n.lineno for n in nodes if isinstance(n, _SCOPES) and n.name == name]


def _lines(nodes: Iterable[ast.AST], wanted: Callable[[ast.AST], bool]) -> list[int]:
    """Lines that bind what is wanted, in the order of the nodes."""
    bound = [(node, target.lineno) for node in nodes for target in _targets(node) if wanted(target)]
    held = [line for node, line in bound if not isinstance(getattr(node, "value", node), (ast.Constant, type(None)))]
    return held or [line for _, line in bound]


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function or module, without those inside the functions and classes it defines."""
    waiting = list(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, _SCOPES):
            waiting += ast.iter_child_nodes(node)


def _names(target: ast.AST, name: str) -> bool:
    # `x.grad = ...` and `x[i] = ...` read x: only a name that is stored to is bound
    return any(isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store) for n in ast.walk(target))


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        flat: list[ast.expr] = []
        for target in node.targets:
            flat += target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
        return flat
    if isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.For, ast.AsyncFor, ast.NamedExpr)):
        return [node.target]
    if isinstance(node, ast.withitem):
        return [node.optional_vars] if node.optional_vars is not None else []
    return []


def _scope(filename: str, qualname: str) -> ast.AST | None:
    scope: ast.AST | None = _tree(filename)
    for part in qualname.split("."):
        if part == "<locals>" or scope is None:
            continue
        scope = next((n for n in ast.walk(scope) if isinstance(n, _SCOPES) and n.name == part), None)
    return scope


_SCOPES = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
