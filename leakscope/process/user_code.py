"""Tells files of the user from those of libraries, and reads their source."""

from __future__ import annotations

import ast
import linecache
import re
import site
import sys
import sysconfig
import tokenize
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from io import TextIOWrapper
from types import CodeType, ModuleType
from typing import Any, Final

from leakscope.originals import Path, open_file, os, tempfile

ROOTS = tuple(
    os.path.realpath(path) + os.sep
    for path in {sysconfig.get_paths()["stdlib"], sysconfig.get_paths()["platstdlib"], *site.getsitepackages()}
)
"""Folders of the standard library and of installed packages."""
SITE_PACKAGES = f"{os.sep}site-packages{os.sep}"
# the default of torch/_inductor/runtime/cache_dir_utils.py
_INDUCTOR = os.path.join(os.path.realpath(tempfile.gettempdir()), "torchinductor_")


def is_installed(path: str) -> bool:
    """Whether a real path lies where libraries are installed."""
    return path.startswith(ROOTS) or SITE_PACKAGES in path


@lru_cache(maxsize=4096)
def writer_of(path: str) -> str:
    """`torch_geometric` for the real path of a module that this installed package wrote and imported; "" for others.

    Its name begins with the package's, and it lies where nobody would import that name from.
    """
    if path.startswith(_INDUCTOR):
        return "torch"
    for name in modules_by_file(len(sys.modules)).get(os.path.basename(path), ()):
        package = name.partition(".")[0]
        above = _file_of(sys.modules.get(package))
        if os.path.realpath(_file_of(sys.modules.get(name))) != path or not above:
            continue
        if is_installed(os.path.realpath(above)) and not _is_at_its_place(path, name):
            return package
    return ""


@lru_cache(maxsize=1)
def modules_by_file(_count: int) -> dict[str, list[str]]:
    """Names of the modules within packages by the last part of their file's path, while as many are loaded."""
    found: dict[str, list[str]] = {}
    for name, module in list(sys.modules.items()):
        if "." in name and (file := _file_of(module)):
            found.setdefault(os.path.basename(file), []).append(name)
    return found


def _file_of(module: Any) -> str:
    """The file of a module by its dict: a module may define `__getattr__`, and an entry need be no module."""
    if not issubclass(type(module), ModuleType):
        return ""
    file = object.__getattribute__(module, "__dict__").get("__file__")
    return file if type(file) is str else ""


def _is_at_its_place(path: str, name: str) -> bool:
    """Whether a module of this name would be imported from there, as a part of a package that a user adds to."""
    place = Path(path)
    parts = place.parent.parts if place.stem == "__init__" else (*place.parent.parts, place.stem)
    wanted = tuple(name.split("."))
    return parts[-len(wanted) :] == wanted


MAIN = "__main__"


def session() -> dict[str, Any]:
    """The attributes of the IPython shell that runs in this process, {} without one.

    Its class keeps it (traitlets/config/configurable.py, SingletonConfigurable); no code of IPython's runs.
    """
    module = sys.modules.get("IPython.core.interactiveshell")
    shell = vars(module).get("InteractiveShell") if module is not None else None
    instance = vars(shell).get("_instance") if isinstance(shell, type) else None
    return {} if instance is None else object.__getattribute__(instance, "__dict__")


def cells() -> dict[str, int]:
    """File name of each cell's code to the number of its last run (IPython/core/compilerop.py, CachingCompiler)."""
    compiler = session().get("compile")
    named = getattr(compiler, "__dict__", {}).get("_filename_map")
    return named if type(named) is dict else {}


def cell_name(filename: str) -> str:
    """`In[5]`; "" where the file is no cell's."""
    number = cells().get(filename)
    return "" if type(number) is not int else f"In[{number}]"


def is_of_session(namespace: dict[str, Any]) -> bool:
    """Whether these are the names that the cells share."""
    return namespace.get("__name__") == MAIN and "__file__" not in namespace and bool(cells())


def newest_first() -> list[str]:
    """File names of the cells, that which ran last first."""
    return sorted(cells(), key=cells().__getitem__, reverse=True)


_READ: Final = 4
"""Fields of an entry of `linecache.cache` whose lines are there: size, time, lines, name (CPython Lib/linecache.py)."""
_OWN = str(Path(__file__).resolve().parents[1]) + os.sep


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


_MAX_FILES = 300
"""Files kept of a run, chosen."""
_FRAME = re.compile(r'([\s|+]*)File ".*", line \d+')
"""Begins a frame in a traceback, and the place of a SyntaxError; its indentation is a group."""
_MAX_LINES = 20_000
"""Lines of a file that is kept, chosen: longer ones are generated."""


def users_sources() -> dict[str, tuple[str, ...]]:
    """Lines of every file of the user's that this process has imported, by the short name used for lines in a run.

    In a notebook those of its cells, as they ran last.
    """
    sources = {short(cell): tuple(line.rstrip("\n") for line in lines_of(cell)) for cell in newest_first()[:_MAX_FILES]}
    for module in list(sys.modules.values()):
        # the module's dict is read, not its attributes: a module may define __getattr__
        namespace = module.__dict__ if type(module).__name__ == "module" else {}
        filename = namespace.get("__file__")
        if type(filename) is not str or not filename.endswith(".py") or not is_users(filename):
            continue
        lines = lines_of(filename)
        if lines and len(lines) <= _MAX_LINES and len(sources) < _MAX_FILES:
            sources[short(filename)] = tuple(line.rstrip("\n") for line in lines)
    return sources


def without_source(stack: Sequence[str]) -> tuple[str, ...]:
    """The lines of a traceback without the source lines in it, and without what points into them."""
    kept, below = [], ""
    for line in stack:
        frame = _FRAME.match(line)
        if frame is None and below and line.startswith(below + "  "):
            continue
        below = "" if frame is None else frame[1]
        kept.append(line)
    return tuple(kept)
