"""Memory from before the instrumented steps that none of their operations used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from leakscope.findings.cut import on_trace
from leakscope.findings.facts import Facts, FreedBy, RuleName, Severity
from leakscope.findings.model import Cut, CutReference, Finding, Sighting
from leakscope.findings.naming import fingerprint, generic
from leakscope.findings.peak import (
    NAMES_SHOWN,
    WORTH_SHARE,
    heap_at_peak,
    line_above,
    spoken_as,
    together,
    trace_through,
    variables,
)
from leakscope.findings.rules.rule import Rule
from leakscope.graph.model import REACHABLE, ROOTS, HeapGraph, Ints, ObjectKind, ReferenceKind, RootKind
from leakscope.graph.paths import paths_from_roots
from leakscope.graph.retained import freed_storages
from leakscope.graph.walks import Mask, reachable
from leakscope.run.model import Rank
from leakscope.run.rows import UntouchedStorage, WatchedStep
from leakscope.units import bytes_text

_OF_ERRORS = (ObjectKind.EXCEPTION, ObjectKind.TRACEBACK)


@dataclass(frozen=True, kw_only=True)
class UntouchedFacts(Facts):
    """Memory that the watched steps did not touch."""

    bytes: int
    host_bytes: int
    """The part in host memory, if the peak is an accelerator's."""
    holders: int
    """Number of references that keep it, all in the cut."""
    first_step: int
    """The first of the watched steps; it existed before."""
    last_step: int
    variables: tuple[str, ...]
    """The holders' names if each is a variable of a function or the script, for `del`; else ()."""
    functions: tuple[str, ...]
    """Finished functions whose variables a traceback keeps; () if running code holds it."""

    def title_for(self, finding: Finding) -> str:
        """`ckpt in main()` at train.py:12: bytes, since when, and the possible drop of the peak."""
        assert finding.cut is not None
        where = f" at {finding.cut.where}" if finding.cut.where else ""
        them = "it" if self.holders == 1 else "them"
        drop = f"`del {', '.join(self.variables)}`" if self.variables else f"dropping {them}"
        return (
            f"`{finding.cut.written}`{where}: {bytes_text(self.bytes)} idle since before step {self.first_step}, "
            f"{_held_for_nothing(self)}, unused in steps {self.first_step} and {self.last_step}; {drop} {_gain(self)}"
        )

    def advice_for(self, _: Finding) -> str:
        """How to drop it."""
        if self.functions:
            return (
                "A stored exception or traceback retains the local variables of every frame that it passed. Store "
                "its text "
                "(traceback.format_exception) instead, or clear it: `error.__traceback__ = None`."
            )
        return (
            "Delete the variable after its last use, or move that part into a separate function. Keep it if native "
            "code has its address."
        )

    def short_advice(self) -> str:
        """Empty: the title has the advice."""
        return ""


def _held_for_nothing(facts: UntouchedFacts) -> str:
    if not facts.functions:
        return "not read again"
    return f"in local variables of {' and '.join(facts.functions)} (returned)"


def _gain(facts: UntouchedFacts) -> str:
    on_device = facts.bytes - facts.host_bytes
    parts = [f"lowers the peak by {bytes_text(on_device)}"] if on_device else []
    parts += [f"frees {bytes_text(facts.host_bytes)} of host memory"] if facts.host_bytes else []
    return " and ".join(parts)


def idle_findings(
    rank: Rank, min_avoidable: int, reported: Sequence[Finding] = (), worth_share: float = WORTH_SHARE
) -> list[Finding]:
    """One finding for each holder of memory that no operation of the watched steps touched, if it is worth a line.

    Only what is freed by releasing variables that no code reads again: those of running functions and the script,
    according to their bytecode, and those of finished functions kept by a traceback. An attribute or an item may be
    needed later, such as averaged weights or validation data.

    `reported` are the findings of what grows: memory held through the cut of one of these is reported there.
    """
    watched = heap_at_peak(rank)
    if watched is None:
        return []
    step, graph = watched
    rows = (row.storage for row in rank.lifetimes if isinstance(row, UntouchedStorage))
    untouched = {storage for storage in rows if 0 <= storage < len(graph) and graph.freed[storage] == REACHABLE}
    ended = _ended(graph)
    unread = _unread(graph, step)
    locals_ = np.flatnonzero(ended[graph.holder] & (graph.reference_kind == _LOCAL))
    gone = untouched.intersection(freed_storages(graph, np.concatenate([unread, locals_])).tolist())
    if not gone:
        return []
    least = max(min_avoidable, worth_share * step.peak_bytes, 1)
    candidates = np.concatenate([unread, _entries(graph, ended)])
    found = (
        _untouched_finding(rank.number, step, graph, cuts, gone, ended) for cuts in _together(graph, candidates, gone)
    )
    worth = [finding for finding in found if finding is not None and finding.retained_bytes >= least]
    paths = [_path_of(leak)[: leak.cut_position + 1] for leak in reported if leak.cut_position is not None]
    return [finding for finding in worth if not any(_path_of(finding)[: len(path)] == path for path in paths)]


