"""One rank keeps what its peers let go, measured by what its own stage should hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from leakscope.findings.model import Finding, RankSummary, Sighting
from leakscope.findings.trace import fingerprint
from leakscope.record import Run
from leakscope.units import bytes_text

NAME = "rank-skew"
_OWN = ("parameter", "gradient", "optimizer state", "buffer")
"""What a stage must hold: a stage with more layers may hold more."""
_FACTOR = 1.5
_LEAST = 16 * 1024 * 1024


def skew_findings(run: Run, summaries: Mapping[int, RankSummary], told: Sequence[Finding]) -> list[Finding]:
    """A note for each rank that holds far more beside its model than its peers do, each set against its own model.

    `told` are the other findings: bytes that they name are no skew. Stages are compared at their last looks, so this
    says where to look, not that anything grows; it is never a verdict.
    """
    excess = {number: _beside(summary, _named(number, told)) for number, summary in summaries.items() if summary.categories}
    if len(excess) < 2:
        return []
    models = {number: max(_model(summaries[number]), 1) for number in excess}
    found = []
    for number, held in sorted(excess.items()):
        usual = median(excess[other] / models[other] for other in excess if other != number)
        expected = usual * models[number]
        over = int(held - expected)
        if held > _FACTOR * expected and over >= max(_LEAST, run.min_bytes):
            found.append(_finding(run, number, over, held, int(expected)))
    return found


def _model(summary: RankSummary) -> int:
    return sum(summary.categories.get(name, 0) for name in _OWN)


def _beside(summary: RankSummary, named: int) -> int:
    """Bytes at the last look that are not the stage's own model and that no other finding names."""
    everything = sum(size for name, size in summary.categories.items() if name not in (*_OWN, "leaked"))
    leaked = summary.categories.get("leaked", 0)
    return max(everything + leaked - max(named, leaked), 0)


def _named(rank: int, told: Sequence[Finding]) -> int:
    last = (max((s for s in f.sightings if s.rank == rank), key=lambda s: s.step, default=None) for f in told if f.severity == "leak")
    return sum(sighting.bytes for sighting in last if sighting is not None)


def _finding(run: Run, rank: int, over: int, held: int, expected: int) -> Finding:
    step = next((r.looks[-1].step for r in run.ranks if r.number == rank and r.looks), 0)
    return Finding(
        rule=NAME,
        title=f"rank {rank} holds {bytes_text(held)} beside its model where its peers' share would be {bytes_text(expected)}",
        fingerprint=fingerprint((NAME,)),
        severity="note",
        freed_by="program",
        retained_bytes=over,
        bytes_per_step=0.0,
        trace=(),
        cut=None,
        advice=(
            f"Compare what rank {rank} holds at its last look with a peer's, by category. In a pipeline the first stages keep more "
            "microbatches in flight; the last stage keeps logits, losses and what a logged metric holds."
        ),
        sightings=(Sighting(rank, step, over),),
    )
