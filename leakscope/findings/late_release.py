"""Memory at the step's peak that is never used again: who holds it then, and what letting go of it saves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from leakscope.findings.cures import places
from leakscope.findings.grips import Grips, grips_of, users_side
from leakscope.findings.model import Cut, Finding, Hop, Sighting, Unjudged
from leakscope.findings.saying import along_way
from leakscope.findings.trace import fingerprint, generic, hops
from leakscope.graph.model import HeapGraph
from leakscope.graph.paths import Ways, ways_from_roots
from leakscope.graph.reach import reachable
from leakscope.graph.retained import freed_storages
from leakscope.record import Rank
from leakscope.units import bytes_text

NAME = "late-release"
MATERIAL_SHARE = 0.05
"""Share of the step's own peak, above what was alive when it began, from which avoidable bytes are a leak."""
MATERIAL_FACTOR = 4
"""And at least this many times `min_bytes`."""
_OTHERS_FACTOR = 4
"""What somebody else holds is worth a note from this many times as much."""
_CONTAINERS = ("container",)
_NAMES_SHOWN = 6

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Idle:
    """One storage that was alive at the peak and is not used again."""

    row: Row
    grips: Grips
    by: str
    """Who could let go: user, library, gradient (zero_grad), wire (a Work) or autograd (a backward still to come)."""


@dataclass(frozen=True)
class PeakOfStep:
    """The watched step of one rank: its figures, the heap at its peak, and what was idle then."""

    rank: int
    row: Row
    graph: HeapGraph
    idle: tuple[Idle, ...]
    rows: tuple[Row, ...]
    """All storages of the step that were made and last used where an idle one was; those that are idle for about as long
    are held in the same way, and the same mended line lets go of them."""

    @property
    def rise(self) -> int:
        """Bytes of the peak above what was alive when the step began."""
        return int(self.row["peak_bytes"]) - int(self.row["start_bytes"])

    def held_by(self, who: str) -> list[Idle]:
        return [idle for idle in self.idle if idle.by == who]

    @property
    def avoidable_bytes(self) -> int:
        """Bytes at the peak that nothing uses again and that the user's code could have let go."""
        return sum(int(idle.row["bytes"]) for idle in self.held_by("user"))

    def fall(self, idle: Sequence[Idle]) -> int:
        """By how much the step's peak falls when these are released after their last use: another moment may be the peak then."""
        spans: dict[tuple[str, str], int] = {}
        for one in idle:
            spans[_site(one.row)] = min(_span(one.row), spans.get(_site(one.row), _span(one.row)))
        rows = [row for row in self.rows if _site(row) in spans and 2 * _span(row) >= spans[_site(row)]]
        heights = [
            live - sum(int(r["bytes"]) for r in rows if r["last"] < number < r["died"]) for number, live in self.row["curve"]
        ]
        return int(self.row["peak_bytes"]) - max(heights, default=int(self.row["peak_bytes"]))


def peak_of(rank: Rank) -> PeakOfStep | None:
    """What the lifetimes of one rank's watched step show; None where none was watched to its end."""
    rows = rank.extras.get("lifetimes", ())
    step = next((row for row in rows if row["kind"] == "step"), None)
    if step is None:
        return None
    look = next((look for look in rank.looks if look.occasion == "peak" and look.step == step["step"]), None)
    if look is None:
        return None
    users = users_side(look.heap)
    idle = []
    for row in rows:
        if row["kind"] == "idle" and 0 <= row["storage"] < len(look.heap) and look.heap.freed[row["storage"]] == 0:
            grips = grips_of(look.heap, row["storage"], users)
            idle.append(Idle(row, grips, _who(look.heap, grips, row, step)))
    alike = tuple(row for row in rows if row["kind"] in ("idle", "alike"))
    return PeakOfStep(rank.number, step, look.heap, tuple(idle), alike)


def _span(row: Row) -> int:
    """Operations from the last use to the death."""
    return int(row["died"]) - int(row["last"])


def _site(row: Row) -> tuple[str, str]:
    return str(row["made_at"]), str(row["last_use_at"])


def _who(graph: HeapGraph, grips: Grips, row: Row, step: Row) -> str:
    if grips.gradient:
        return "gradient"
    if grips.native or grips.library or not (grips.users or grips.work):
        return "library"
    if grips.work:
        return "wire"
    if grips.packed and not _arguments(graph, step, grips.users):
        return "library"
    if grips.saved and step["backward_follows"] and row["last_phase"] != "backward":
        return "autograd"
    return "user"


def late_release_findings(rank: Rank, min_bytes: int) -> list[Finding]:
    """A leak where the user could save a material part of this rank's peak, else notes."""
    peak = peak_of(rank)
    return [] if peak is None else _users_findings(peak, min_bytes) + _others(peak, min_bytes)


def late_release_unjudged(rank: Rank) -> list[Unjudged]:
    """Why this rank's lifetimes could not be told, where they could not."""
    rows = rank.extras.get("lifetimes", ())
    return [Unjudged(NAME, rank.number, str(row["why"])) for row in rows if row["kind"] == "unjudged"]


