"""Mutates leakscope/findings and leakscope/graph, one place at a time, and prints which mutants the tests kill.

    python tests/mutate.py [--count 100] [--seed 0] [--only PATH] [--place PLACE] [--list]

A fork of this process runs the unit tests of findings and graph and the recorded runs, and records what they call.
Each mutant is another fork, which imports the changed file and runs the tests that call the changed function, the
quickest first. Text for a reader is not mutated: the golden files of the formats show it.
"""

from __future__ import annotations

import argparse
import ast
import atexit
import copy
import cProfile
import os
import pickle
import random
import re
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType

import hypothesis  # noqa: F401 - for the forks, as torch
import numpy  # noqa: F401
import pytest
import torch  # noqa: F401

ROOT = Path(__file__).resolve().parent.parent
FOLDER = Path(tempfile.mkdtemp())
atexit.register(shutil.rmtree, FOLDER)
RECORD, OUTPUT = FOLDER / "record", FOLDER / "output"
MUTATED = ("leakscope/findings", "leakscope/graph")
JUDGING = ("tests/golden_runs", "tests/findings", "tests/graph")
"""Folders of tests that judge in process."""
OPTIONS = ("-q", "-m", "unit", "--assert=plain", "-p", "no:cacheprovider", "--hypothesis-seed=0", "--no-header")
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
EQUIVALENT: dict[str, str] = {
    "return (counted[end].counted_bytes or 0) - (counted[start].counted_bytes or 0) [0 => 1]": "they are counted",
    "counted = sum(next((snapshot.counted_bytes or 0 for snapshot in rank.heap_snapshots), 0) for rank in ranks) [0 => 1]":  # noqa: E501
        "a byte in a forecast of steps",
    "reference = candidate.graph.reference(positions[best][0]) [0 => -1]": "of one kind and name in all places",
    "return carried[0] if len(carried) == 1 else None [0 => -1]": "of one",
    "RULE = Rule(RuleName.FRAME_HOLD, HELP, Match(60, _applies, _facts), is_unintended=True) [60 => 61]":
        "the next in order is at 70",
    "return next((value for finding in same if (value := getattr(finding, field))), getattr(same[0], field)) [0 => -1]":
        "all are empty",
    "return max(seen) - seen[0] if seen else 0 [0 => -1]": "it is in one of the lives",
}  # fmt: skip
"""Mutants that no test can tell from the original: the line, what is changed in it, and why."""


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
    function: int
    """The first line of the outermost function that it changes, 0 outside functions."""

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
    def text(self) -> bytes:
        """The file with the change."""
        original = (ROOT / self.path).read_bytes()
        return original[: self.begin] + self.after.encode() + original[self.end :]


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
        case ast.Return(value=ast.AST()) if not (isinstance(new.value, ast.Constant) and not new.value.value):
            yield ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Continue() | ast.Break():
            yield ast.Pass()


def places(tree: ast.AST, function: int = 0) -> Iterator[tuple[ast.AST, int]]:
    """The nodes that may be mutated, each with its function: no types, no imports, no text."""
    for name, child in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for node in child if isinstance(child, list) else [child]:
            if not isinstance(node, ast.AST) or isinstance(node, (ast.JoinedStr, ast.Raise, ast.Assert)):
                continue
            if isinstance(node, ast.FunctionDef) and TEXT.search(node.name):
                continue
            inside = function
            if isinstance(tree, ast.FunctionDef) and name != "args" and not function:
                inside = min(at.lineno for at in [tree, *tree.decorator_list])
            yield node, inside
            yield from places(node, inside)


def mutants(path: Path) -> Iterator[Mutant]:
    """All mutants of a file, where their code is other code."""
    source = path.read_text(encoding="utf-8").encode()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    tree = ast.parse(source)
    tests = {id(at.test) for at in ast.walk(tree) if isinstance(at, (ast.If, ast.While))}
    for node, function in places(tree):
        changed = list(replacements(node))
        if isinstance(node, ast.expr) and id(node) in tests:
            changed.append(ast.UnaryOp(ast.Not(), node))
        for new in changed:
            begin = starts[node.lineno - 1] + node.col_offset
            end = starts[node.end_lineno - 1] + node.end_col_offset
            here, text = ast.unparse(node), ast.unparse(ast.fix_missing_locations(new))
            text = text if isinstance(node, ast.stmt) or isinstance(new, ast.Constant) else f"({text})"
            name = str(path.relative_to(ROOT))
            yield Mutant(name, node.lineno, here, text, begin, end, function)


