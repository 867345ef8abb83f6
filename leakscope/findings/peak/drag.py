"""How long did memory lie unused: lag, use and drag of a watched step in byte-seconds, and what of its peak was
idle.
"""

from __future__ import annotations

from collections.abc import Iterator

from leakscope.findings.peak.idle import PeakOfStep, Releaser, peak_of
from leakscope.record.model import Run
from leakscope.units import bytes_text

_WORTH_A_WORD = 0.01
"""Share of the peak from which what nobody saw being made is told."""
_WHO = {
    Releaser.USER: "your code could let go of",
    Releaser.LIBRARY: "only a library could let go of",
    Releaser.GRADIENT: "are gradients kept until zero_grad",
    Releaser.COMM: "are held by sends and receives that are not over",
    Releaser.AUTOGRAD: "autograd keeps for a backward that does not use them",
}
"""Who could let go of what is idle at the peak."""


def drag_told(run: Run) -> tuple[str, ...]:
    """Two sentences for each rank of which a step was watched storage by storage."""
    told: list[str] = []
    for rank in run.ranks:
        peak = peak_of(rank)
        if peak is not None:
            told += [f"Rank {rank.number}: {text}" for text in _of_rank(peak)]
    return tuple(told)


def _of_rank(peak: PeakOfStep) -> Iterator[str]:
    step = peak.step
    lag, use, drag = step.lag_byte_seconds, step.use_byte_seconds, step.drag_byte_seconds
    whole = lag + use + drag
    if whole > 0:
        parts = [
            f"{name} {bytes_text(part)}·s ({part / whole:.0%})"
            for name, part in (("lag", lag), ("use", use), ("drag", drag))
        ]
        yield (
            f"the {step.storages} storages that the step before step {step.step} made and let go were alive for "
            f"{bytes_text(whole)}·s: "
            f"{', '.join(parts)}; lag is before the first use, drag after the last."
        )
    idle = sum(storage.row.bytes for storage in peak.idle)
    at = f" at {step.peak_at}" if step.peak_at else ""
    on = "" if step.device == "cpu" else f" on {step.device}"
    text = f"the peak of step {step.step}{on} was {bytes_text(step.peak_bytes)}{at}"
    text += f"; {bytes_text(idle)} of it were not used again"
    shares = {who: sum(storage.row.bytes for storage in peak.held_by(who)) for who in _WHO}
    named = [f"{bytes_text(size)} {_WHO[who]}" for who, size in shares.items() if size]
    unseen = step.unseen_bytes
    beside = (
        f" Beside it {bytes_text(unseen)} were alive that other threads or native code had made unseen."
        if unseen > _WORTH_A_WORD * step.peak_bytes
        else ""
    )
    yield f"{text}{': ' if named else ''}{', '.join(named)}.{beside}"
