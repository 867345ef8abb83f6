"""From a recorded run to its verdict."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median

from leakscope.findings.build import build_finding as tell
from leakscope.findings.categories import categories, summary
from leakscope.findings.comm.operations import beyond_the_wire, context_findings, wire_findings, with_contexts
from leakscope.findings.compare_ranks import skew_findings
from leakscope.findings.graph_memory import with_graphs_behind
from leakscope.findings.grouping.arrays import beside_tensors, of_arrays, with_arrays_for_storages
from leakscope.findings.grouping.bounds import WENT_ON, bound_on, doubted, gaining, is_open, went_on
from leakscope.findings.grouping.candidate import Candidate
from leakscope.findings.grouping.groups import Group, group_storages
from leakscope.findings.grouping.growth import LEAST_LOOKS, Series, series
from leakscope.findings.memory.allocator import allocator_findings
from leakscope.findings.memory.device import native_findings
from leakscope.findings.memory.device_oom import device_failures_told
from leakscope.findings.memory.gc_advice import gc_advice
from leakscope.findings.memory.oom import out_of_memory_told
from leakscope.findings.memory.unattributed import gap_findings
from leakscope.findings.merge import merge_by_fingerprint as merge
from leakscope.findings.merge import merge_findings, with_one_cut
from leakscope.findings.model import (
    Finding,
    Findings,
    Origin,
    RankSummary,
    RuleName,
    Severity,
    Sighting,
    Unjudged,
)
from leakscope.findings.ownership.known_leaks import named_upstream
from leakscope.findings.ownership.library_retention import kept_by_library
from leakscope.findings.peak.drag import drag_told
from leakscope.findings.peak.late_release import late_release_findings, late_release_unjudged
from leakscope.findings.verdict import verdict_of
from leakscope.graph.model import IMMORTAL
from leakscope.record.kinds import Occasion
from leakscope.record.model import Look, Rank, Run
from leakscope.units import bytes_text
from leakscope.verdict import Verdict

JUDGED = ("step", "last", "peer", "block")
"""Occasions whose looks count; what is seen after the main code has returned is only listed."""
LEAKS_FOUND = 23
"""Exit status where leaks are found; scripts and shells seldom use it themselves."""
_RESTED = 3
"""Steps after the last judged look over which what has not grown at all is taken to have come to rest."""
_AS_FAST = 0.5
"""Share of its rate at which something has grown on."""


def judge(
    run: Run, *, suppress: Collection[str] = (), baseline: Collection[str] = (), leak_exit_code: int = LEAKS_FOUND
) -> Findings:
    """The verdict of a run, and each distinct leak in it.

    >>> from pathlib import Path
    >>> import leakscope
    >>> run = leakscope.read_run(Path("sample_runs/p2p_pipeline/stage-backward-cycle"))
    >>> findings = leakscope.judge(run)
    >>> findings.verdict.value, findings.exit_status, findings.findings[0].rule.value
    ('leaks', 23, 'tensor-cycle')
    >>> leakscope.judge(run, suppress=["tensor-cycle"]).verdict.value
    'clean'

    Args:
        run: what `read_run` or a `Profiler` gives.
        suppress: fingerprints or names of rules; what they name is listed apart and decides nothing.
        baseline: fingerprints of an earlier run's findings, listed apart as well.
        leak_exit_code: `exit_status` of the findings where the verdict is leaks.

    """
    found: list[Finding] = []
    unjudged: list[Unjudged] = []
    open_cases: dict[str, str] = {}
    """Fingerprint to why it cannot be said whether it is a leak."""
    summaries: dict[int, RankSummary] = {}
    for rank in run.ranks:
        looks = judged_looks(rank, run.warmup)
        told, gaps, leaking, doubts = _growing(rank, looks, run)
        open_cases |= doubts
        found += told
        found += beyond_the_wire(gaps, told)
        found += allocator_findings(rank, looks)
        unjudged += _unjudged(rank, looks) + late_release_unjudged(rank)
        kept = kept_by_library(rank, looks, told, run.min_bytes)
        found += kept.values()
        found += late_release_findings(rank, run.min_bytes, kept)
        summaries[rank.number] = summary(rank, leaking)
    found += wire_findings(run) + context_findings(run)
    merged = merge(with_contexts([named_upstream(f) for f in found], run))
    merged += skew_findings(run, summaries, merged)
    merged = [_with_proof(f, run) for f in merged]
    hidden = set(suppress) | set(baseline)
    shown = [f for f in merged if f.fingerprint not in hidden and f.rule not in suppress]
    kept_apart = [f for f in merged if f.fingerprint in hidden or f.rule in suppress]
    verdict, why = verdict_of(
        run, shown, unjudged, [open_cases[f.fingerprint] for f in shown if f.fingerprint in open_cases]
    )
    return Findings(
        verdict=verdict,
        why=why,
        exit_status=leak_exit_code if verdict == Verdict.LEAKS else 0,
        findings=tuple(shown),
        suppressed=tuple(kept_apart),
        unjudged=tuple(unjudged),
        ranks=summaries,
        listed=_listed(run),
        out_of_memory=(*out_of_memory_told(run), *device_failures_told(run)),
        gc_advice=gc_advice(run, shown),
        drag=drag_told(run),
    )


def _growing(
    rank: Rank, looks: Sequence[Look], run: Run
) -> tuple[list[Finding], list[Finding], list[Candidate], dict[str, str]]:
    """What grows in one rank: the findings, the gaps that they leave, what leaks in tensors, and open cases by fingerprint."""
    candidates = candidates_of(rank, looks)
    told = [tell(c, run.min_bytes) for c in candidates]
    doubts = [_open(f, c) for f, c in zip(told, candidates, strict=True)]
    told = [doubted(f, c) for f, c in zip(told, candidates, strict=True)]
    joined = native_findings(rank, looks, run.min_bytes)
    gaps = gap_findings(rank, looks, run.min_bytes) if joined is None else joined
    if looks and looks[-1].counted_on == "cpu":  # nodes are in host memory
        told, gaps = with_graphs_behind(told, candidates, gaps, looks)
    leaking = [c for f, c in zip(told, candidates, strict=True) if f.severity == Severity.LEAK]
    alike = with_one_cut(told)
    told = [merge_findings([told[place] for place in places]) for places in alike]
    open_cases = {
        f.fingerprint: doubts[place] for f, places in zip(told, alike, strict=True) for place in places if doubts[place]
    }
    for candidate in _of_arrays(rank, run.warmup):
        finding = of_arrays(tell(candidate, run.min_bytes), rank.number)
        if why := _open(finding, candidate):
            open_cases[finding.fingerprint] = why
        told = beside_tensors(told, doubted(finding, candidate))
    return told, gaps, leaking, open_cases


def _of_arrays(rank: Rank, warmup: int) -> list[Candidate]:
    """Numpy arrays and their like that something alive keeps gaining."""
    seen = with_arrays_for_storages(rank)
    return [] if seen is None else [c for c in candidates_of(seen, judged_looks(seen, warmup)) if not c.group.freed]


def judged_looks(rank: Rank, warmup: int) -> tuple[Look, ...]:
    """The looks that growth is read from: after warm-up, while the script's main code ran."""
    looks = [
        look
        for look in rank.looks
        if look.occasion in JUDGED and (look.step > warmup or look.occasion != Occasion.STEP)
    ]
    # a rank without steps may not have run at all between two looks that its peers' steps brought about in a row
    hurried = {id(a) for a, b in pairwise(looks) if a.occasion == b.occasion == Occasion.PEER and b.step - a.step < 2}
    return tuple(look for look in looks if id(look) not in hurried)


