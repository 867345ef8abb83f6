"""Checks of the script before it runs: its kind, whether it reads arguments, and the functions it defines."""

from __future__ import annotations

import ast
import os
import re
import shlex
import stat
import sys
import tokenize
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from importlib.machinery import PathFinder
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from pkgutil import get_importer

from leakscope.errors import LeakscopeError


def check_script(path: str, needs_source: bool = False) -> None:
    """Raises LeakscopeError unless python can run it: source, bytecode, or a folder or zip file with a __main__.

    `needs_source`: bytecode is refused, because a step function is found in the source.
    """
    try:
        _check_kind(path)
        kind = os.stat(path).st_mode
        if stat.S_ISDIR(kind) or get_importer(path) is not None:
            _check_main_in(path)
        elif not stat.S_ISREG(kind):
            raise LeakscopeError(f"{path} is not a regular file; save the script to one that each rank can read")
        elif not _is_bytecode(path):
            _check_source(path)
        elif needs_source:
            raise LeakscopeError(f"--step-function requires source, but {path} is bytecode")
    except FileNotFoundError:
        instead = "; save stdin to a file" if path == "-" else similar_script(path)
        raise LeakscopeError(f"script not found: {path}{instead}") from None
    except OSError as error:
        raise LeakscopeError(f"cannot read the script {path}: {error.strerror}") from None
    except SyntaxError as error:
        place = f", line {error.lineno}" if error.lineno else ""
        raise LeakscopeError(f"{path} is not a Python script: {error.msg}{place}") from None
    except ValueError as error:
        raise LeakscopeError(f"{path} is not a Python script: {error}") from None
    except (RecursionError, MemoryError):
        raise LeakscopeError(f"{path} is not a Python script: nested too deeply to compile") from None


def _check_kind(path: str) -> None:
    """Raises LeakscopeError for files that are often named instead of a script."""
    if path.endswith(".ipynb"):
        script = f"{path.removesuffix('.ipynb')}.py"
        raise LeakscopeError(
            f"{path} is a notebook; run `jupyter nbconvert --to script {shlex.quote(path)}` and then "
            f"`leakscope run {shlex.quote(script)}`, or use leakscope.check in its cells"
        )
    if path.endswith((".sh", ".bash", ".sbatch", ".slurm")):
        raise LeakscopeError(f"{path} is a shell script; in it, replace `python train.py` by `leakscope run train.py`")
    if os.path.isfile(os.path.join(path, "run.json")):
        raise LeakscopeError(f"{path} is the folder of a run; run `leakscope report {shlex.quote(path)}`")


def _check_source(path: str) -> None:
    with tokenize.open(path) as stream, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # compiled again in the rank, which reports errors
        compile(stream.read(), path, "exec", dont_inherit=True)


def _is_bytecode(path: str) -> bool:
    """Whether it is bytecode. Raises LeakscopeError for bytecode of another Python version."""
    with open(path, "rb") as stream:
        start = stream.read(len(MAGIC_NUMBER))
    if start == MAGIC_NUMBER:
        return True
    if path.endswith(".pyc") or start.startswith(MAGIC_NUMBER[:2]):
        raise LeakscopeError(f"{path} is bytecode of another Python version; use the source")
    return False


def _check_main_in(path: str) -> None:
    if PathFinder.find_spec("__main__", [path]) is None:
        scripts = sorted(Path(path).glob("*.py")) if os.path.isdir(path) else []
        named = [script for script in scripts if len(scripts) == 1 or script.stem in ("train", "main", "run")]
        such = f", as in `leakscope run {shlex.quote(str(named[0]))}`" if named else ""
        raise LeakscopeError(f"no __main__.py in {path}; name the script to run{such}")


