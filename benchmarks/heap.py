"""The time of a heap snapshot by heap size, with both readers, beside peers on the same garbage."""

from __future__ import annotations

import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

OBJECTS, TENSORS, CYCLES = 1_000_000, 5_000, 1_000
SIZES = (300_000, 1_000_000)
CURVE = (10_000, 300_000, 1_000_000, 3_000_000, 5_000_000)
"""Objects that gc tracks; a process that has imported torch has more than the first few."""
REPEATS = 3
READERS = {"native": "", "Python": "1"}
"""What LEAKSCOPE_PURE is set to for each."""
SAMPLED = 3
"""Tensors that objgraph is asked for; the time of one is multiplied."""


class Owner:
    """One of the cycles: an instance, its tensors, and a closure that leads back."""


def make_heap(objects: int, tensors: int, cycles: int) -> list[Any]:
    """Tensors in cycles that nobody holds, and ballast (returned) until gc tracks so many objects more than before."""
    import torch

    def cycle() -> None:
        owner: Any = Owner()
        owner.tensors = [torch.zeros(16) for _ in range(tensors // cycles)]

        def back() -> Any:
            return owner

        owner.back = back

    before = len(gc.get_objects())
    for _ in range(cycles):
        cycle()
    missing = objects - (len(gc.get_objects()) - before)
    return [[{"row": [k]}] for k in range(max(missing, 0) // 3)]


def memory(field: str) -> int:
    with open("/proc/self/status", encoding="ascii") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def measure_leakscope(objects: int) -> dict[str, float]:
    """The second look, the first having imported what it needs, and what it finds; then the median of three more."""
    from leakscope.findings.judge import judge
    from leakscope.heap import snapshot as heap
    from leakscope.heap.sweep import sweep
    from leakscope.run.model import Ended, Rank, Run

    def swept() -> None:
        sweep().objects.clear()

    baseline = len(gc.get_objects())
    ballast = make_heap(max(objects - baseline, 6 * CYCLES), TENSORS, CYCLES)
    tracked = len(gc.get_objects())
    first = _timed(lambda: heap.take_heap_snapshot(1, "block"))
    with open("/proc/self/clear_refs", "w", encoding="ascii") as peak:
        peak.write("5")
    resident = memory("VmRSS:")
    started, wall = time.process_time(), time.perf_counter()
    snapshot = heap.take_heap_snapshot(1, "block")
    taken = time.process_time()
    stopped_wall = time.perf_counter() - wall
    run = Run((), (Rank(0, (), (snapshot,), Ended("finished", 0, 1)),), 1, "cpu", "", "", min_bytes=1)
    findings = judge(run)
    done = time.process_time()
    (found,) = findings.findings
    assert (found.rule, found.count) == ("tensor-cycle", TENSORS), found
    assert ballast is not None
    high = memory("VmHWM:")
    return {
        "objects": tracked,
        "seconds": done - started,
        "first": first,
        "look": statistics.median(
            [taken - started, *(_timed(lambda: heap.take_heap_snapshot(1, "block")) for _ in range(2))]
        ),
        "sweep": statistics.median(_timed(swept) for _ in range(3)),
        "wall": stopped_wall,
        "peak_mb": (high - resident) / 1e6,
    }


def measure_gc_collect() -> dict[str, float]:
    ballast = make_heap(OBJECTS - len(gc.get_objects()), TENSORS, CYCLES)
    spent = _timed(gc.collect)
    assert ballast is not None
    return {"seconds": spent}


def _garbage() -> list[Any]:
    """The million-object heap and its garbage as gc.garbage shows it, which is what the peers start from."""
    ballast = make_heap(OBJECTS - len(gc.get_objects()), TENSORS, CYCLES)
    return [ballast, [o for o in gc.get_objects() if type(o) is Owner]]


def _timed(act: Callable[[], object]) -> float:
    started = time.process_time()
    act()
    return time.process_time() - started


def measure_objgraph_chain() -> dict[str, float]:
    import objgraph

    ballast, owners = _garbage()
    tensors = [owner.tensors[0] for owner in owners[:SAMPLED]]
    del owners
    spent = _timed(lambda: [objgraph.find_backref_chain(t, lambda o: type(o) is Owner, max_depth=6) for t in tensors])
    assert ballast is not None
    return {"seconds": spent / SAMPLED * CYCLES, "one": spent / SAMPLED}


def measure_objgraph_backrefs() -> dict[str, float]:
    import io

    import objgraph

    ballast, owners = _garbage()
    tensors = [owner.tensors[0] for owner in owners[:SAMPLED]]
    del owners
    spent = _timed(lambda: [objgraph.show_backrefs([t], max_depth=3, output=io.StringIO()) for t in tensors])
    assert ballast is not None
    return {"seconds": spent / SAMPLED * CYCLES, "one": spent / SAMPLED}


def _members(owners: list[Any]) -> list[Any]:
    found = []
    for owner in owners:
        found += [owner, owner.__dict__, owner.tensors, *owner.tensors, owner.back, owner.back.__closure__]
        found += list(owner.back.__closure__)
    return found


def measure_torch_cycles() -> dict[str, float]:
    import torch
    from torch.utils.viz import _cycles

    ballast, owners = _garbage()
    members = _members(owners)
    torch.cuda.memory._snapshot = lambda *_: {"segments": []}  # it asks for an allocator's snapshot even without CUDA
    spent = _timed(lambda: _cycles.create_graph(members))
    assert ballast is not None
    return {"seconds": spent}


def measure_refcycle() -> dict[str, float]:
    import refcycle

    ballast, owners = _garbage()
    del owners

    def components() -> object:  # refcycle.garbage() collects with DEBUG_SAVEALL, which a look never does
        return [part for part in refcycle.garbage().strongly_connected_components() if len(part) > 1]

    spent = _timed(components)
    assert ballast is not None
    return {"seconds": spent}


MEASURES: dict[str, Callable[..., dict[str, float]]] = {
    "leakscope, look to findings": measure_leakscope,
    "objgraph.find_backref_chain, 1,000 holders": measure_objgraph_chain,
    "objgraph.show_backrefs, 1,000 holders": measure_objgraph_backrefs,
    "torch.utils.viz._cycles.create_graph": measure_torch_cycles,
    "refcycle.garbage, its components (collects)": measure_refcycle,
    "gc.collect(), which frees it": measure_gc_collect,
}


def in_process(name: str, *arguments: int, reader: str = "native") -> dict[str, float]:
    """One measurement in a fresh process, automatic gc off from the start."""
    command = [sys.executable, __file__, "--measure", name, *map(str, arguments)]
    environment = {**os.environ, "LEAKSCOPE_PURE": READERS[reader], "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        print(done.stderr[-500:], file=sys.stderr)
        return {"failed": float(done.returncode)}
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def medians(runs: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def both_readers(sizes: tuple[int, ...], repeats: int) -> tuple[list[str], dict[str, float]]:
    """A table of looks, and the figures of the native reader at the last size."""
    lines = ["| objects | reader | look, CPU s | its sweep | first look | stopped, wall s | us an object | peak MB |"]
    lines.append("|-|-|-|-|-|-|-|-|")
    ours: dict[str, float] = {}
    for objects in sizes:
        turns = [(reader, in_process(NAME, objects, reader=reader)) for _ in range(repeats) for reader in READERS]
        for reader in READERS:
            one = medians([run for which, run in turns if which == reader])
            ours = one if reader == "native" else ours
            each = one["look"] / one["objects"] * 1e6
            figures = [f"{one[name]:.3f}" for name in ("look", "sweep", "first", "wall")]
            lines.append(
                f"| {one['objects']:,.0f} | {reader} | {' | '.join(figures)} | {each:.2f} | {one['peak_mb']:.0f} |"
            )
    return lines, ours


NAME = "leakscope, look to findings"


def table() -> str:
    lines, ours = both_readers(SIZES, REPEATS)
    lines += ["", "| on a million objects | CPU s | beside look to findings | beside the look |", "|-|-|-|-|"]
    lines.append(f"| {NAME} | {ours['seconds']:.2f} | x1 | x{ours['seconds'] / ours['look']:.1f} |")
    for name in list(MEASURES)[1:]:
        theirs = in_process(name)
        if "failed" in theirs:
            lines.append(f"| {name} | failed | | |")
        else:
            spent = theirs["seconds"]
            lines.append(f"| {name} | {spent:.2f} | x{spent / ours['seconds']:.1f} | x{spent / ours['look']:.1f} |")
    return "\n".join(lines)


def curve() -> str:
    return "\n".join(both_readers(CURVE, 1)[0])


def main() -> None:
    gc.disable()
    if sys.argv[1:2] == ["--measure"]:
        import torch

        torch.set_num_threads(1)
        print(json.dumps(MEASURES[sys.argv[2]](*map(int, sys.argv[3:]))))
    elif sys.argv[1:] == ["--curve"]:
        print(curve())
    else:
        print(table())


if __name__ == "__main__":
    main()
