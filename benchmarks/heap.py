"""How long does a look take on a large heap, beside its peers on the same garbage?

    python benchmarks/heap.py              a million objects, 5,000 tensors in 1,000 cycles, and the peers
    python benchmarks/heap.py --curve      10 thousand to 3 million objects

Each measurement is a process of its own. Seconds are processor seconds, so that a busy machine does not count.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

OBJECTS, TENSORS, CYCLES = 1_000_000, 5_000, 1_000
CURVE = (10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000)
ASKED = 3
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
    from leakscope.capture.heap import look as heap
    from leakscope.findings.judge import judge
    from leakscope.record.model import Ended, Rank, Run

    baseline = len(gc.get_objects())
    ballast = make_heap(max(objects - baseline, 6 * CYCLES), TENSORS, CYCLES)
    tracked = len(gc.get_objects())
    with open("/proc/self/clear_refs", "w", encoding="ascii") as peak:
        peak.write("5")
    resident = memory("VmRSS:")
    started, wall = time.process_time(), time.perf_counter()
    look = heap.look(1, "block")
    looked = time.process_time()
    run = Run((), (Rank(0, (), (look,), Ended("finished", 0, 1)),), 1, "cpu", "", "", min_bytes=1)
    findings = judge(run)
    done = time.process_time()
    (found,) = findings.findings
    assert (found.rule, found.count) == ("tensor-cycle", TENSORS), found
    assert ballast is not None
    return {
        "objects": tracked,
        "seconds": done - started,
        "stopped": looked - started,
        "wall": time.perf_counter() - wall,
        "peak_mb": (memory("VmHWM:") - resident) / 1e6,
    }


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
    tensors = [owner.tensors[0] for owner in owners[:ASKED]]
    del owners
    spent = _timed(lambda: [objgraph.find_backref_chain(t, lambda o: type(o) is Owner, max_depth=6) for t in tensors])
    assert ballast is not None
    return {"seconds": spent / ASKED * CYCLES, "one": spent / ASKED}


def measure_objgraph_backrefs() -> dict[str, float]:
    import io

    import objgraph

    ballast, owners = _garbage()
    tensors = [owner.tensors[0] for owner in owners[:ASKED]]
    del owners
    spent = _timed(lambda: [objgraph.show_backrefs([t], max_depth=3, output=io.StringIO()) for t in tensors])
    assert ballast is not None
    return {"seconds": spent / ASKED * CYCLES, "one": spent / ASKED}


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
}


def in_process(name: str, *arguments: int) -> dict[str, float]:
    """One measurement in a fresh process, automatic gc off from the start."""
    command = [sys.executable, __file__, "--measure", name, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"failed": float(done.returncode)}
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def table(repeats: int = 3) -> str:
    runs = sorted(
        (in_process("leakscope, look to findings", OBJECTS) for _ in range(repeats)), key=lambda r: r["seconds"]
    )
    ours = runs[len(runs) // 2]
    lines = ["| on a million objects | seconds | beside leakscope |", "|-|-|-|"]
    lines.append(f"| leakscope, look to findings | {ours['seconds']:.2f} | x1 |")
    for name in list(MEASURES)[1:]:
        theirs = in_process(name)
        if "failed" in theirs:
            lines.append(f"| {name} | failed | |")
        else:
            lines.append(f"| {name} | {theirs['seconds']:.2f} | x{theirs['seconds'] / ours['seconds']:.1f} |")
    lines.append("")
    lines.append(
        f"stopped {ours['stopped']:.2f} s, peak extra memory {ours['peak_mb']:.0f} MB, {ours['objects']:,.0f} objects"
    )
    return "\n".join(lines)


def curve() -> str:
    lines = ["| objects | seconds | stopped | microseconds an object | peak MB |", "|-|-|-|-|-|"]
    for objects in CURVE:
        one = in_process("leakscope, look to findings", objects)
        each = one["seconds"] / one["objects"] * 1e6
        figures = (f"{one['objects']:,.0f}", f"{one['seconds']:.2f}", f"{one['stopped']:.2f}", f"{each:.2f}")
        lines.append(f"| {' | '.join(figures)} | {one['peak_mb']:.0f} |")
    return "\n".join(lines)


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
