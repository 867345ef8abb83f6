"""Sentences and tables of the growth breakdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from leakscope.findings.model import (
    NO_GROWTH,
    Findings,
    Line,
    LineKind,
    RankGrowth,
    RestedKind,
    by_kind,
    grown_of,
    merged_lines,
)
from leakscope.run.model import Run
from leakscope.units import bytes_text, one_of_each, plural

KINDS: dict[LineKind, str] = {
    LineKind.LEAKS: "leak",
    LineKind.LIBRARY: "held or closed by a library",
    LineKind.BOUND: "filling a bounded container",
    LineKind.GARBAGE: "awaiting gc",
    LineKind.SLOW: "growing, not judged a leak",
    LineKind.RESTED: "plateaued or transient",
    LineKind.FOLLOWS: "follows the input size",
    LineKind.APART: "suppressed or in the baseline",
    LineKind.OBJECTS: "Python objects (not tensors)",
    LineKind.GRAD_NODES: "autograd nodes",
    LineKind.BLOCKS: "device blocks without a tensor",
    LineKind.UNATTRIBUTED: "unattributed",
}
"""Label of each line of the growth breakdown."""
NO_HOLDER = (LineKind.UNATTRIBUTED, LineKind.GRAD_NODES, LineKind.BLOCKS)
"""Lines that are reported as a leak if no referrer is known."""
FREED = "freed since the first snapshot"
"""Label of a negative unattributed line: memory that existed at the first judged snapshot, such as the records of an
instrumented step or what imports leave, and was freed later.
"""
_LINES_SHOWN = 4
"""Lines that one sentence lists; heuristic: more make it unreadable."""
_SHARE = 0.01
"""Share of the total change below which a sentence omits a line; heuristic: smaller lines are noise."""


def line_text(line: Line) -> str:
    """`leak: losses in main()`, `optimizer state (plateaued)`."""
    if line.kind == LineKind.RESTED and line.rested not in (None, RestedKind.OTHER):
        return f"{line.rested} (plateaued)"
    if line.kind == LineKind.UNATTRIBUTED and line.bytes < 0:
        return FREED
    if line.kind in NO_HOLDER and line.fingerprint and not line.holder:
        return f"{KINDS[line.kind]}: leak, referrer unknown"
    return f"{KINDS[line.kind]}: {line.holder}" if line.holder else KINDS[line.kind]


def rose_text(grown: RankGrowth, rate: bool = True) -> str:
    """`allocated memory rose 4.61 MiB over 6 snapshots, steps 3 to 14 (429.10 KiB per step)`, by the counters."""
    what = "allocated memory" if grown.is_counted else "tensor memory"
    what += f" of rank {grown.rank}" if grown.among > 1 else ""
    over = f"over {plural(grown.snapshots, 'snapshot')}, steps" if grown.snapshots else "over steps"
    over = f"{over} {grown.from_step} to {grown.to_step}"
    if grown.to_end:
        over = f"from step {grown.from_step} to the end of the script's main code"
    if grown.bytes == 0:
        return f"{what} did not change {over}"
    if grown.until is not None:
        return f"{what} rose {bytes_text(grown.bytes)} until step {grown.until}, then levelled off ({over})"
    how = "rose" if grown.bytes > 0 else "fell"
    speed = f" ({bytes_text(abs(grown.per_step))} per step)" if rate and grown.per_step * grown.bytes > 0 else ""
    return f"{what} {how} {bytes_text(abs(grown.bytes))} {over}{speed}"


def projected_text(run: Run, per_step: float) -> str:
    """`238.42 MiB after 100,000 steps`: the growth of plain data, projected over the horizon."""
    return f"{bytes_text(per_step * run.horizon)} after {run.horizon:,} steps"


def lines_text(lines: Iterable[Line]) -> str:
    """`optimizer state (plateaued) 1.10 MiB, unattributed 96.00 KiB`: the largest lines of a growth breakdown."""
    ordered = sorted(lines, key=lambda line: -abs(line.bytes))
    moved = sum(abs(line.bytes) for line in ordered)
    return ", ".join(_moved_text(line) for line in ordered[:_LINES_SHOWN] if abs(line.bytes) >= _SHARE * moved)


def _moved_text(line: Line) -> str:
    """`optimizer state (plateaued) 1.10 MiB`; a line that shrank is described as freed memory."""
    words = line_text(line)
    return f"{words} {bytes_text(line.bytes)}" if line.bytes >= 0 else _kind_text(line.bytes, words)


def kinds_text(lines: Iterable[Line]) -> str:
    """`27.00 MiB leaked, 614.11 KiB autograd nodes`: the kinds with a notable change."""
    words = {**KINDS, LineKind.LEAKS: "leaked"}
    sizes = by_kind(lines)
    moved = max(sum(map(abs, sizes.values())), 1 / _SHARE)
    largest = sorted(sizes.items(), key=lambda item: -abs(item[1]))
    return ", ".join(_kind_text(size, words[kind]) for kind, size in largest if abs(size) >= _SHARE * moved)


def _kind_text(size: int, words: str) -> str:
    """Bytes and label of one kind. Memory that shrank existed before the first judged snapshot, for example after
    imports, so it is described as freed and not as negative growth.
    """
    if size >= 0:
        return f"{bytes_text(size)} {words}"
    freed = f"{bytes_text(-size)} of earlier memory freed"
    return freed if words in (KINDS[LineKind.UNATTRIBUTED], FREED) else f"{freed} ({words})"


def ledger_table(
    findings: Findings, groups: Sequence[Sequence[int]] = ()
) -> tuple[tuple[RankGrowth, int, tuple[tuple[int, float, str], ...]], ...]:
    """Growth breakdown of each rank whose memory grew.

    Args:
        findings: the judged run.
        groups: ranks with the same behaviour; only the one with the most growth of each group is listed.

    Returns:
        For each listed rank its growth, the number of similar ranks, and its lines, largest first, as (bytes, bytes
        per step, label).

    """
    found = (grown_of(number, findings.ledgers[number]) for number in findings.ledgers)
    grown = {each.rank: each for each in found if each is not None and each.bytes >= NO_GROWTH * each.steps}
    by_growth = [sorted(group, key=lambda rank: (-grown[rank].bytes if rank in grown else 0, rank)) for group in groups]
    shown = one_of_each(grown, by_growth)
    return tuple(
        (
            grown[rank],
            more,
            tuple((line.bytes, line.bytes / grown[rank].steps, line_text(line)) for line in _worth_a_line(grown[rank])),
        )
        for rank, more in shown.items()
    )


def _worth_a_line(grown: RankGrowth) -> tuple[Line, ...]:
    """All lines, with small lines summed by kind so that the total is exact."""
    least = max(_SHARE * sum(abs(line.bytes) for line in grown.lines), 1)
    large = [line for line in grown.lines if abs(line.bytes) >= least]
    small = [Line(line.kind, line.bytes) for line in grown.lines if abs(line.bytes) < least]
    return (*large, *merged_lines(small))
