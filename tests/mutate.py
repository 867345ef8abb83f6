"""Mutates leakscope/findings and leakscope/graph, one place at a time, and prints which mutants the tests kill.

    python tests/mutate.py [--count 100] [--seed 0] [--only PATH] [--list]

Each mutant is made in a copy of the package, which comes first on the path, and judges the recorded runs of
tests/golden_runs in a fork of this process. What they let live runs the unit tests: those that import the mutated
module first, then the others of findings and graph. Text for a reader is not mutated: the golden files of the formats
hold it.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MUTATED = ("leakscope/findings", "leakscope/graph")
TEXT = re.compile(r"title|advice|text$|preface|without_a_cut|why_no_cut|help|__repr__|^says?$|sentence")
"""Names of functions that write text for a reader."""
SWAPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
OPPOSITE = {"min": "max", "max": "min", "any": "all", "all": "any"}
EQUIVALENT: dict[str, str] = {}
"""Mutants that no test can tell from the original: the line, what is changed in it, and why."""
LIMIT_S = {"runs": 60, "tests": 400}
"""Seconds a mutant may take: five times what the original takes on a busy machine."""


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    path: str
    line: int
    before: str
    after: str
    begin: int
    """The first of the bytes that are replaced, and the first after them."""
    end: int

    @property
    def change(self) -> str:
        return f"{self.before} => {self.after}"

    @property
    def known(self) -> str:
        """Why it is equivalent to the original, "" where that is not known."""
        line = (ROOT / self.path).read_text(encoding="utf-8").splitlines()[self.line - 1]
        return EQUIVALENT.get(f"{line.strip()} [{self.change}]", "")

    @property
    def place(self) -> str:
        return f"{self.path}:{self.line}"

    @property
    def module(self) -> str:
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def replacements(node: ast.AST) -> Iterator[ast.AST]:
    """What may stand in place of a node."""
    new = copy.deepcopy(node)
    match new:
        case ast.Compare(ops=[op, *_]) if type(op) in SWAPPED:
            new.ops[0] = SWAPPED[type(op)]()
            yield new
        case ast.BoolOp():
            new.op = ast.Or() if isinstance(new.op, ast.And) else ast.And()
            yield new
        case ast.BinOp() if type(new.op) in ARITHMETIC and not isinstance(new.left, ast.JoinedStr):
            new.op = ARITHMETIC[type(new.op)]()
            yield new
        case ast.UnaryOp(op=ast.Not()):
            yield new.operand
        case ast.Constant(value=bool()):
            yield ast.Constant(not new.value)
        case ast.Constant(value=int()):
            yield ast.Constant(new.value + 1)
            yield ast.Constant(new.value - 1)
        case ast.Constant(value=float()):
            yield ast.Constant(new.value * 2)
        case ast.Call(func=ast.Name(id=name)) if name in OPPOSITE:
            new.func = ast.Name(OPPOSITE[name])
            yield new
        case ast.IfExp():
            new.test = ast.UnaryOp(ast.Not(), new.test)
            yield new
        case ast.Return(value=ast.AST()) if not (isinstance(new.value, ast.Constant) and new.value.value is None):
            yield ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Continue() | ast.Break():
            yield ast.Pass()


def places(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes that may be mutated: no types, no imports, no text."""
    for name, child in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for node in child if isinstance(child, list) else [child]:
            if not isinstance(node, ast.AST) or isinstance(node, (ast.JoinedStr, ast.Raise, ast.Assert)):
                continue
            if isinstance(node, ast.FunctionDef) and TEXT.search(node.name):
                continue
            yield node
            yield from places(node)


def mutants(path: Path) -> Iterator[Mutant]:
    """All mutants of a file, where their code is other code."""
    source = path.read_text(encoding="utf-8").encode()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    tree = ast.parse(source)
    tests = {id(at.test) for at in ast.walk(tree) if isinstance(at, (ast.If, ast.While))}
    for node in places(tree):
        changed = list(replacements(node))
        if isinstance(node, ast.expr) and id(node) in tests:
            changed.append(ast.UnaryOp(ast.Not(), node))
        for new in changed:
            begin = starts[node.lineno - 1] + node.col_offset
            end = starts[node.end_lineno - 1] + node.end_col_offset
            here, text = ast.unparse(node), ast.unparse(ast.fix_missing_locations(new))
            text = text if isinstance(node, ast.stmt) or isinstance(new, ast.Constant) else f"({text})"
            yield Mutant(str(path.relative_to(ROOT)), node.lineno, here, text, begin, end)