def avoidable_peak_bytes(rank: Rank) -> int | None:
    """Bytes of the watched step's peak that the user's code could have let go; None where no step was watched."""
    peak = peak_of(rank)
    return None if peak is None else peak.avoidable_bytes


def _is_material(peak: PeakOfStep, size: int, min_bytes: int) -> bool:
    return size >= MATERIAL_FACTOR * min_bytes and size >= MATERIAL_SHARE * peak.rise and size > 0


def _users_findings(peak: PeakOfStep, min_bytes: int) -> list[Finding]:
    graph = peak.graph
    ways = ways_from_roots(graph)
    idle = peak.held_by("user")
    storages = frozenset(int(i.row["storage"]) for i in idle)
    groups: dict[str, list[tuple[Idle, tuple[int, ...]]]] = defaultdict(list)
    climbed: dict[int, int] = {}
    for one in idle:
        cuts = []
        for reference in one.grips.users:
            if reference not in climbed:
                climbed[reference] = _climb(graph, reference, storages)
            cuts.append(climbed[reference])
        cuts = list(dict.fromkeys(cuts))
        cuts.sort(key=lambda c: (graph.object(int(graph.holder[c])).kind != "frame", c))
        groups[_owner(graph, ways, cuts[0])].append((one, tuple(cuts)))
    told = [_finding(peak, ways, members, min_bytes) for members in groups.values()]
    return [finding for finding in told if finding.retained_bytes >= max(min_bytes, 1)]


def _climb(graph: HeapGraph, reference: int, idle: frozenset[int]) -> int:
    """From an item of a container to the local that holds the container, where cutting that frees nothing that is needed."""
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
    return best if graph.reference(best).kind == "local" else reference


def _owner(graph: HeapGraph, ways: Ways, reference: int) -> str:
    """What a person would open to mend it: the function whose variable it is, or the root that leads there."""
    holder = int(graph.holder[reference])
    root = graph.object(ways.start(graph, holder))
    return f"{root.kind} {root.name}" if root.kind == "frame" else f"{root.kind} {root.name} {_spoken(graph, ways, reference)}"


def _where(graph: HeapGraph, ways: Ways, reference: int) -> str:
    """The line of this reference, or of the nearest one above it that has a line."""
    for above in [reference, *ways.to(graph, int(graph.holder[reference]))[::-1]]:
        r = graph.reference(above)
        if where := r.where or graph.object(r.holder).where:
            return where
    return ""


def _spoken(graph: HeapGraph, ways: Ways, reference: int) -> str:
    way = [*ways.to(graph, int(graph.holder[reference])), reference]
    return along_way(graph, way, reference)


def _finding(
    peak: PeakOfStep, ways: Ways, members: Sequence[tuple[Idle, tuple[int, ...]]], min_bytes: int
) -> Finding:  # fmt: skip
    graph = peak.graph
    size = sum(int(one.row["bytes"]) for one, _ in members)
    # what the running statement itself used a moment ago, as `logits` in loss.backward(), every plain script holds: a note
    passing = sum(int(one.row["bytes"]) for one, _ in members if one.row.get("one_statement"))
    members = sorted(members, key=lambda m: -int(m[0].row["bytes"]))
    cuts = list(dict.fromkeys(c for _, more in members for c in more))
    spoken = list(dict.fromkeys(_spoken(graph, ways, c) for c in cuts))
    where = _where(graph, ways, cuts[0])
    packed = {r for one, _ in members for r in one.grips.packed}
    gone = freed_storages(graph, np.asarray([*cuts, *packed], dtype=np.int64))
    frees = int(graph.bytes[[s for s in gone.tolist() if s in {m[0].row["storage"] for m in members}]].sum())
    names = _together(spoken)
    made = list(dict.fromkeys(str(one.row["made_at"]) for one, _ in members if one.row["made_at"]))
    return Finding(
        rule=NAME,
        title=f"{names}{', ' + where if where else ''}, keep{'s' * (len(spoken) == 1)} {bytes_text(size)} through the step's "
        "peak that nothing uses again",
        fingerprint=fingerprint((NAME, *sorted(spoken))),
        severity="leak" if _is_material(peak, size - passing, min_bytes) else "note",
        freed_by="program",
        retained_bytes=size,
        bytes_per_step=0.0,
        trace=_trace(graph, ways, cuts[0], int(members[0][0].row["storage"]), frees),
        cut=Cut(", ".join(dict.fromkeys(generic(graph.reference(c).name) for c in cuts[:_NAMES_SHOWN])), where, frees),
        advice=_advice(peak, [one for one, _ in members], cuts, names),
        made_at=tuple(made[:6]),
        sightings=(Sighting(peak.rank, int(peak.row["step"]), size),),
        see=places("boxed-lists") if _arguments(graph, peak.row, cuts) else (),
        count=len(members),
    )