def check_module(name: str) -> str:
    """The source file of a module, "" without one; imports nothing.

    Raises LeakscopeError unless the module can be found.
    """
    places: Sequence[str] | None = [*_working_directory(), *sys.path]
    for part in range(1, name.count(".") + 2):
        spec = PathFinder.find_spec(".".join(name.split(".")[:part]), places)
        if spec is None:
            instead = f"; did you mean -m {name[: -len('.py')]}?" if name.endswith(".py") else ""
            raise LeakscopeError(f"module not found: {name}{instead}")
        places = spec.submodule_search_locations or ()
    if places:
        spec = PathFinder.find_spec(f"{name}.__main__", places)
        if spec is None:
            raise LeakscopeError(f"{name} is a package without __main__; name a module to run")
    return spec.origin if spec is not None and spec.origin and spec.origin.endswith(".py") else ""


def _working_directory() -> list[str]:
    """The first entry of `sys.path` under `python -m`; [] with -P or if the folder was removed."""
    try:
        return [] if getattr(sys.flags, "safe_path", False) else [os.getcwd()]
    except OSError:
        return []


def similar_script(path: str) -> str:
    """`; did you mean train.py?` for a script that does not exist; "" if nothing is similar."""
    if os.path.exists(f"{path}.py"):
        return f"; did you mean {path}.py?"
    if re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", path) and not path.endswith(".py"):
        with suppress(LeakscopeError, ImportError, ValueError):
            check_module(path)
            return f"; did you mean -m {path}?"
    if (parent := Path(path).parent) and not parent.is_dir():
        return f" (no such folder: {parent})"
    near = similar_path(Path(path), lambda file: file.suffix == ".py")
    return f"; did you mean {near}?" if near else ""


def similar_path(path: Path, fits: Callable[[Path], bool]) -> str:
    """The path beside it with the most similar name, of those that fit; "" without one."""
    with suppress(OSError):
        names = [each.name for each in path.parent.iterdir() if fits(each)]
        close = get_close_matches(path.name, names, 1)
        return str(path.parent / close[0]) if close else ""
    return ""


_MAX_FILES = 300
"""Maximum number of files read. Heuristic: reading more takes longer than starting a rank."""
_ARGUMENT_LIBRARIES = frozenset({"argparse", "optparse", "getopt", "fileinput", "unittest", "runpy", "cmd", "pdb"})
"""Modules of the standard library that read `sys.argv` or run code that may."""
_DYNAMIC = frozenset({"importlib", "ctypes", "pkgutil"})
"""Modules of the standard library that may run code which is not visible here."""
_NO_ARGUMENTS = frozenset(
    {"torch", "torchvision", "torchaudio", "numpy", "scipy", "matplotlib", "pandas", "PIL", "tqdm", "einops", "sklearn"}
)
"""Packages that read no arguments; for others it is unknown."""
_ARGUMENT_NAMES = frozenset({"argv", "orig_argv", "cmdline", "parse_args", "parse_known_args", "ArgumentParser"})
_RUNS_CODE = frozenset({"exec", "eval", "compile", "__import__"})
_LAUNCH = "torch.distributed.run."
"""The part of torch that reads arguments."""


class Takes(Enum):
    """Whether a script takes arguments."""

    YES = "yes"
    """Its source reads them."""
    UNKNOWN = "unknown"
    """Its visible source does not, but it runs code that is not visible."""
    NO = "no"
    """Nothing in it can read them."""


def takes_arguments(script: Path) -> Takes:
    """Whether a script, with the modules beside it that it imports, reads its command line."""
    waiting, seen, answer = [script], {script}, Takes.NO
    while waiting:
        tree = _tree(waiting.pop())
        if tree is None or len(seen) > _MAX_FILES:
            return Takes.UNKNOWN
        for node in ast.walk(tree):
            found = _reads_arguments(node)
            if found == Takes.YES:
                return found
            if found == Takes.UNKNOWN:
                answer = found
        for name in _imported(tree):
            root = name.partition(".")[0]
            files = _local_files(script.parent, name)
            if files:
                waiting += [file for file in files if file not in seen]
                seen.update(files)
            elif root in _ARGUMENT_LIBRARIES:
                return Takes.YES
            elif root in _DYNAMIC or root not in _NO_ARGUMENTS | sys.stdlib_module_names or _LAUNCH in f"{name}.":
                answer = Takes.UNKNOWN
    return answer