def _path_of(finding: Finding) -> list[tuple[str, str]]:
    """The path to the memory, the same at every snapshot."""
    return [(hop.type if place else hop.object, hop.reference) for place, hop in enumerate(finding.trace)]


_LOCAL = tuple(ReferenceKind).index(ReferenceKind.LOCAL)


def _ended(graph: HeapGraph) -> Mask:
    """Frames of finished functions: neither running nor of a generator that may continue."""
    ended = np.zeros(len(graph), dtype=bool)
    for frame in graph.of_kind(ObjectKind.FRAME).tolist():
        holders = (graph.object(int(graph.holder[r])).kind for r in graph.into(frame).tolist())
        ended[frame] = graph.object(frame).root == RootKind.NONE and ObjectKind.GENERATOR not in holders
    return ended


def _unread(graph: HeapGraph, step: WatchedStep) -> Ints:
    """References of variables that no code reads from here on."""
    names = {(place, name) for place, name in step.unread if 0 <= place < len(graph)}
    found = [
        r for place in {place for place, _ in names} for r in graph.out_of(place).tolist()
        if (place, graph.reference(r).name) in names
    ]  # fmt: skip
    return np.asarray(sorted(found), dtype=np.int64)


def _entries(graph: HeapGraph, ended: Mask) -> Ints:
    """References by which a named object holds an exception, a traceback or the frame of a finished function."""
    inside = ended | graph.is_kind(*_OF_ERRORS)
    of_program = (RootKind.NONE, RootKind.MODULE, RootKind.FRAME, RootKind.CALLBACK)
    named = np.isin(graph.root, [ROOTS.index(root) for root in of_program])
    entries: Ints = np.flatnonzero((named & ~inside)[graph.holder] & inside[graph.held])
    return entries


def _together(graph: HeapGraph, candidates: Ints, gone: set[int]) -> list[list[int]]:
    """The references that lead to what would be freed, grouped by what they lead to; items of one container are
    together.
    """
    groups: list[tuple[list[int], set[int]]] = []
    above = reachable(len(graph), graph.held, graph.holder, np.asarray(sorted(gone), dtype=np.int64))
    for reference in dict.fromkeys(candidates[above[graph.held[candidates]]].tolist()):
        start = np.asarray([graph.held[reference]], dtype=np.int64)
        below = gone.intersection(np.flatnonzero(reachable(len(graph), graph.holder, graph.held, start)).tolist())
        holder = int(graph.holder[reference])
        if graph.object(holder).kind == ObjectKind.CONTAINER:
            below.add(holder)
        shared = [group for group in groups if not below.isdisjoint(group[1])]
        groups = [group for group in groups if below.isdisjoint(group[1])]
        references = [r for group in shared for r in group[0]]
        groups.append(([*references, reference], below.union(*(group[1] for group in shared))))
    return [references for references, _ in groups]


def _fewest(graph: HeapGraph, cuts: list[int]) -> tuple[list[int], set[int]]:
    """(the references that are needed, the storages that cutting them frees).

    An item is tried before the variable of its container, which may still be needed.
    """
    freed = set(freed_storages(graph, np.asarray(cuts, dtype=np.int64)).tolist())
    for reference in sorted(cuts, key=lambda c: (_is_variable(graph, c), -c))[: NAMES_SHOWN * 2]:
        fewer = [c for c in cuts if c != reference]
        if fewer and freed.issubset(freed_storages(graph, np.asarray(fewer, dtype=np.int64)).tolist()):
            cuts = fewer
    return cuts, freed


def _is_variable(graph: HeapGraph, reference: int) -> bool:
    return graph.object(int(graph.holder[reference])).kind in (ObjectKind.FRAME, ObjectKind.NAMESPACE)


