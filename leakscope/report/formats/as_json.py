"""The `findings.json` format, described by `findings.schema.json`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from leakscope.errors import LeakscopeError, Unreadable
from leakscope.files import read_json
from leakscope.findings.counters import AlsoGrows
from leakscope.findings.model import (
    Cut,
    Finding,
    Findings,
    Hop,
    LedgerInterval,
    RankSummary,
    by_kind,
)
from leakscope.findings.workers import LoaderMemory, WorkerLine
from leakscope.originals import Path
from leakscope.report.finding_text import advice, reason_text, title
from leakscope.report.fix_text import result_for
from leakscope.report.run_text import run_text
from leakscope.report.verdict_text import steps_of, unjudged_text, why_text
from leakscope.run.fixes import Fix, LeakFix
from leakscope.run.model import Run
from leakscope.run.suppression import Suppression, known_before

FORMAT = 3
"""Version of `findings.json`, which is not that of a run's folder. A removed key or a changed meaning raises it.

Format 3 renames keys of format 2. Baselines of both formats are read: they need only `findings`, `suppressed`,
`fingerprint` and `severity`, which have not changed.
"""


def render(run: Run, findings: Findings) -> str:
    """`findings.json` as text. Unknown values are null, and keys that name ranks are strings."""
    return json.dumps(as_data(run, findings), indent=2, allow_nan=False) + "\n"


def as_data(run: Run, findings: Findings) -> dict[str, Any]:
    """`findings.json` as dicts and lists, with the keys that the schema documents."""
    return {
        "format": FORMAT,
        "leakscope": run.leakscope,
        "verdict": findings.verdict,
        "why": why_text(findings),
        "exit_status": findings.exit_status,
        "run": _run(run),
        "findings": [_finding(run, finding) for finding in findings.findings],
        "suppressed": [_finding(run, finding) for finding in findings.suppressed],
        "fix": None if run.fix is None else _fix(run.fix),
        "unused_suppressions": [_suppression(one) for one in findings.unused],
        "expired_suppressions": [_suppression(one) for one in findings.expired],
        "unjudged": [asdict(item) | {"why": unjudged_text(item.why)} for item in findings.unjudged],
        "growth": {str(number): list(map(_interval, findings.ledgers[number])) for number in sorted(findings.ledgers)},
        "out_of_memory": list(run_text(findings.out_of_memory)),
        "gc_advice": list(run_text(findings.gc_advice)),
        "idle_time": list(run_text(findings.drag)),
        "loader_workers": {str(rank): list(map(_loader, findings.loaders[rank])) for rank in sorted(findings.loaders)},
        "other_growth": [_other_growth(fact) for fact in findings.also_grows],
        "ranks": {str(number): _rank(findings.ranks[number]) for number in sorted(findings.ranks)},
    }


def read_baseline(path: Path) -> tuple[dict[str, Any], tuple[Suppression, ...]]:
    """Read `findings.json`, or that of a run's folder: the data, and the corresponding suppressions.

    Raises:
        LeakscopeError: The file does not exist, is something else or was written by a newer leakscope.

    """
    file = path / "findings.json" if path.is_dir() else path
    if not file.exists():
        raise LeakscopeError(f"baseline not found: {file}")
    try:
        data = read_json(file)
        if data.get("format", 1) > FORMAT:
            raise LeakscopeError(
                f"{file} was written by a newer leakscope (format {str(data['format'])[:20]}, supported up to {FORMAT})"
            )
        return data, known_before(data, str(file))
    except (Unreadable, ValueError, TypeError, AttributeError):
        raise LeakscopeError(f"not a baseline file: {path} (expected the findings.json of an earlier run)") from None


def _other_growth(fact: AlsoGrows) -> dict[str, Any]:
    return {
        "kind": fact.what,
        "rank": fact.rank,
        "from_step": fact.from_step,
        "to_step": fact.to_step,
        "from_value": fact.before,
        "to_value": fact.now,
        "text": run_text([fact])[0],
    }


def _run(run: Run) -> dict[str, Any]:
    return {
        "command": list(run.command),
        "ranks": run.expected_ranks,
        "steps": steps_of(run),
        "device": run.device or None,
        "torch": run.torch or None,
        "heap_reader": run.heap_reader or None,
        "ended": {
            str(rank.number): {
                "kind": rank.ended.how,
                "exit_status": rank.ended.status,
                "steps": rank.ended.steps,
            }
            for rank in run.ranks
        },
    }


def _finding(run: Run, finding: Finding) -> dict[str, Any]:
    return {
        "rule": finding.rule,
        "title": title(finding),
        "fingerprint": finding.fingerprint,
        "origin": finding.origin,
        "severity": finding.severity,
        "freed_by": finding.freed_by,
        "collections": finding.collections,
        "retained_bytes": finding.retained_bytes,
        "bytes_per_step": finding.bytes_per_step,
        "ranks": list(finding.ranks),
        "first_step": finding.first_step,
        "last_step": finding.last_step,
        "allocated_at": list(finding.made_at),
        "occurrences": [asdict(sighting) for sighting in finding.sightings],
        "trace": [_hop(hop) for hop in finding.trace],
        "cut": None if finding.cut is None else _cut(finding.cut),
        "cycle": [
            {"referrer": reference.holder, "reference": reference.name, "referent": reference.held}
            for reference in finding.cycle
        ],
        "fix": None if (fix := result_for(run, finding)) is None else _leak_fix(fix),
        "advice": advice(finding),
        "suppressed_by": None if finding.suppressed_by is None else _suppression(finding.suppressed_by),
        "replacement": None
        if finding.see is None
        else {"function": finding.see.function, "lines": list(finding.see.lines)},
    }


def _leak_fix(fix: LeakFix) -> dict[str, Any]:
    return {
        "status": "verified" if fix.is_fixed else "none",
        "title": fix.title or None,
        "diff": fix.diff or None,
        "why": fix.why or None,
    }


def _fix(fix: Fix) -> dict[str, Any]:
    return {
        "complete": fix.is_complete,
        "deterministic": fix.is_deterministic,
        "steps": fix.steps,
        "compared_steps": fix.compared_steps,
        "leaks": [{"fingerprint": leak.fingerprint, "subject": leak.subject} | _leak_fix(leak) for leak in fix.leaks],
        "patch": fix.patch or None,
        "notes": list(fix.notes),
        "tries": [
            {
                "title": one.title,
                "fingerprints": list(one.leaks),
                "where": one.where,
                "refused": one.refused or None,
                "seconds": one.seconds,
            }
            for one in fix.tries
        ],
        "counted": fix.is_counted,
        "before": [{"step": step, "bytes": size} for step, size in fix.before],
        "after": [{"step": step, "bytes": size} for step, size in fix.after],
    }


def _suppression(suppression: Suppression) -> dict[str, Any]:
    return {
        "pattern": suppression.pattern,
        "reason": suppression.reason or None,
        "until": suppression.until or None,
        "file": suppression.source or None,
        "line": suppression.line or None,
    }


def _hop(hop: Hop) -> dict[str, Any]:
    return {
        "object": hop.object,
        "type": hop.type or None,
        "kind": hop.kind,
        "where": hop.where or None,
        "status": hop.status,
        "reason": reason_text(hop) or None,
        "reference": hop.reference or None,
        "frees_bytes": hop.frees_bytes,
    }


def _cut(cut: Cut) -> dict[str, Any]:
    return {
        "references": [
            {
                "expression": reference.written or None,
                "reference": reference.name,
                "where": reference.where or None,
                "added_at": list(reference.added_at),
                "trace_index": reference.trace,
                "path": [_hop(hop) for hop in reference.path],
            }
            for reference in cut.references
        ],
        "frees_bytes": cut.frees_bytes if cut.is_exact else None,
        "measured_bytes": cut.proved_bytes,
        "after_gc": cut.after_gc,
    }


def _interval(interval: LedgerInterval) -> dict[str, Any]:
    return {
        "from_step": interval.from_step,
        "to_step": interval.to_step,
        "counted_bytes": interval.counted_bytes,
        "lines": by_kind(interval.lines),
    }


def _loader(loader: LoaderMemory) -> dict[str, Any]:
    started = loader.started
    return {
        "dataset": started.dataset,
        "started_at": started.started_at or None,
        "method": started.method,
        "workers": [
            {
                "worker": worker.worker,
                "unique_bytes": worker.unique_bytes,
                "proportional_bytes": worker.proportional_bytes,
                "growth_bytes": worker.grew_bytes,
            }
            for worker in loader.workers
        ],
        "persistent": started.persistent,
        "starts": loader.lives,
        "step": loader.step,
        "unique_bytes": loader.unique_bytes,
        "proportional_bytes": loader.proportional_bytes,
        "lines": list(map(_worker_line, loader.lines)),
        "growth": [
            {
                "start": interval.life,
                "from_step": interval.from_step,
                "to_step": interval.to_step,
                "unique_bytes": interval.unique_bytes,
                "lines": list(map(_worker_line, interval.lines)),
            }
            for interval in loader.intervals
        ],
        "prefetched_bytes": loader.sent_bytes,
        "max_prefetched_batches": loader.most_sent,
        "pinned_bytes": loader.pinned_bytes,
    }


def _worker_line(line: WorkerLine) -> dict[str, Any]:
    return {"kind": line.kind, "bytes": line.bytes, "container": line.holder or None}


def _rank(summary: RankSummary) -> dict[str, Any]:
    return {
        "verdict": summary.verdict,
        "peak_bytes": summary.peak_bytes,
        "avoidable_peak_bytes": summary.avoidable_peak_bytes,
        "freed_by_gc_bytes": summary.freed_by_gc_bytes,
        "gc_seconds": summary.gc_seconds,
        "storage_bytes": summary.explained_bytes,
        "counted_bytes": summary.counted_bytes,
    }
