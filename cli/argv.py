"""Splits the command line into leakscope's words and the script's, and reads which options the script takes."""

from __future__ import annotations

import ast
import sys
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from importlib.machinery import PathFinder
from pathlib import Path

import click
from leakscope_cli.first_mistakes import script_named

TYPED = "leakscope.typed"
"""Where click's context keeps the `Typed` of a command line."""
_MODULE = "-m"
_RANKS = ("-n", "--ranks")
_SHORTEST = 5
"""Letters from which on a word may be another one misspelled, with its dashes; chosen: `--lr` is near nothing."""


@dataclass(frozen=True)
class Typed:
    """The words of a command line, by whose they are."""

    ours: tuple[str, ...]
    target: tuple[str, ...]
    """The script, or `-m` and a module."""
    theirs: tuple[str, ...]


class RunCommand(click.Command):
    """Takes its own options before the script; `--ranks N` also right after it, and any of them before a `--`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put leakscope's words before the script's, so that click takes them apart."""
        start = self._script_at(args)
        if start < len(args):
            args = [*args[:start], *script_named(args[start:], args[:start])]
            has_module = args[start] == _MODULE
            if has_module and start + 1 == len(args):
                raise click.UsageError("-m needs the name of a module")
            first = start + 2 if has_module else start + 1  # `-m MODULE` or `SCRIPT`
            target = args[start:first]
            ours, theirs = self._split(args[first:])
            ctx.meta[TYPED] = Typed((*args[:start], *ours), tuple(target), tuple(theirs))
            module, script = (target, []) if has_module else ([], target)
            args = [*args[:start], *ours, *module, "--", *script, *theirs]
        return super().parse_args(ctx, args)

    def _script_at(self, args: Sequence[str]) -> int:
        """Index of the script or of `-m`."""
        index = 0
        while index < len(args):
            word = args[index]
            if word == _MODULE or not word.startswith("-") or word == "-":
                return index
            if word == "--":
                return len(args)
            index += 1 if "=" in word or not self._takes_value(word) else 2
        return index

    def _takes_value(self, word: str) -> bool:
        for parameter in self.params:
            if isinstance(parameter, click.Option) and word in parameter.opts:
                return not parameter.is_flag
        return False

    def _split(self, rest: list[str]) -> tuple[list[str], list[str]]:
        """Words after the script that are leakscope's, and those that are the script's."""
        if "--" in rest:
            dashes = rest.index("--")
            if self._all_options(rest[:dashes]):
                return rest[:dashes], rest[dashes + 1 :]
        if rest and rest[0] in _RANKS:
            return rest[:2], rest[2:]
        if rest and rest[0].startswith(f"{_RANKS[-1]}="):
            return rest[:1], rest[1:]
        return [], rest

    def _all_options(self, words: Sequence[str]) -> bool:
        known = {name for option in self.params if isinstance(option, click.Option) for name in option.opts}
        index = 0
        while index < len(words):
            if words[index].partition("=")[0] not in known:
                return False
            index += 1 if "=" in words[index] or not self._takes_value(words[index]) else 2
        return True

    def meant_for_us(self, typed: Typed) -> tuple[list[str], list[str]]:
        """Options of leakscope's, spelled right or nearly so, among the words after the script; and the other words."""
        known = [name for option in self.params if isinstance(option, click.Option) for name in option.opts]
        ours, others, rest = list[str](), list[str](), list(typed.theirs)
        while rest:
            word = rest.pop(0)
            name, has_value, value = word.partition("=")
            near = get_close_matches(name.replace("_", "-"), known, 1, cutoff=0.8) if name.startswith("--") else []
            own = name if name in known else near[0] if near and len(name) > _SHORTEST else ""
            if not own:
                others.append(word)
                continue
            ours.append(f"{own}{has_value}{value}")
            if not has_value and self._takes_value(own) and rest:
                ours.append(rest.pop(0))
        return ours, others


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
    return Functions(names, frozenset(imported), frozenset(assigned), not hidden and "__getattr__" not in names)


def missing_step_function(script: Path, name: str, folders: list[str]) -> str:
    """Why no function of this name can be found, with names that are like it; "" where it may be there.

    A name is missing for certain only where the script neither defines nor imports it and has no other way to define
    it, and where its first part is either no module that could be imported or one whose source says the same.
    """
    from leakscope.findings.source.scopes import like

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