def _untouched_finding(
    rank: int, step: WatchedStep, graph: HeapGraph, cuts: list[int], gone: set[int], ended: Mask
) -> Finding | None:  # fmt: skip
    """Everything that these references keep; None if cutting them does not free it, such as what a handler uses."""
    cuts, freed = _fewest(graph, cuts)
    storages = sorted(freed & gone, key=lambda s: (-int(graph.bytes[s]), s))
    if not storages:
        return None
    size = int(graph.bytes[storages].sum())
    of_host = [s for s in storages if step.device != "cpu" and graph.device.get(s, "cpu") != step.device]
    paths = paths_from_roots(graph)
    cuts.sort(key=lambda c: (not _is_variable(graph, c), c))
    spoken = list(dict.fromkeys(spoken_as(graph, paths, c) for c in cuts))
    trace = trace_through(graph, paths, cuts[0], storages[0], size)
    named = CutReference(
        ", ".join(dict.fromkeys(generic(graph.reference(c).name) for c in cuts[:NAMES_SHOWN])),
        line_above(graph, paths, cuts[0]),
        together(spoken),
        tuple(cuts),
    )
    cut = Cut((named,), size)
    return Finding(
        rule=RuleName.IDLE_MEMORY,
        facts=UntouchedFacts(
            bytes=size,
            host_bytes=int(graph.bytes[of_host].sum()),
            holders=len(spoken),
            first_step=step.step - 1,
            last_step=step.step,
            variables=variables(graph, cuts),
            functions=_functions(graph, cuts, storages, ended),
        ),
        fingerprint=fingerprint((RuleName.IDLE_MEMORY, *sorted(spoken))),
        severity=Severity.AVOIDABLE,
        freed_by=FreedBy.PROGRAM,
        retained_bytes=size,
        bytes_per_step=0.0,
        trace=trace,
        cut=on_trace(cut, trace) if len(spoken) == 1 else cut,
        made_at=tuple(dict.fromkeys(graph.made_at[s] for s in storages if s in graph.made_at))[:NAMES_SHOWN],
        sightings=(Sighting(rank, step.step, size),),
        count=len(storages),
    )


def _functions(graph: HeapGraph, cuts: Sequence[int], storages: Sequence[int], ended: Mask) -> tuple[str, ...]:
    """The finished functions whose variables hold the storages through these references."""
    below = reachable(len(graph), graph.holder, graph.held, graph.held[np.asarray(cuts, dtype=np.int64)])
    names = []
    for frame in np.flatnonzero(ended & below).tolist():
        of_locals = [r for r in graph.out_of(frame).tolist() if graph.reference_kind[r] == _LOCAL]
        held = reachable(len(graph), graph.holder, graph.held, graph.held[np.asarray(of_locals, dtype=np.int64)])
        if held[list(storages)].any():
            names.append(f"{graph.object(frame).name}()")
    return tuple(dict.fromkeys(names))


HELP = """\
# idle-memory

Memory from before the instrumented steps that none of their operations used.

## What it does

Reports memory that existed before two instrumented steps, was used by neither, and is not read by later code according
to the bytecode. The finding is avoidable memory, not a leak, and does not change the exit status.

## Why is this bad?

The memory takes part of the capacity for the whole training without being used.

## Example

```python title="train.py"
import torch
import leakscope

net = torch.nn.Linear(1024, 1024)
checkpoint = {"weight": torch.randn(1024, 1024), "bias": torch.zeros(1024)}
net.load_state_dict(checkpoint)


def train_step():
    net(torch.randn(64, 1024)).square().mean().backward()


with leakscope.Profiler() as profiler:
    for _ in range(10):
        with profiler.step():
            train_step()
print(profiler.findings)
print([finding.rule.value for finding in profiler.findings.findings])
```

```console
$ python train.py
```

`load_state_dict` copies the weights. The checkpoint is then an unused second model, alive as long as its variable.

## Use instead

Drop it before training, or load it without using device memory.

```diff title="train.py"
 net.load_state_dict(checkpoint)
+del checkpoint
```

```console
$ python train.py
```

Other fixes:

- Use `torch.load(path, map_location="cpu")`, or `mmap=True`, so that the checkpoint is never on the device.
- `net.load_state_dict(torch.load(path))` in one line needs no variable.
- `sys.last_value` and `sys.last_traceback` can retain a whole step after an exception: see [frame-hold](frame-hold.md).

## References

- [torch.load](https://docs.pytorch.org/docs/stable/generated/torch.load.html): `map_location` and `mmap`.
"""
RULE = Rule(RuleName.IDLE_MEMORY, HELP, level="note", at_peak=True)
