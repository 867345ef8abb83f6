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
    """Whether a real path is within a folder of installed libraries."""
    return path.startswith(ROOTS) or SITE_PACKAGES in path


@lru_cache(maxsize=4096)
def writer_of(path: str) -> str:
    """The installed package that generated the module at a real path, as `torch_geometric`; "" for others.

    Its name starts with the package's, and its path is not where an import would find it.
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
    """Names of modules within packages, by the file name of their path; valid while the number of
    modules is unchanged.
    """
    found: dict[str, list[str]] = {}
    for name, module in list(sys.modules.items()):
        if "." in name and (file := _file_of(module)):
            found.setdefault(os.path.basename(file), []).append(name)
    return found


def _file_of(module: Any) -> str:
    """The file of a module, from its dict: a module may define `__getattr__`, and an entry may be any object."""
    if not issubclass(type(module), ModuleType):
        return ""
    file = object.__getattribute__(module, "__dict__").get("__file__")
    return file if type(file) is str else ""


def _is_at_its_place(path: str, name: str) -> bool:
    """Whether a module of this name would be imported from there, as part of a package that the user extends."""
    place = Path(path)
    parts = place.parent.parts if place.stem == "__init__" else (*place.parent.parts, place.stem)
    wanted = tuple(name.split("."))
    return parts[-len(wanted) :] == wanted


MAIN = "__main__"


def session() -> dict[str, Any]:
    """Attributes of the IPython shell in this process; {} without one.

    Its class holds it (traitlets/config/configurable.py, SingletonConfigurable); no IPython code runs.
    """
    module = sys.modules.get("IPython.core.interactiveshell")
    shell = vars(module).get("InteractiveShell") if module is not None else None
    instance = vars(shell).get("_instance") if isinstance(shell, type) else None
    return {} if instance is None else object.__getattribute__(instance, "__dict__")


def cells() -> dict[str, int]:
    """File name of each cell's code, mapped to the number of its last run (IPython/core/compilerop.py,
    CachingCompiler).
    """
    compiler = session().get("compile")
    named = getattr(compiler, "__dict__", {}).get("_filename_map")
    return named if type(named) is dict else {}


def cell_name(filename: str) -> str:
    """The name of a cell, as `In[5]`; "" if the file is not a cell."""
    number = cells().get(filename)
    return "" if type(number) is not int else f"In[{number}]"


def is_of_session(namespace: dict[str, Any]) -> bool:
    """Whether this is the namespace shared by the cells."""
    return namespace.get("__name__") == MAIN and "__file__" not in namespace and bool(cells())


def newest_first() -> list[str]:
    """File names of the cells, the most recent first."""
    return sorted(cells(), key=cells().__getitem__, reverse=True)


_READ: Final = 4
"""Fields of an entry of `linecache.cache` with loaded lines: size, time, lines, name (CPython Lib/linecache.py)."""
_OWN = str(Path(__file__).resolve().parents[1]) + os.sep


_RUNNERS = frozenset(
    {
        "leakscope", "torch", "pytest", "unittest", "accelerate", "deepspeed", "lightning", "lightning_fabric", "ray",
        "IPython", "ipykernel", "coverage", "memray", "scalene", "viztracer", "debugpy", "pyinstrument", "kernprof",
    }
)  # fmt: skip
"""Packages that run user code as a module: only the named file counts as the user's."""
_ADOPTED: list[str] = []
"""Files, and folders with a trailing separator, that count as the user's wherever they are."""


def adopt_script(filename: str, module: str = "") -> None:
    """Count the program that is run as the user's, even if it is installed among libraries.

    For a script this is its file and its folder, for a `module` its whole package.
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
    """Whether packages are installed directly in this folder, or it contains modules of the standard library."""
    within = folder + os.sep
    return within in ROOTS or within.endswith(SITE_PACKAGES)


@lru_cache(maxsize=4096)
def is_users(filename: str) -> bool:
    """Whether a file is the user's own code: not from a library, generated by one, or leakscope's."""
    if not filename or (filename.startswith("<") and not cell_name(filename)):
        return False
    path = os.path.realpath(filename)
    if any(path == adopted or (adopted.endswith(os.sep) and path.startswith(adopted)) for adopted in _ADOPTED):
        return True
    return not path.startswith(_OWN) and not is_installed(path) and not writer_of(path)


def is_ours(filename: str) -> bool:
    """Whether a file belongs to leakscope."""
    return os.path.realpath(filename).startswith(_OWN)


def short(filename: str) -> str:
    """The path for display: relative to the working directory if below it.

    A notebook cell is `In[5]`, by the number of its last run.
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
    """The path of a library file from its package on, as `<torch/nn/modules/module.py>`."""
    path = os.path.realpath(filename)
    for root in ROOTS:
        if path.startswith(root):
            return f"<{path[len(root) :].removeprefix('site-packages/')}>"
    if SITE_PACKAGES in path:  # of an environment beside this one, named by a .pth file
        return f"<{path.rpartition(SITE_PACKAGES)[2]}>"
    writer = writer_of(path)
    return f"<{writer}/{Path(filename).name}>" if writer else f"<{Path(filename).name}>"


