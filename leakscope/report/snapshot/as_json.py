"""What a memory snapshot says, for programs."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from leakscope.allocator.judging import SnapshotsReport
from leakscope.report.snapshot.wording import verdict_line

FORMAT = 1
"""Number of this file's format; a newer one may have other fields."""


def snapshot_json(report: SnapshotsReport) -> str:
    """The report as JSON, bytes as whole numbers, unknown as null; the fields are those of the report's dataclasses."""
    data: dict[str, Any] = {
        "format": FORMAT,
        "verdict": report.judgement.verdict,
        "line": verdict_line(report),
        "why": report.judgement.why,
    }
    data["concerns"] = [asdict(concern) for concern in report.judgement.concerns]
    data["snapshots"] = [asdict(snapshot) for snapshot in report.snapshots]
    comparison = report.comparison
    data["comparison"] = comparison and {
        "base": comparison.base.name,
        "new": comparison.new.name,
        "end_bytes": comparison.end_bytes,
        "peak_bytes": comparison.peak_bytes,
        "reserved_bytes": comparison.reserved_bytes,
        "sites": [asdict(site) for site in comparison.sites],
    }
    return json.dumps(data, indent=1, ensure_ascii=True, allow_nan=False) + "\n"