def candidates_of(rank: Rank, looks: Sequence[Look]) -> list[Candidate]:
    """Groups that grow, and garbage that comes back."""
    seen: dict[tuple[str, ...], dict[int, tuple[Look, Group]]] = defaultdict(dict)
    steps = _clock(looks)
    garbage: dict[int, int] = defaultdict(int)
    for place, look in zip(steps, looks, strict=True):
        for group in group_storages(look.heap):
            seen[group.key][place] = (look, group)
            garbage[place] += 0 if _by_program(group) else group.bytes
    found = []
    end, at_the_end = _at_the_end(rank, steps)
    lines = {key: series(steps, {place: group.bytes for place, (_, group) in at.items()}) for key, at in seen.items()}
    growing = [line for key, line in lines.items() if line.grows and not seen[key][max(seen[key])][1].freed]
    for key, at in seen.items():
        line = lines[key]
        place = _telling_look(at)
        look, group = at[place]
        rate, recreated = _rate(rank, line, group, garbage)
        if look.occasion == Occasion.BLOCK:  # one look after a block of code: whatever it left unreachable is its own
            rate = float(group.bytes) if group.freed else 0.0
        elif _by_program(group) and (not line.grows or at_the_end.get(key) == line.bytes[-1]):
            continue
        if rate <= 0:
            continue
        confirmed = at_the_end.get(key, 0) - line.bytes[-1] >= _AS_FAST * rate * (end - steps[-1]) > 0
        rested = key in at_the_end and at_the_end[key] - line.bytes[-1] < WENT_ON * rate * (end - steps[-1])
        live = group.freed == 0 and look.occasion != Occasion.BLOCK
        places = gaining(at) if live and look is at[max(at)][0] else []
        found.append(
            Candidate(
                rank.number,
                look.step,
                look.heap,
                group,
                line,
                rate,
                recreated,
                storages_at={there.step: other.storages for there, other in at.values()},
                roots=tuple(at[there][1].roots for there in sorted(at)),
                made_at=tuple(
                    there.heap.made_at[s]
                    for there, other in at.values()
                    for s in other.storages
                    if s in there.heap.made_at
                ),
                confirmed=confirmed,
                ended=live
                and not confirmed
                and _is_counted(look, group)
                and not went_on(rank, line, rate, growing, rested),
                gaining=places[-1] if places else -1,
                bound=bound_on(at, places),
            )
        )
    return found


