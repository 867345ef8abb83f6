"""Memory at the peak of a step that is not used again."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from leakscope.findings.comm import crossed_count
from leakscope.findings.cut import on_trace
from leakscope.findings.facts import Facts, FreedBy, LibraryIssue, Origin, RuleName, Severity
from leakscope.findings.library import (
    LibraryDragFacts,
    LibraryRetention,
    by_holder,
    kept_too,
    whole_trace,
)
from leakscope.findings.model import Cut, CutReference, Finding, Sighting, Unjudged
from leakscope.findings.naming import fingerprint, generic, place_of
from leakscope.findings.peak import (
    NAMES_SHOWN,
    WORTH_SHARE,
    Idle,
    PeakOfStep,
    Releaser,
    arguments_cut,
    frees_mostly_idle,
    line_above,
    peak_of,
    spoken_as,
    together,
    trace_through,
    variables,
)
from leakscope.findings.rules.rule import Rule
from leakscope.graph.model import HeapGraph, ObjectKind, ReferenceKind
from leakscope.graph.paths import ShortestPaths, paths_from_roots
from leakscope.graph.retained import freed_storages
from leakscope.graph.walks import reachable
from leakscope.run.model import Rank
from leakscope.run.rows import LifetimesUnjudged, Phase
from leakscope.units import bytes_text

NAME = RuleName.LATE_RELEASE
_SHARE_THRESHOLD = 0.05
"""Minimum share of the step's rise to its peak to report memory of other holders."""
_MIN_FACTOR = 16
"""Minimum multiple of `min_avoidable`."""
_OTHER_RELEASERS = (Releaser.GRADIENT, Releaser.COMM, Releaser.AUTOGRAD)
"""Excludes `LIBRARY`: what an unknown library or a running call keeps has no holder to name and no remedy."""


@dataclass(frozen=True)
class OthersFacts(Facts):
    """Memory at the step's peak that nothing uses again and that only others could release."""

    bytes: int
    by: Releaser
    fall_bytes: int
    """Decrease of the step's peak."""

    def title_for(self, _: Finding) -> str:
        """The kind of referrer and the bytes at the peak."""
        return _OTHERS[self.by][0].format(size=bytes_text(self.bytes))

    def advice_for(self, _: Finding) -> str:
        """How to release it earlier."""
        return _OTHERS[self.by][1].format(fall=bytes_text(self.fall_bytes))


_OTHERS: Mapping[Releaser, tuple[str, str]] = {
    Releaser.GRADIENT: (
        "Gradients of the last step are kept until zero_grad: {size} at the step's peak",
        "Call optimizer.zero_grad() right after optimizer.step(), before the next forward: the peak falls by {fall}.",
    ),
    Releaser.COMM: (
        "Pending sends and receives, or their Work handles, retain {size} at the step's peak",
        "Wait for each operation as soon as its buffer is no longer used, and drop its Work: the peak falls by {fall}.",
    ),
    Releaser.AUTOGRAD: (
        "Autograd saves {size} at the step's peak that backward does not use",
        "Compute values that need no gradient under torch.no_grad(), or detach them, so that their graph is not kept "
        "until backward: the peak falls by {fall}.",
    ),
}
"""Releaser, mapped to title and advice."""


def others_findings(peak: PeakOfStep, min_avoidable: int, least: float, reported: Collection[str]) -> list[Finding]:
    """One finding for each known library holder not `reported` yet, then one for each other releaser that would lower
    the peak by `least` bytes.
    """
    by_storage = {idle.row.storage: idle for idle in peak.held_by(Releaser.LIBRARY)}
    kept = by_holder(peak.graph, list(by_storage), alone=True)
    findings = []
    for kept_by in kept:
        idle = [by_storage[storage] for storage in kept_by.holds]
        if kept_by.known.holder not in reported and _bytes(idle) >= least:
            findings.append(_known(peak, kept_by, idle))
    named = {storage for kept_by in kept for storage in kept_by.holds}
    for who in _OTHER_RELEASERS:
        idle = [entry for entry in peak.held_by(who) if entry.row.storage not in named]
        if who == Releaser.GRADIENT and peak.step.peak_phase == Phase.OPTIMIZER:
            continue  # the optimizer itself still holds them: zero_grad was not possible before
        worth = max(_MIN_FACTOR * min_avoidable, _SHARE_THRESHOLD * peak.rise, 1)
        if peak.fall(idle) >= least and _bytes(idle) >= worth:
            findings.append(_unknown(peak, who, idle))
    return findings


def _bytes(idle: Sequence[Idle]) -> int:
    return sum(entry.row.bytes for entry in idle)