def _reads_arguments(node: ast.AST) -> Takes:
    """Whether one node of the source reads arguments."""
    name = ""
    if isinstance(node, ast.Name):
        if node.id in _RUNS_CODE:
            return Takes.UNKNOWN
        name = node.id
    elif isinstance(node, ast.Attribute):
        name = node.attr
    elif isinstance(node, ast.alias):
        name = node.name
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        return Takes.YES if node.value in ("argv", "orig_argv") or "/cmdline" in node.value else Takes.NO
    return Takes.YES if name in _ARGUMENT_NAMES or "argparse" in name.lower() else Takes.NO


def _tree(path: Path) -> ast.Module | None:
    try:
        with tokenize.open(path) as stream, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(stream.read())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _imported(tree: ast.Module) -> Iterator[str]:
    """Names of the imported modules; each name of a `from` import counts as a possible module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names if _may_be_local(node.module))
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")  # relative to a package


def _may_be_local(module: str) -> bool:
    return module.partition(".")[0] not in sys.stdlib_module_names | _NO_ARGUMENTS


def _local_files(folder: Path, name: str) -> list[Path]:
    """The files that importing a module beside the script runs; [] for modules from elsewhere."""
    files: list[Path] = []
    place = folder
    for part in name.split("."):
        if not part:
            return []
        package, module = place / part / "__init__.py", place / f"{part}.py"
        if package.is_file():
            files.append(package)
        elif module.is_file():
            return [*files, module]
        elif not (place / part).is_dir():
            break
        place = place / part
    return files


@dataclass(frozen=True)
class DefinedFunctions:
    """The functions that a script's source defines or imports."""

    names: tuple[str, ...]
    """In the form of `--step-function`: `train_step`, `Trainer.training_step`."""
    imported: frozenset[str]
    """Top-level names that are imported."""
    assigned: frozenset[str]
    """Names that are assigned, and classes."""
    is_all: bool
    """Whether the source shows all names that are defined."""

    def defines(self, name: str) -> bool:
        """Whether the source defines, imports or assigns the name."""
        return name in self.imported | self.assigned or any(name in has.split(".") for has in self.names)


def defined_functions(script: Path) -> DefinedFunctions | None:
    """The functions of a script at any depth; None if its source cannot be read."""
    from leakscope.findings.source.scopes import functions_in

    tree = _tree(script)
    if tree is None:
        return None
    hidden = any(
        (isinstance(node, ast.Name) and node.id in (*_RUNS_CODE, "globals", "setattr", "vars", "locals"))
        or (isinstance(node, ast.alias) and node.name == "*")
        or (isinstance(node, ast.Attribute) and node.attr in ("__dict__", "import_module"))
        for node in ast.walk(tree)
    )
    imported = (
        (alias.asname or alias.name).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    )
    assigned = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    assigned |= {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    names = tuple(dict.fromkeys(functions_in(tree)))
    return DefinedFunctions(names, frozenset(imported), frozenset(assigned), not hidden and "__getattr__" not in names)


def missing_step_function(script: Path, name: str, folders: list[str]) -> str:
    """The error for a step function that certainly does not exist, with similar names; "" if it may exist.

    A name is certainly missing if the script neither defines nor imports it and has no other way to define it, and if
    its first part is no importable module, or one whose source lacks it too.
    """
    from leakscope.findings.source.scopes import like

    found = defined_functions(script)
    if found is None or not found.is_all:
        return ""
    parts = name.split(".")
    if parts[0] in found.imported or any(has.split(".")[-len(parts) :] == parts for has in found.names):
        return ""
    names, where = found.names, str(script)
    spec = PathFinder.find_spec(parts[0], folders) if len(parts) > 1 else None
    if spec is not None:
        module = defined_functions(Path(spec.origin)) if spec.origin and spec.origin.endswith(".py") else None
        if module is None or not module.is_all or spec.submodule_search_locations or module.defines(parts[1]):
            return ""
        names, where = tuple(f"{parts[0]}.{has}" for has in module.names), spec.origin or ""
    near = " or ".join(like(name, names))
    return f"{where} neither defines nor imports {name}{f'; did you mean {near}?' if near else ''}"
