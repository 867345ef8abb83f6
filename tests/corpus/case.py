"""A harness for small leaks: each leaks once a step beside the others, and is told apart by the size of its tensors."""

from __future__ import annotations

import functools
import gc
import importlib
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from leakscope.findings.judge import judge
from leakscope.findings.model import Finding, Findings
from leakscope.heap import snapshot as heap
from leakscope.process.user_code import short
from leakscope.run.model import Ended, HeapSnapshot, Rank, Run, Step
from leakscope.run.rows import MemoryThere

SNAPSHOT_STEPS = (3, 5, 9, 10)
MIN_BYTES = 512
FLOAT = 4


CASES: dict[str, type[LeakCase]] = {}


class LeakCase:
    """One small leak and its leak-free variant; a new one has leaked nothing yet.

    Subclasses say what a finding must say; those with a leak of their own are cases. Every tensor of a case spans a
    multiple of its own prime.
    """

    rule: ClassVar[str]
    freed_by: ClassVar[str]
    tells: ClassVar[str] = ""
    """Regular expression that the subject, the trace or the cut must match, where there is no `cut`."""
    per_step: ClassVar[float | None] = None
    """Bytes a step, in units of one tensor of the case; None where only the measured truth is asked."""
    collections: ClassVar[int | None] = None
    cut: ClassVar[str] = ""
    """Regular expression for the cut alone, where the place to cut is beyond doubt."""
    frees: ClassVar[bool] = True
    """Whether one cut in Python frees what is held."""

    def __init_subclass__(cls) -> None:
        if "leak" in vars(cls):
            CASES[cls.__name__] = cls

    def __init__(self, prime: int) -> None:
        self.prime = prime
        self.begin()

    def begin(self) -> None:
        """What the case has before its first step."""

    def leak(self) -> None:
        raise NotImplementedError

    def clean(self) -> None:
        raise NotImplementedError

    def end(self) -> None:
        """Puts back what would reach beyond the case."""

    def tensor(self, **options: Any) -> torch.Tensor:
        return torch.ones(self.prime, **options)

    def leaf(self) -> torch.Tensor:
        return torch.ones(self.prime, requires_grad=True)


def _primes(count: int, above: int) -> list[int]:
    primes: list[int] = []
    number = above
    while len(primes) < count:
        if all(number % k for k in range(2, int(number**0.5) + 1)):
            primes.append(number)
        number += 1
    return primes


@dataclass(frozen=True)
class Watched:
    """What was said of several cases in one process."""

    findings: Findings
    heap_snapshots: tuple[HeapSnapshot, ...]
    primes: dict[str, int]

    def of(self, name: str) -> list[Finding]:
        """The findings about one case."""
        return [f for f in self.findings.findings if name in self.about(f)]

    def about(self, finding: Finding) -> set[str]:
        """The cases whose tensors a finding counts."""
        for snapshot in reversed(self.heap_snapshots):
            indexes = [i for i in finding.storages.get(0, ()) if i < len(snapshot.heap)]
            if (
                sum(int(snapshot.heap.bytes[i]) for i in indexes) == finding.retained_bytes
                and len(indexes) == finding.count
            ):
                sizes = [int(snapshot.heap.bytes[i]) for i in indexes]
                return {n for n, p in self.primes.items() if any(size and size % p == 0 for size in sizes)}
        return set()


def watch(names: Sequence[str], variant: str) -> Watched:
    """Ten steps in one process with automatic gc off, looked at four times; `variant` is leak or clean."""
    gc.collect()
    collecting = gc.isenabled()
    gc.disable()
    torch.manual_seed(0)
    primes = dict(zip(names, _primes(len(names), 1009), strict=True))
    cases = [CASES[name](primes[name]) for name in names]
    acts: list[Callable[[], None]] = [getattr(case, variant) for case in cases]
    snapshots: list[HeapSnapshot] = []
    try:
        for step in range(1, 11):
            for act in acts:
                act()
            if step in SNAPSHOT_STEPS:
                snapshots.append(heap.take_heap_snapshot(step, "step"))
    finally:
        for case in cases:
            case.end()
        del acts, cases
        if collecting:
            gc.enable()
        for _ in range(12):  # a layer of grad nodes at a time
            if not gc.collect():
                break
    return Watched(judge(run_of(snapshots, 10)), tuple(snapshots), primes)


def run_of(snapshots: Sequence[HeapSnapshot], steps: int, min_bytes: int | None = MIN_BYTES, memory: int = 0) -> Run:
    """A recorded run of one rank with these looks, on a host with so much memory."""
    done = tuple(Step(k, 0.01, None, None) for k in range(1, steps + 1))
    there = (MemoryThere("the host's memory", memory),) if memory else ()
    rank = Rank(0, done, tuple(snapshots), Ended("finished", 0, steps), host_memory=there)
    return Run(("corpus",), (rank,), 1, "cpu", torch.__version__, "0", min_bytes=min_bytes, sources=kept_sources())


@functools.cache
def kept_sources() -> dict[str, tuple[str, ...]]:
    """The files of the corpus, by the names that lines of a run have."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return {short(str(path)): tuple(path.read_text(encoding="utf-8").splitlines()) for path in files}


class _Births(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.storages: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, torch.Tensor) and torch._C._has_storage(tensor):
                storage = tensor.untyped_storage()
                self.storages.setdefault(storage._cdata, (StorageWeakRef(storage), storage.nbytes()))
        return result

    def alive(self, prime: int) -> int:
        return sum(size for ref, size in self.storages.values() if size % prime == 0 and not ref.expired())


def truth(name: str, prime: int, variant: str = "leak", after: int = 0) -> float:
    """Bytes a step that really stay alive, seen from outside by weak references, after so many collections."""
    collecting = gc.isenabled()
    gc.disable()
    case = CASES[name](prime)
    births = _Births()
    alive = []
    try:
        with births:
            for _ in range(6):
                getattr(case, variant)()
                alive.append(births.alive(prime))
        for _ in range(after):
            gc.collect()
        if after:
            return births.alive(prime) / 6
        return (alive[-1] - alive[1]) / 4
    finally:
        case.end()
        del case
        if collecting:
            gc.enable()


def text_of(finding: Finding) -> str:
    """The subject, reference path and cut of a finding in one text."""
    trace = " -> ".join(f"{hop.object} @{hop.where} {hop.reference}" for hop in finding.trace)
    cut = f"{finding.cut.written} {finding.cut.where}" if finding.cut else ""
    return f"{finding.subject}\n{trace}\n{cut}"


def matches(pattern: str, finding: Finding) -> bool:
    return re.search(pattern, text_of(finding), re.DOTALL) is not None


def load() -> None:
    """Every module of the corpus adds its cases."""
    for module in ("cycles", "frames", "graphs", "growth", "hooks", "native", "uncollectable", "views"):
        importlib.import_module(f"corpus.{module}")


def main() -> None:
    """Prints the fingerprints of some cases, for a second process to compare."""
    load()
    from corpus.case import watch

    names = sys.argv[1:]
    seen = watch(names, "leak")
    print(json.dumps({name: sorted(f.fingerprint for f in seen.of(name)) for name in names}))


if __name__ == "__main__":
    main()