def _made_at(idle: Sequence[Idle]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(entry.row.made_at for entry in idle if entry.row.made_at))[:6]


def _known(peak: PeakOfStep, kept: LibraryRetention, idle: Sequence[Idle]) -> Finding:
    graph, known, size = peak.graph, kept.known, _bytes(idle)
    frees = kept.frees(graph)
    typical = max(kept.holds, key=lambda s: (int(graph.bytes[s]), s))
    hold = kept.of_its_own(typical)[0]
    trace = whole_trace(graph, paths_from_roots(graph), hold, frees)
    named = CutReference(known.holder, indexes=hold.path[:1])
    return Finding(
        rule=NAME,
        facts=LibraryDragFacts(
            known.holder, size, len(kept.holds), kept_too(graph, kept), known.cure, peak.step.peak_at
        ),
        fingerprint=fingerprint(("kept by library at the peak", known.holder)),
        severity=Severity.AVOIDABLE,
        freed_by=FreedBy.PROGRAM,
        retained_bytes=size,
        bytes_per_step=0.0,
        trace=trace,
        cut=on_trace(Cut((named,), frees), trace) if frees else None,
        origin=Origin.LIBRARY,
        library="torch",
        upstream=LibraryIssue(known.issue, known.what),
        made_at=_made_at(idle),
        sightings=(Sighting(peak.rank, peak.step.step, size),),
        count=len(idle),
    )


def _unknown(peak: PeakOfStep, who: Releaser, idle: Sequence[Idle]) -> Finding:
    size = _bytes(idle)
    return Finding(
        rule=NAME,
        facts=OthersFacts(bytes=size, by=who, fall_bytes=peak.fall(idle)),
        fingerprint=fingerprint((NAME, who)),
        severity=Severity.AVOIDABLE,
        freed_by=FreedBy.PROGRAM,
        retained_bytes=size,
        bytes_per_step=0.0,
        trace=(),
        cut=None,
        made_at=_made_at(idle),
        sightings=(Sighting(peak.rank, peak.step.step, size),),
        count=len(idle),
    )


_CONTAINERS = (ObjectKind.CONTAINER,)


@dataclass(frozen=True, kw_only=True)
class LateReleaseFacts(Facts):
    """Memory at the step's peak that nothing uses again and that the user's code could release."""

    bytes: int
    holders: int
    """Number of references of the user that keep it, all in the cut."""
    made_at: str
    """The line that allocated the largest part, "" if it was before the watched steps."""
    last_use_at: str
    """The line that used that last, "" if there was no use after the allocation."""
    peak_at: str
    fall_bytes: int
    """Decrease of the step's peak."""
    variables: tuple[str, ...]
    """The holders' names if each is a variable of a function or the script, for `del`; else ()."""
    arguments: tuple[str, ...]
    """The holders that are arguments of a running call."""
    is_saved: bool
    """Whether a grad node that has run still keeps it too."""
    of_backward: bool = False
    """Whether it includes sent or received buffers, or is an argument of a call while the peak is in backward."""

    def title_for(self, finding: Finding) -> str:
        """`out in main()` at train.py:31: bytes, last use, and the possible drop of the peak."""
        assert finding.cut is not None
        where = f" at {finding.cut.where}" if finding.cut.where else ""
        them = "it" if self.holders == 1 else "them"
        drop = f"`del {', '.join(self.variables)}`" if self.variables and not self.arguments else f"dropping {them}"
        return (
            f"`{finding.cut.written}`{where}: {bytes_text(self.bytes)} at the step's peak, {_last_use(self)}; "
            f"{drop} there lowers the peak by {bytes_text(self.fall_bytes)}"
        )

    def advice_for(self, finding: Finding) -> str:
        """When to drop it, and other referrers."""
        assert finding.cut is not None
        text = (
            f"Drop {finding.cut.written} after the last use, or move that part into a separate function. The peak is "
            f"at {self.peak_at}."
        )
        return text + _of_arguments(self) + (_SAVED if self.is_saved else "")

    def short_advice(self) -> str:
        """What to do about arguments of a running call; the title has the rest."""
        if not self.arguments:
            return ""
        return f"{_is_argument(self)} of a running call: pass it in a list that the callee empties."


def _last_use(facts: LateReleaseFacts) -> str:
    if facts.last_use_at:
        return f"unused after {line_of(facts.last_use_at)}"
    return f"unused since its allocation at {line_of(facts.made_at)}" if facts.made_at else "unused in the step"


_SAVED = (
    " An autograd node that has already run still saves it: remove retain_graph=True, or the last reference to the "
    "graph."
)


def _of_arguments(facts: LateReleaseFacts) -> str:
    if not facts.arguments:
        return ""
    return (
        f" {_is_argument(facts)} of a running call: arguments stay alive until the call returns, unless they are "
        "passed in a list that the callee empties (a boxed call) and no caller has another reference."
    )


