"""What a script's source says before it runs: whether it reads its arguments, and which functions it has."""

from __future__ import annotations

import ast
import sys
import tokenize
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from importlib.machinery import PathFinder
from pathlib import Path

_MOST_FILES = 300
"""Files read at the most; chosen: more are a project whose imports take longer to follow than the start of a rank."""
_ARGUMENT_LIBRARIES = frozenset({"argparse", "optparse", "getopt", "fileinput", "unittest", "runpy", "cmd", "pdb"})
"""Of the standard library, what reads `sys.argv` or runs something that may."""
_DYNAMIC = frozenset({"importlib", "ctypes", "pkgutil"})
"""Of the standard library, what may run code that is not seen here."""
_SILENT = frozenset(
    {"torch", "torchvision", "torchaudio", "numpy", "scipy", "matplotlib", "pandas", "PIL", "tqdm", "einops", "sklearn"}
)
"""Installed packages that read no arguments when they are imported and used; of others it is not known."""
_WORDS = frozenset({"argv", "orig_argv", "cmdline", "parse_args", "parse_known_args", "ArgumentParser"})
_RUNS_CODE = frozenset({"exec", "eval", "compile", "__import__"})
_LAUNCH = "torch.distributed.run."
"""Of torch, what reads its arguments."""


class Takes(Enum):
    """Whether a script takes arguments."""

    YES = "yes"
    """Something in it reads them."""
    UNKNOWN = "unknown"
    """Nothing that is seen does, but not all of it is seen."""
    NO = "no"
    """Nothing in it can."""


def takes_arguments(script: Path) -> Takes:
    """Whether a script, with the modules beside it that it imports, reads its command line."""
    waiting, seen, answer = [script], {script}, Takes.NO
    while waiting:
        tree = _tree(waiting.pop())
        if tree is None or len(seen) > _MOST_FILES:
            return Takes.UNKNOWN
        for node in ast.walk(tree):
            found = _read(node)
            if found == Takes.YES:
                return found
            if found == Takes.UNKNOWN:
                answer = found
        for name in _imported(tree):
            root = name.partition(".")[0]
            files = _beside(script.parent, name)
            if files:
                waiting += [file for file in files if file not in seen]
                seen.update(files)
            elif root in _ARGUMENT_LIBRARIES:
                return Takes.YES
            elif root in _DYNAMIC or root not in _SILENT | sys.stdlib_module_names or _LAUNCH in f"{name}.":
                answer = Takes.UNKNOWN
    return answer


def _read(node: ast.AST) -> Takes:
    """What one node of the source says."""
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
    return Takes.YES if name in _WORDS or "argparse" in name.lower() else Takes.NO


def _tree(path: Path) -> ast.Module | None:
    try:
        with tokenize.open(path) as stream, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(stream.read())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _imported(tree: ast.Module) -> Iterator[str]:
    """Modules that are imported by name, each name of a `from` import as if it were one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names if _may_be_beside(node.module))
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")  # of a package: known nowhere


def _may_be_beside(module: str) -> bool:
    return module.partition(".")[0] not in sys.stdlib_module_names | _SILENT


def _beside(folder: Path, name: str) -> list[Path]:
    """The files that are run when a module beside the script is imported; [] for one that lies elsewhere."""
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
class Functions:
    """The functions that a script's source defines or imports."""

    names: tuple[str, ...]
    """As `--step-function` takes them: `train_step`, `Trainer.training_step`."""
    imported: frozenset[str]
    """First names that come from elsewhere."""
    assigned: frozenset[str]
    """Names that something else is bound to."""
    is_all: bool
    """Nothing defines names in a way that the source does not show."""

    def defines(self, name: str) -> bool:
        """Whether the source binds a name, be it a class or a function, an import or an assignment."""
        return name in self.imported | self.assigned or any(name in has.split(".") for has in self.names)


def functions_of(script: Path) -> Functions | None:
    """What is defined in a script, at whatever depth; None where its source cannot be read."""
    from leakscope.findings.source.functions import functions_in

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
    return Functions(names, frozenset(imported), frozenset(assigned), not hidden and "__getattr__" not in names)


def missing_step_function(script: Path, name: str, folders: list[str]) -> str:
    """Why no function of this name can be found, with names that are like it; "" where it may be there.

    A name is missing for certain only where the script neither defines nor imports it and has no other way to define
    it, and where its first part is either no module that could be imported or one whose source says the same.
    """
    from leakscope.findings.source.functions import like

    found = functions_of(script)
    if found is None or not found.is_all:
        return ""
    parts = name.split(".")
    if parts[0] in found.imported or any(has.split(".")[-len(parts) :] == parts for has in found.names):
        return ""
    names, where = found.names, str(script)
    spec = PathFinder.find_spec(parts[0], folders) if len(parts) > 1 else None
    if spec is not None:
        module = functions_of(Path(spec.origin)) if spec.origin and spec.origin.endswith(".py") else None
        if module is None or not module.is_all or spec.submodule_search_locations or module.defines(parts[1]):
            return ""
        names, where = tuple(f"{parts[0]}.{has}" for has in module.names), spec.origin or ""
    near = " or ".join(like(name, names))
    return f"{where} has no function {name}, nor does it import one{f'; did you mean {near}?' if near else ''}"