def sampled(count: int, seed: int, only: str) -> list[Mutant]:
    """So many of all mutants, in order of their places."""
    files = sorted(path for folder in MUTATED for path in (ROOT / folder).rglob("*.py") if only in str(path))
    found = [mutant for path in files for mutant in mutants(path)]
    return sorted(random.Random(seed).sample(found, min(count, len(found))), key=lambda m: (m.path, m.line))


class Tests:
    """Runs the tests of a fork: all of them, to record what they call, or those that call one function."""

    def __init__(self, chosen: Mapping[str, float] | None = None) -> None:
        self.chosen = chosen
        self.seconds: dict[str, float] = {}
        self.called: dict[str, set[tuple[str, int]]] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if (chosen := self.chosen) is not None:
            items[:] = sorted((one for one in items if one.nodeid in chosen), key=lambda one: chosen[one.nodeid])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        profile = cProfile.Profile(builtins=False)
        began = time.process_time()
        if self.chosen is None:
            profile.enable()
        try:
            return (yield)
        finally:
            profile.disable()
            self.seconds[item.nodeid] = time.process_time() - began
            codes = (entry.code for entry in profile.getstats() if not isinstance(entry.code, str))
            self.called[item.nodeid] = {(code.co_filename, code.co_firstlineno) for code in codes}


def in_a_fork(tests: Tests, mutant: Mutant | None, output: Path, limit_s: int) -> int:
    """Run the tests in a fork, which has so many seconds of CPU time; return its exit status."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = 1
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
        for number in (1, 2):
            os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        if mutant is not None:
            _mutate(mutant)
        files = sorted({test.partition("::")[0] for test in tests.chosen or ()}) or JUDGING
        status = int(pytest.main(["-x", *OPTIONS, *files], plugins=[tests]))
        if mutant is None:
            RECORD.write_bytes(pickle.dumps((tests.seconds, tests.called)))
    finally:
        sys.stdout.flush()
        os._exit(status)


def _mutate(mutant: Mutant) -> None:
    """Have the import system compile the changed text in place of the file."""
    whole, path = SourceFileLoader.get_code, str(ROOT / mutant.path)

    def get_code(loader: SourceFileLoader, name: str) -> CodeType | None:
        return compile(mutant.text, path, "exec") if loader.path == path else whole(loader, name)

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign]


def judged(mutant: Mutant, seconds: Mapping[str, float], called: Mapping[str, set[tuple[str, int]]]) -> str:
    """How the mutant was killed, "" where it lives."""
    function = (str(ROOT / mutant.path), mutant.function)
    chosen = {test: takes for test, takes in seconds.items() if not mutant.function or function in called[test]}
    if not chosen:
        return ""
    status = in_a_fork(Tests(chosen), mutant, OUTPUT, 30 + 5 * int(sum(chosen.values())))
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", OUTPUT.read_text(encoding="utf-8"), re.MULTILINE)
    return "" if not status else failed[1] if failed else f"exit status {status}"


def main() -> int:
    """Judge the mutants and print the table; 1 where one lives that is not known to be equivalent."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="a part of the path of the files that are mutated")
    parser.add_argument("--place", default="", help="a part of the path and line of those of the sample to judge")
    parser.add_argument("--list", action="store_true", help="show the mutants, and judge none")
    options = parser.parse_args()
    chosen = [one for one in sampled(options.count, options.seed, options.only) if options.place in one.place]
    if options.list:
        print("\n".join(f"{mutant.place}  {mutant.change}" for mutant in chosen))
        return 0
    os.chdir(ROOT)
    if in_a_fork(Tests(), None, OUTPUT, 1800):
        sys.exit(f"the original does not pass: {OUTPUT.read_text(encoding='utf-8')}")
    seconds, called = pickle.loads(RECORD.read_bytes())
    print(f"{len(seconds)} tests take {sum(seconds.values()):.0f} s of CPU time", flush=True)
    alive = []
    for mutant in chosen:
        began = time.monotonic()
        how = judged(mutant, seconds, called)
        if not how:
            alive.append(mutant)
        spent = time.monotonic() - began
        print(f"{'killed' if how else 'lives':<6} {spent:5.1f} s  {mutant.place}  {mutant.change}  {how}", flush=True)
    for mutant in alive:
        print(f"{mutant.place}  {mutant.change}  {mutant.known or 'SURVIVED'}")
    known = sum(bool(mutant.known) for mutant in alive)
    killed, lived = len(chosen) - len(alive), len(alive) - known
    print(f"{killed} of {len(chosen)} killed, {known} equivalent, {lived} survived")
    return 1 if lived else 0


if __name__ == "__main__":
    sys.exit(main())