def _is_argument(facts: LateReleaseFacts) -> str:
    return f"{', '.join(facts.arguments)} {'is an argument' if len(facts.arguments) == 1 else 'are arguments'}"


def line_of(place: str) -> str:
    """`train.py:41` of `train.py:41 forward (aten::addmm)`; all of it if it starts with no line."""
    line = place_of(place)
    return place if line is None else line.at


def late_release_findings(
    rank: Rank, min_avoidable: int, reported: Collection[str] = (), worth_share: float = WORTH_SHARE
) -> list[Finding]:
    """Possible savings of this rank's peak that are worth a line: never a leak.

    `reported` are holders of a library with their own findings, such as `PipelineStage.output_chunks`.
    """
    peak = peak_of(rank)
    if peak is None:
        return []
    least = max(min_avoidable, worth_share * peak.step.peak_bytes, 1)
    return _users_findings(peak, least) + others_findings(peak, min_avoidable, least, reported)


def late_release_unjudged(rank: Rank) -> list[Unjudged]:
    """Why this rank's lifetimes are unknown."""
    return [Unjudged(NAME, rank.number, row.why) for row in rank.lifetimes if isinstance(row, LifetimesUnjudged)]


def _users_findings(peak: PeakOfStep, least: float) -> list[Finding]:
    graph = peak.graph
    paths = paths_from_roots(graph)
    idle = peak.held_by(Releaser.USER)
    storages = frozenset(i.row.storage for i in idle)
    groups: dict[str, list[tuple[Idle, tuple[int, ...]]]] = defaultdict(list)
    climbed: dict[int, int] = {}
    for entry in idle:
        cuts = []
        for reference in entry.holders.users:
            if reference not in climbed:
                climbed[reference] = _climb(graph, reference, storages)
            cuts.append(climbed[reference])
        cuts = _by_their_object(graph, list(dict.fromkeys(cuts)), entry, storages)
        cuts.sort(key=lambda c: (graph.object(int(graph.holder[c])).kind != ObjectKind.FRAME, c))
        groups[_owner(graph, paths, cuts[0])].append((entry, tuple(cuts)))
    # If another moment is as high, releasing only these would gain too little.
    worth = [members for members in groups.values() if peak.fall([idle for idle, _ in members]) >= least]
    return [_finding(peak, paths, members) for members in worth]


def _climb(graph: HeapGraph, reference: int, idle: frozenset[int]) -> int:
    """From an item of a container to the local of the container, if cutting that frees nothing that is needed."""
    best = reference
    for _ in range(3):
        holder = int(graph.holder[best])
        into = graph.into(holder).tolist()
        if graph.object(holder).kind not in _CONTAINERS or len(into) != 1 or graph.root[holder]:
            break
        below = reachable(len(graph), graph.holder, graph.held, np.asarray([holder], dtype=np.int64))[graph.storages]
        gone = freed_storages(graph, np.asarray(into, dtype=np.int64)).tolist()
        if not idle.issuperset(graph.storages[below].tolist()) and (not gone or not idle.issuperset(gone)):
            break
        best = into[0]
    return best if graph.reference(best).kind == ReferenceKind.LOCAL else reference


def _by_their_object(graph: HeapGraph, cuts: list[int], entry: Idle, idle: frozenset[int]) -> list[int]:
    """If one object holds the storage by several references, the single reference to that object instead."""
    times = Counter(int(graph.holder[c]) for c in cuts)
    for holder in [h for h, count in times.items() if count > 1 and not graph.root[h] and len(graph.into(h)) == 1]:
        instead = [*graph.into(holder).tolist(), *(c for c in cuts if graph.holder[c] != holder)]
        gone = freed_storages(graph, np.asarray([*instead, *entry.holders.packed], dtype=np.int64))
        if frees_mostly_idle(graph, gone, entry.row.storage, idle):
            cuts = list(dict.fromkeys(instead))
    return cuts


def _owner(graph: HeapGraph, paths: ShortestPaths, reference: int) -> str:
    """What a user would open to fix it: the function or module of the variable, or the root above it."""
    holder = int(graph.holder[reference])
    start = paths.start_of(graph, holder)
    root = graph.object(start)
    own = root.kind == ObjectKind.FRAME or start == holder
    return f"{root.kind} {root.name}" if own else f"{root.kind} {root.name} {spoken_as(graph, paths, reference)}"