def at(filename: str, line: int) -> str:
    """File and line, as `train.py:12`."""
    return f"{short(filename)}:{line}"


def of_code(code: CodeType) -> str:
    """The line where a function is defined, as `train.py:12`."""
    return at(code.co_filename, code.co_firstlineno)


def lines_of(filename: str) -> list[str]:
    """Lines of a source file; [] if it cannot be read.

    Lines that a notebook put into `linecache.cache` are taken from there. Files are read without `linecache`, which
    would keep them in the user's process for good.
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
    """Drop the parsed files, tens of thousands of objects each; lines found so far stay cached."""
    _tree.cache_clear()


@lru_cache(maxsize=4096)
def class_line(filename: str, qualname: str) -> int:
    """Line of a class statement by qualified name; 0 if the file does not contain it."""
    scope = _scope(filename, qualname)
    return scope.lineno if isinstance(scope, ast.ClassDef) else 0


@lru_cache(maxsize=4096)
def attribute_line(filename: str, qualname: str, attribute: str, last: bool = False) -> int:
    """Line of the first `self.<attribute> = ...` in a class (its `__init__` first); 0 if there is none.

    `last` requests the last one, which a later method may set. Assignments of None or a number count only if there is
    no other: they hold no memory.
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
    """Line that binds a name in a class body, else in a method that sets such an attribute; 0 if unknown.

    `last` requests the line that binds it last. A method of that name counts as bound where it is defined.
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
    """Line that first binds a local of a function (or, with qualname "", a global of a module); 0 if unknown.

    `last` requests the line that binds it last: in `h = zeros(); for x in data: h = cell(x, h)` the one in the loop.
    Bindings to None or a number count only if there is no other. Without `arguments` it is 0 for arguments.
    """
    scope = _scope(filename, qualname) if qualname else _tree(filename)
    if scope is None:
        return 0
    # bindings here precede those inside
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
    """Lines that bind a name, or else those of the functions and classes of that name."""
    lines = _lines(nodes, lambda t: _names(t, name))
    return lines or [n.lineno for n in nodes if isinstance(n, _SCOPES) and n.name == name]


def _lines(nodes: Iterable[ast.AST], wanted: Callable[[ast.AST], bool]) -> list[int]:
    """Lines that bind a wanted name, in the order of the nodes."""
    bound = [(node, target.lineno) for node in nodes for target in _targets(node) if wanted(target)]
    held = [line for node, line in bound if not isinstance(getattr(node, "value", node), (ast.Constant, type(None)))]
    return held or [line for _, line in bound]


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function or module, without those of nested functions and classes."""
    waiting = list(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, _SCOPES):
            waiting += ast.iter_child_nodes(node)


def _names(target: ast.AST, name: str) -> bool:
    # `x.grad = ...` and `x[i] = ...` read x: only a name that is stored is bound
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
"""Maximum files kept with a run. Heuristic."""
_FRAME = re.compile(r'([\s|+]*)File ".*", line \d+')
"""Start of a frame in a traceback, and location of a SyntaxError; the indentation is a group."""
_MAX_LINES = 20_000
"""Maximum lines of a kept file. Heuristic: longer ones are generated."""


def users_sources() -> dict[str, tuple[str, ...]]:
    """Lines of every imported file of the user, by the short name used for lines in a run.

    In a notebook, of its cells as last run.
    """
    sources = {short(cell): tuple(line.rstrip("\n") for line in lines_of(cell)) for cell in newest_first()[:_MAX_FILES]}
    for filename in _users_files():
        lines = lines_of(filename)
        if lines and len(lines) <= _MAX_LINES and len(sources) < _MAX_FILES:
            sources[short(filename)] = tuple(line.rstrip("\n") for line in lines)
    return sources


def paths_of_sources() -> dict[str, str]:
    """Real path of every imported file of the user, by the short name used for lines in a run."""
    return {short(filename): os.path.realpath(filename) for filename in _users_files()}


def _users_files() -> list[str]:
    """Paths of the imported files of the user."""
    files = dict.fromkeys(map(_file_of, list(sys.modules.values())))
    return [filename for filename in files if filename.endswith(".py") and is_users(filename)]


def without_source(stack: Sequence[str]) -> tuple[str, ...]:
    """The lines of a traceback without source lines and markers."""
    kept, below = [], ""
    for line in stack:
        frame = _FRAME.match(line)
        if frame is None and below and line.startswith(below + "  "):
            continue
        below = "" if frame is None else frame[1]
        kept.append(line)
    return tuple(kept)