def sampled(count: int, seed: int, only: str) -> list[Mutant]:
    """So many of all mutants, in order of their places."""
    files = sorted(path for folder in MUTATED for path in (ROOT / folder).rglob("*.py") if only in str(path))
    found = [mutant for path in files for mutant in mutants(path)]
    return sorted(random.Random(seed).sample(found, min(count, len(found))), key=lambda m: (m.path, m.line))


def in_a_fork(task: str, copied: Path, tests: list[str]) -> str:
    """How it ended: "" where all is as it should be."""
    child = os.fork()
    if not child:
        status = 1
        try:
            os.setpgid(0, 0)
            os.chdir(copied)
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.dup2(nowhere, 2)
            sys.path[:0] = [str(copied), str(copied / "tests")]
            status = _judge() if task == "runs" else _test(tests)
        except BaseException as error:  # noqa: BLE001 - whatever a mutant raises has killed it
            status = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1
        finally:
            os._exit(status)
    until = time.monotonic() + LIMIT_S[task]
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return "" if status == 0 else task
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "time limit"


def _judge() -> int:
    from golden_runs.judged import main

    sys.argv = ["judged", "--check"]
    main()
    return 0


def _test(tests: list[str]) -> int:
    import pytest

    options = ["-x", "-q", "-m", "unit", "-p", "no:cacheprovider", "--hypothesis-seed=0", "--no-header"]
    status = pytest.main([*options, *tests])
    return int(status) if status in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED) else 0


def near() -> list[str]:
    """The files of tests of findings and graph."""
    return [str(path.relative_to(ROOT)) for name in ("findings", "graph") for path in _files(ROOT / "tests" / name)]


def tests_of(module: str) -> list[str]:
    """The files of unit tests: first those that name the module or its rule, then the others of findings and graph."""
    parent, _, name = module.rpartition(".")
    rule = name.replace("_", "-") if parent.endswith(".rules") else module
    names = re.compile(rf"{re.escape(module)}\b|from {re.escape(parent)} import [^\n]*\b{name}\b|\"{rule}\"")
    naming = [path for path in _files(ROOT / "tests") if names.search(path.read_text(encoding="utf-8"))]
    return list(dict.fromkeys([*(str(path.relative_to(ROOT)) for path in naming), *near()]))


def _files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("test_*.py"))


def main() -> int:
    """Judge the mutants and print the table; 1 where one lives that is not known to be equivalent."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="a part of the path of the files that are mutated")
    parser.add_argument("--list", action="store_true", help="show the mutants, and judge none")
    options = parser.parse_args()
    chosen = sampled(options.count, options.seed, options.only)
    if options.list:
        print("\n".join(f"{mutant.place}  {mutant.change}" for mutant in chosen))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        copied = Path(folder)
        for name in ("leakscope", "cli", "sample_runs", "tests"):
            shutil.copytree(ROOT / name, copied / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copied)
        for name in ("numpy", "pytest", "hypothesis", "torch"):  # once for all forks
            __import__(name)
        for by in ("runs", "tests"):
            if in_a_fork(by, copied, near()):
                sys.exit(f"the original does not pass its own {by}")
        alive = [mutant for mutant in chosen if not killed(mutant, "runs", copied)]
        alive = [mutant for mutant in alive if not killed(mutant, "tests", copied)]
    for mutant in alive:
        print(f"{mutant.place}  {mutant.change}  {mutant.known or 'SURVIVED'}")
    lived = sum(not mutant.known for mutant in alive)
    print(f"{len(chosen) - lived} of {len(chosen)} killed or equivalent, {lived} survived")
    return 1 if lived else 0


def killed(mutant: Mutant, by: str, copied: Path) -> bool:
    """Whether the recorded runs or the tests tell the mutant from the original."""
    path = copied / mutant.path
    original = path.read_bytes()
    path.write_bytes(original[: mutant.begin] + mutant.after.encode() + original[mutant.end :])
    began = time.monotonic()
    how = in_a_fork(by, copied, tests_of(mutant.module))
    path.write_bytes(original)
    print(f"{how or 'lives':<10} {time.monotonic() - began:5.1f} s  {mutant.place}  {mutant.change}", flush=True)
    return bool(how)


if __name__ == "__main__":
    sys.exit(main())