def _at_the_end(rank: Rank, steps: Sequence[int]) -> tuple[int, dict[tuple[str, ...], int]]:
    """The step at which the main code returned, and each live group's bytes then; none where that was soon after the last of `steps`.

    They acquit what came to rest and confirm what was seen to grow; they accuse nothing.
    """
    end = next((look for look in rank.looks if look.occasion == Occasion.END), None)
    if end is None or not steps or end.step < steps[-1] + _RESTED:
        return 0, {}
    return end.step, {group.key: group.bytes for group in group_storages(end.heap) if _by_program(group)}


def _is_counted(look: Look, group: Group) -> bool:
    """Whether the counted bytes are of the memory that the group is in."""
    return (look.counted_on != "cpu") == any(s in look.heap.device for s in group.storages)


def _by_program(group: Group) -> bool:
    """Only the program can let go of it: it is alive, or no collection ever frees it."""
    return group.freed in (0, IMMORTAL)


def _open(finding: Finding, candidate: Candidate) -> str:
    """Why it cannot be said whether it is a leak; "" where it can."""
    if not is_open(finding, candidate) or finding.origin != Origin.APPLICATION:
        return ""
    what = finding.cut.written if finding.cut else finding.subject
    return f"too few looks saw {what} grow to tell a leak from a start that came to rest: run more steps"


def _telling_look(at: Mapping[int, tuple[Look, Group]]) -> int:
    """The last look, unless gc had just emptied the group: then the one that shows most."""
    most = max(at, key=lambda p: (at[p][1].bytes, p))
    last = max(at)
    return last if at[last][1].bytes * 2 >= at[most][1].bytes else most


def _clock(looks: Sequence[Look]) -> list[int]:
    """A strictly rising number for each look: its step; looks of a rank without steps are counted."""
    found: list[int] = []
    for look in looks:
        found.append(look.step if not found or look.step > found[-1] else found[-1] + 1)
    return found


