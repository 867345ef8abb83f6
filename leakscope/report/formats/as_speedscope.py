"""Who holds how many bytes, as a flame graph: speedscope's file, a profile for each rank."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from leakscope.findings.facts import Severity
from leakscope.findings.model import Finding, Findings, Hop
from leakscope.findings.naming import place_of
from leakscope.report.escape import cleaned
from leakscope.report.messages.sentences import title
from leakscope.run.model import Run

SCHEMA = "https://www.speedscope.app/file-format-schema.json"
"""By which speedscope knows its own files (jlfwong/speedscope, src/lib/file-format-spec.ts)."""
_REST = "in no finding"

_Frame = tuple[str, str, int]
"""Name, file, line; "" and 0 where it has none."""


def render(run: Run, findings: Findings) -> str:
    """The trace of each finding, from the root down, as wide as what it held of that rank's memory at its last
    sighting; beside them what was found in storages otherwise. What lay idle at a peak only is not among it.
    """
    run, findings = cleaned(run), cleaned(findings)
    frames: dict[_Frame, int] = {}
    held = [f for f in findings.findings + findings.suppressed if f.severity != Severity.AVOIDABLE]
    stacks = [(finding, [frames.setdefault(frame, len(frames)) for frame in _stack(finding)]) for finding in held]
    rest = frames.setdefault((_REST, "", 0), len(frames))
    ranks = sorted({*findings.ranks, *(rank.number for rank in run.ranks)}) or [0]
    told = {
        "$schema": SCHEMA,
        "name": " ".join(run.command),
        "exporter": f"leakscope@{run.leakscope}",
        "activeProfileIndex": 0,
        "shared": {"frames": [_frame(*frame) for frame in frames]},
        "profiles": [_profile(rank, findings, stacks, rest) for rank in ranks],
    }
    return json.dumps(told, allow_nan=False) + "\n"


def _profile(rank: int, findings: Findings, stacks: Sequence[tuple[Finding, list[int]]], rest: int) -> dict[str, Any]:
    held = [(stack, _bytes_on(finding, rank)) for finding, stack in stacks]
    summary = findings.ranks.get(rank)
    found = 0 if summary is None else summary.explained_bytes
    held.append(([rest], found - sum(size for _, size in held)))
    shown = [(stack, size) for stack, size in held if size > 0]
    return {
        "type": "sampled",
        "name": f"rank {rank}",
        "unit": "bytes",
        "startValue": 0,
        "endValue": sum(size for _, size in shown),
        "samples": [stack for stack, _ in shown],
        "weights": [size for _, size in shown],
    }


def _bytes_on(finding: Finding, rank: int) -> int:
    seen = [sighting for sighting in finding.sightings if sighting.rank == rank]
    return max(seen, key=lambda sighting: sighting.step).bytes if seen else 0


def _stack(finding: Finding) -> list[_Frame]:
    if not finding.trace:
        return [(f"{title(finding)} [{finding.fingerprint}]", *_line(next(iter(finding.made_at), "")))]
    return [(_name(hop), *_line(hop.where)) for hop in finding.trace]


def _name(hop: Hop) -> str:
    return f"{hop.object} {hop.reference}".rstrip()


def _line(where: str) -> tuple[str, int]:
    place = place_of(where)
    return ("", 0) if place is None else (place.file, place.line)


def _frame(name: str, file: str, line: int) -> dict[str, Any]:
    return {"name": name, **({"file": file, "line": line} if file else {})}
