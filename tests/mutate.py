"""Mutates leakscope/findings and leakscope/graph, one place at a time, and prints which mutants the tests kill.

    python tests/mutate.py [--count 100] [--seed 0] [--only PATH] [--list]

One process collects the unit tests of findings and graph and the recorded runs. A fork of it runs them all and records
which of them execute the lines to be mutated. Each mutant is another fork, which replaces the code of one function and
runs these tests, the quickest first. A mutant outside functions is made in a copy of the package and runs all tests.
Text for a reader is not mutated: the golden files of the formats show it.
"""

from __future__ import annotations

import argparse
import ast
import copy
import functools
import gc
import inspect
import os
import pickle
import random
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
MUTATED = ("leakscope/findings", "leakscope/graph")
JUDGING = ("tests/golden_runs", "tests/findings", "tests/graph")
"""Folders of tests that judge in process."""
OPTIONS = ("-q", "-m", "unit", "-p", "no:cacheprovider", "--hypothesis-seed=0", "--no-header")
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


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    path: str
    line: int
    last_line: int
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

    def code(self) -> CodeType | None:
        """The changed code of its function, None where only another module has it."""
        path = str(ROOT / self.path)
        before, after = (
            next((code for code in _codes(compile(text, path, "exec")) if code.co_firstlineno == self.function), None)
            for text in ((ROOT / self.path).read_bytes(), self.text)
        )
        return after if before and after and before.co_freevars == after.co_freevars else None


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The functions of a module and of its classes."""
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from [one] if one.co_flags & inspect.CO_NEWLOCALS else _codes(one)


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
            yield Mutant(name, node.lineno, node.end_lineno, here, text, begin, end, function)


def sampled(count: int, seed: int, only: str) -> list[Mutant]:
    """So many of all mutants, in order of their places."""
    files = sorted(path for folder in MUTATED for path in (ROOT / folder).rglob("*.py") if only in str(path))
    found = [mutant for path in files for mutant in mutants(path)]
    return sorted(random.Random(seed).sample(found, min(count, len(found))), key=lambda m: (m.path, m.line))


class Judge:
    """Judges mutants in place of running the collected tests."""

    def __init__(self, chosen: list[Mutant]) -> None:
        self.chosen = chosen
        self.alive: list[Mutant] = []

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Record which tests execute what, then judge each mutant in a fork."""
        with tempfile.TemporaryDirectory() as folder:
            record, copied = Path(folder, "record"), Path(folder, "copy")
            failed = in_a_fork(lambda: self._record(session, record), 1800)
            if failed:
                pytest.exit(f"the original does not pass: {failed}", 2)
            seconds, executed = pickle.loads(record.read_bytes())
            print(f"{len(session.items)} tests take {sum(seconds):.0f} s of CPU time", flush=True)
            for mutant in self.chosen:
                began = time.monotonic()
                code = mutant.code()
                items = [n for n, found in enumerate(executed) if code is None or mutant in found]
                if code is None:
                    how = in_a_copy(mutant, copied)
                else:
                    items.sort(key=lambda n: seconds[n])
                    run = functools.partial(self._judge, session, mutant, code, items)
                    how = in_a_fork(run, 10 + 5 * int(sum(seconds[n] for n in items)))
                if not how:
                    self.alive.append(mutant)
                print(
                    f"{'killed' if how else 'lives':<6} {time.monotonic() - began:5.1f} s {len(items):4} tests  "
                    f"{mutant.place}  {mutant.change}  {how}", flush=True,
                )  # fmt: skip
        return True

    def _record(self, session: pytest.Session, record: Path) -> str:
        """Write the CPU time of each test and the mutants whose lines it executes; return one that fails."""
        seconds: list[float] = []
        executed: list[set[Mutant]] = []
        tracer = functools.cache(functools.partial(_tracer, self.chosen))
        for item in session.items:
            found: set[Mutant] = set()
            began = time.process_time()
            sys.settrace(lambda frame, *_, found=found: tracer(frame.f_code) and tracer(frame.f_code)(found))
            try:
                _run(item)
            finally:
                sys.settrace(None)
            if session.testsfailed:
                return item.nodeid
            seconds.append(time.process_time() - began)
            executed.append(found)
        record.write_bytes(pickle.dumps((seconds, executed)))
        return ""

    @staticmethod
    def _judge(session: pytest.Session, mutant: Mutant, code: CodeType, items: list[int]) -> str:
        """Replace the code of a function and return the first test that fails, "" where none does."""
        for one in gc.get_objects():
            if isinstance(one, FunctionType) and _same(one.__code__, code):
                one.__code__ = code
        for number in items:
            _run(session.items[number])
            if session.testsfailed:
                return session.items[number].nodeid
        return ""


def _run(item: pytest.Item) -> None:
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)


def _same(one: CodeType, other: CodeType) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in ("co_filename", "co_firstlineno", "co_name"))


def _tracer(chosen: list[Mutant], code: CodeType) -> Callable[[set[Mutant]], Any] | None:
    """Makes the trace function of a frame with mutants; None for code without."""
    here = [
        mutant
        for mutant in chosen
        if str(ROOT / mutant.path) == code.co_filename and mutant.function
        and mutant.line <= max(line or 0 for *_, line in code.co_lines())
        and code.co_firstlineno <= mutant.last_line
    ]  # fmt: skip

    def begin(found: set[Mutant]) -> Any:
        def trace(frame: FrameType, event: str, argument: object) -> Any:
            found.update(mutant for mutant in here if mutant.line <= frame.f_lineno <= mutant.last_line)
            return trace

        return trace

    return begin if here else None


def in_a_fork(task: Callable[[], str], limit_s: int) -> str:
    """What the task returns in a fork of this process, or how the fork ended; it has so many seconds of CPU time."""
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        result = "error"
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.dup2(nowhere, 2)
            result = task()
        finally:
            os.write(writes, result.encode())
            os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as pipe:
        ready, _, _ = select.select([pipe], [], [], 60 + 20 * limit_s)
        if not ready:
            os.kill(child, signal.SIGKILL)
        result = pipe.read() if ready else "time limit"
    _, status = os.waitpid(child, 0)
    return result or (f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "")


def in_a_copy(mutant: Mutant, copied: Path) -> str:
    """The first test that fails with a copy of the package, "" where none does."""
    if not copied.exists():
        for name in ("leakscope", "cli", "sample_runs", "tests"):
            shutil.copytree(ROOT / name, copied / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copied)
    path = copied / mutant.path
    original = path.read_bytes()
    path.write_bytes(mutant.text)
    words = [sys.executable, "-m", "pytest", "-x", *OPTIONS, *JUDGING]
    done = subprocess.run(
        words, cwd=copied, env={**os.environ, "PYTHONPATH": str(copied)}, capture_output=True, text=True, check=False
    )
    path.write_bytes(original)
    return done.stdout[-300:].replace("\n", " ") if done.returncode in (1, 2) else ""


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
    judge = Judge(chosen)
    status = pytest.main(["-s", *OPTIONS, *JUDGING], plugins=[judge])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return int(status)
    for mutant in judge.alive:
        print(f"{mutant.place}  {mutant.change}  {mutant.known or 'SURVIVED'}")
    lived, known = (sum(bool(mutant.known) == known for mutant in judge.alive) for known in (False, True))
    print(f"{len(chosen) - lived - known} of {len(chosen)} killed, {known} equivalent, {lived} survived")
    return 1 if lived else 0


if __name__ == "__main__":
    sys.exit(main())