def _together(spoken: Sequence[str]) -> str:
    """`inputs and outputs in step(), batch in main()`."""
    places: dict[str, list[str]] = defaultdict(list)
    for text in spoken[:_NAMES_SHOWN]:
        name, _, place = text.partition(" in ")
        places[place].append(name)
    parts = [_listed(names) + (f" in {place}" if place else "") for place, names in places.items()]
    more = f" and {len(spoken) - _NAMES_SHOWN} more" if len(spoken) > _NAMES_SHOWN else ""
    return ", ".join(parts) + more


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def _trace(graph: HeapGraph, ways: Ways, cut: int, storage: int, frees: int) -> tuple[Hop, ...]:
    """From the root through the cut down to the storage."""
    above = ways.to(graph, int(graph.holder[cut]))
    way = [*above, cut]
    came: dict[int, int] = {int(graph.held[cut]): -1}
    waiting = [int(graph.held[cut])]
    while waiting and storage not in came:
        here = waiting.pop(0)
        for reference in graph.out_of(here).tolist():
            held = int(graph.held[reference])
            if held not in came:
                came[held] = reference
                waiting.append(held)
    down: list[int] = []
    at = storage
    while came.get(at, -1) >= 0:
        down.append(came[at])
        at = int(graph.holder[came[at]])
    way += down[::-1]
    start = int(graph.holder[way[0]])
    return hops(graph, start, way, len(above) + 1, {cut: frees}, ("still needed", "not used again before it is released"))


def _arguments(graph: HeapGraph, step: Row, cuts: Sequence[int]) -> list[str]:
    """Cuts that are arguments of calls that ran at the peak."""
    running = {(str(function), str(name)) for function, name in step["arguments"]}
    found = []
    for cut in cuts:
        r = graph.reference(cut)
        holder = graph.object(r.holder)
        if holder.kind == "frame" and (holder.name, r.name.removeprefix("local ")) in running:
            found.append(r.name.removeprefix("local "))
    return list(dict.fromkeys(found))


def _advice(peak: PeakOfStep, idle: Sequence[Idle], cuts: Sequence[int], names: str) -> str:
    last = next((str(one.row["last_use_at"]) for one in idle if one.row["last_use_at"]), "")
    used = f"last used at {last}" if last else "not used in the step at all"
    fall = peak.fall(idle)
    text = f"Let go of {names} after the last use, or move that part into a function of its own. The largest was {used}; the peak is at {peak.row['peak_at']}. The step's peak would fall by {bytes_text(fall)}."
    arguments = _arguments(peak.graph, peak.row, cuts)
    if arguments:
        boxed = ", ".join(arguments)
        text += (
            f" {boxed} {'is an argument' if len(arguments) == 1 else 'are arguments'} of a running call: what a caller hands over stays alive until "
            "the call returns, unless it is passed in a list that the callee empties (a boxed call) and no caller keeps a name for it."
        )
    if any(one.grips.saved for one in idle):
        text += " A grad node that has already run still keeps it as a saved tensor: drop retain_graph=True, or the last reference to the graph."
    return text


def _others(peak: PeakOfStep, min_bytes: int) -> list[Finding]:
    """Notes on what somebody else could let go: a library, or zero_grad."""
    said = {
        "library": (
            "libraries and running calls keep {size} through the step's peak that nothing uses again",
            "No variable of yours holds it alone: a running call of a library does. Passing less, or calling the parts of it yourself, may help.",
        ),
        "gradient": (
            "gradients of the last step are kept until zero_grad: {size} at the step's peak",
            "Call optimizer.zero_grad() right after optimizer.step(), before the next forward.",
        ),
        "wire": (
            "sends and receives that are not yet over, or whose Work is kept, hold {size} through the step's peak",
            "Wait for an operation as early as its buffer is not needed, and drop its Work then.",
        ),
        "autograd": (
            "autograd keeps {size} through the step's peak for a backward that does not use it",
            "Compute what needs no gradient under torch.no_grad(), or detach it, so that its graph is not kept until backward.",
        ),
    }
    found = []
    for who, (title, advice) in said.items():
        idle = peak.held_by(who)
        size = sum(int(one.row["bytes"]) for one in idle)
        if who == "gradient" and peak.row["peak_phase"] == "optimizer":
            continue  # the optimizer itself still holds them: no zero_grad could come before
        if _is_material(peak, size, _OTHERS_FACTOR * min_bytes):
            made = list(dict.fromkeys(str(one.row["made_at"]) for one in idle if one.row["made_at"]))
            found.append(
                Finding(
                    rule=NAME,
                    title=title.format(size=bytes_text(size)),
                    fingerprint=fingerprint((NAME, who)),
                    severity="note",
                    freed_by="program",
                    retained_bytes=size,
                    bytes_per_step=0.0,
                    trace=(),
                    cut=None,
                    advice=advice,
                    origin="library" if who == "library" else "application",
                    made_at=tuple(made[:6]),
                    sightings=(Sighting(peak.rank, int(peak.row["step"]), size),),
                    count=len(idle),
                )
            )
    return found