def _finding(
    peak: PeakOfStep, paths: ShortestPaths, members: Sequence[tuple[Idle, tuple[int, ...]]]
) -> Finding:  # fmt: skip
    """Everything that one holder keeps."""
    graph = peak.graph
    size = sum(member.row.bytes for member, _ in members)
    fall = peak.fall([idle for idle, _ in members])
    members = sorted(members, key=lambda m: -m[0].row.bytes)
    cuts = list(dict.fromkeys(c for _, more in members for c in more))
    spoken = list(dict.fromkeys(spoken_as(graph, paths, c) for c in cuts))
    where = line_above(graph, paths, cuts[0])
    packed = {r for member, _ in members for r in member.holders.packed}
    gone = freed_storages(graph, np.asarray([*cuts, *packed], dtype=np.int64))
    frees = int(graph.bytes[[s for s in gone.tolist() if s in {m[0].row.storage for m in members}]].sum())
    names = together(spoken)
    made = list(dict.fromkeys(member.row.made_at for member, _ in members if member.row.made_at))
    trace = trace_through(
        graph,
        paths,
        cuts[0],
        members[0][0].row.storage,
        frees if len(cuts) == 1 else _frees_alone(graph, members, cuts[0]),
    )
    named = CutReference(
        ", ".join(dict.fromkeys(generic(graph.reference(c).name) for c in cuts[:NAMES_SHOWN])),
        where,
        names,
        tuple(cuts),
    )
    cut = Cut((named,), frees)
    arguments = arguments_cut(graph, peak.step, cuts)
    return Finding(
        rule=NAME,
        facts=LateReleaseFacts(
            bytes=size,
            holders=len(spoken),
            made_at=members[0][0].row.made_at,
            last_use_at=members[0][0].row.last_use_at,
            peak_at=peak.step.peak_at,
            fall_bytes=fall,
            variables=variables(graph, cuts),
            arguments=tuple(arguments),
            is_saved=any(idle.holders.saved for idle, _ in members),
            of_backward=crossed_count(graph, (member.row.storage for member, _ in members)) > 0
            or (bool(arguments) and peak.step.peak_phase == Phase.BACKWARD),
        ),
        fingerprint=fingerprint((NAME, *sorted(spoken))),
        severity=Severity.AVOIDABLE,
        freed_by=FreedBy.PROGRAM,
        retained_bytes=size,
        bytes_per_step=0.0,
        trace=trace,
        cut=on_trace(cut, trace) if len(spoken) == 1 else cut,
        made_at=tuple(made[:6]),
        sightings=(Sighting(peak.rank, peak.step.step, size),),
        count=len(members),
    )


def _frees_alone(graph: HeapGraph, members: Sequence[tuple[Idle, tuple[int, ...]]], cut: int) -> int:
    """Idle bytes that this cut frees without the others."""
    idle = {member.row.storage for member, _ in members}
    return int(
        graph.bytes[[s for s in freed_storages(graph, np.asarray([cut], dtype=np.int64)).tolist() if s in idle]].sum()
    )


HELP = """\
# late-release

Memory at the peak of a step that is not used again.

## What it does

Reports memory that is alive at the peak of an instrumented step although no later operation of the step uses it.
`leakscope run` and `Profiler` instrument one step after warm-up. The finding is avoidable memory, not a leak, and does
not change the exit status unless `leakscope run --fail-on-avoidable SIZE` is set.

## Why is this bad?

The memory raises the peak of the step although nothing uses it again in that step.

## Example

```python title="train.py"
import torch
import leakscope

net = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Tanh(), torch.nn.Linear(256, 256))


def train_step():
    pixels = torch.randint(0, 255, (4096, 1024), dtype=torch.uint8)
    batch = pixels[:, :256].float() / 255
    net(batch).square().mean().backward()


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

A variable retains its tensor until the function returns, and the peak of a step is in its backward, long after the last
use of the raw batch.

## Use instead

Drop it before the peak: `del` the name, or pass it in a list that the callee empties.

```diff title="train.py"
     batch = pixels[:, :256].float() / 255
+    del pixels
     net(batch).square().mean().backward()
```

```console
$ python train.py
```

Other fixes:

- A function cannot drop its arguments, because the frame of the caller references them too. Pass a list with one item
  and `pop()` it.
- A loop variable lives until the next iteration has created its successor: `del batch` at the end of the iteration.
- Call `optimizer.zero_grad()` before the forward, so that old gradients are not alive at the peak.

## References

[`leakscope.backward.stage_backward`](../reference/backward.md) with `boxed=True` takes outputs and gradients in lists
and clears them before it runs.

- [Understanding CUDA memory usage](https://docs.pytorch.org/docs/stable/torch_cuda_memory.html): memory at a peak.
"""
RULE = Rule(RuleName.LATE_RELEASE, HELP, level="note", at_peak=True, names_holders=True)