def _rate(rank: Rank, line: Series, group: Group, garbage: Mapping[int, int]) -> tuple[float, bool]:
    """Bytes a step, and whether garbage came back after the program's own gc had freed some.

    What the program's collections freed between two looks is added to the growth, in this group's share of
    the garbage: automatic gc hides a cyclic leak in one run and not in the next.
    """
    if _by_program(group):
        return line.per_step, False
    stretches: list[tuple[float, int]] = []
    """Bytes a step that came between two looks, and how many steps that were."""
    recreated = False
    looks = list(zip(line.steps, line.bytes, strict=True))
    for (before, had), (after, held) in pairwise(looks):
        share = held / garbage[after] if garbage[after] else 0.0
        freed = sum(c.freed_bytes or 0 for s in rank.steps if before < s.number <= after for c in s.collections)
        full = [s.number for s in rank.steps if before < s.number <= after for c in s.collections if c.generation == 2]
        if held == had and freed and not full:
            continue  # old, and what went was not it; or as much came as went
        come = max(held - had + share * freed, 0.0) / (after - before) if full or held != had else 0.0
        if full and held:
            recreated = True
            if not freed:  # nobody counted what went; all that is here has come since
                come = max(come, held / max(after - full[-1], 1))
        stretches.append((come, after - before))
    risen = [come for come, _ in stretches if come > 0]
    if len(risen) < 2 and not recreated:
        return 0.0, False  # it came once
    if len(risen) == len(stretches):
        return float(median(risen)), recreated
    return sum(come * steps for come, steps in stretches) / sum(steps for _, steps in stretches), recreated


def _with_proof(finding: Finding, run: Run) -> Finding:
    if finding.cut is None:
        return finding
    answers = [rank.proved[finding.fingerprint] for rank in run.ranks if finding.fingerprint in rank.proved]
    sizes = [a for a in answers if isinstance(a, int)]
    reasons = [a for a in answers if isinstance(a, str)]
    if sizes and finding.counted_bytes:
        return replace(
            finding,
            cut=replace(
                finding.cut,
                unproved=f"{bytes_text(sum(sizes))} of tensors went free, and what grad nodes take is only counted",
            ),
        )
    if sizes and not reasons:
        return replace(finding, cut=replace(finding.cut, proved_bytes=sum(sizes)))
    return replace(finding, cut=replace(finding.cut, unproved=reasons[0])) if reasons else finding


def _unjudged(rank: Rank, looks: Sequence[Look]) -> list[Unjudged]:
    found = []
    if looks and looks[-1].occasion == Occasion.BLOCK:
        return []
    if (rank.looks or rank.steps) and len(looks) < LEAST_LOOKS:
        why = f"only {len(looks)} look{'s' if len(looks) != 1 else ''} after warm-up, growth needs {LEAST_LOOKS}"
        found.append(Unjudged(RuleName.STEP_GROWTH, rank.number, why if rank.steps else f"no step was seen; {why}"))
    for look in looks:
        found += [Unjudged(RuleName.NATIVE_HOLD, rank.number, problem) for problem in look.unjudged]
    return list(dict.fromkeys(found))


def _listed(run: Run) -> tuple[str, ...]:
    """What was alive when the main code had returned, by category; shown, never judged."""
    lines = []
    for rank in run.ranks:
        for look in rank.looks:
            if look.occasion == Occasion.END and not rank.steps:
                parts = ", ".join(f"{name} {bytes_text(size)}" for name, size in categories(look.heap).items() if size)
                lines.append(f"rank {rank.number}, when its main code had returned: {parts or 'no tensor memory'}")
    return tuple(lines)


def sightings(rank: int, line: Series) -> tuple[Sighting, ...]:
    """The looks of a series at which there was something."""
    return tuple(Sighting(rank, step, size) for step, size in zip(line.steps, line.bytes, strict=True) if size)
