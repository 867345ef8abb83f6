"""Sentences about where the growth went."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from leakscope.findings.ledger import (
    NO_GROWTH,
    Grown,
    Line,
    LineKind,
    RestedKind,
    by_kind,
    grown_of,
    merged_lines,
)
from leakscope.findings.model import Findings
from leakscope.record.model import Run
from leakscope.report.wording.numbers import one_of_each, plural
from leakscope.units import bytes_text

KINDS: dict[LineKind, str] = {
    LineKind.LEAKS: "leak",
    LineKind.LIBRARY: "closed or held by a library",
    LineKind.BOUND: "filling a declared bound",
    LineKind.GARBAGE: "waiting for gc",
    LineKind.SLOW: "grows, not judged a leak",
    LineKind.RESTED: "came to rest, or comes and goes",
    LineKind.FOLLOWS: "follows the size of the input",
    LineKind.APART: "suppressed or known before",
    LineKind.OBJECTS: "Python objects that are no tensors",
    LineKind.GRAD_NODES: "grad nodes of graphs",
    LineKind.BLOCKS: "device blocks that are no tensor",
    LineKind.UNATTRIBUTED: "unattributed",
}
"""What each line of the ledger is."""
NO_HOLDER = (LineKind.UNATTRIBUTED, LineKind.GRAD_NODES, LineKind.BLOCKS)
"""Lines that are a leak where nothing else is known of one."""
FREED = "from before, freed since"
"""What is unattributed where it is less than nothing: what was there at the first judged snapshot, as the records of a
watched step or what imports leave, and is gone.
"""
_SAID = 4
"""Lines that one sentence lists; chosen."""
_SHARE = 0.01
"""Share of all that moved below which a line is not listed in a sentence; chosen."""


def line_text(line: Line) -> str:
    """`leak: losses in main()`, `optimizer state that came to rest`."""
    if line.kind == LineKind.RESTED and line.rested not in (None, RestedKind.OTHER):
        return f"{line.rested} that came to rest"
    if line.kind == LineKind.UNATTRIBUTED and line.bytes < 0:
        return FREED
    if line.kind in NO_HOLDER and line.fingerprint and not line.holder:
        return f"{KINDS[line.kind]}: a leak whose holder is not known"
    return f"{KINDS[line.kind]}: {line.holder}" if line.holder else KINDS[line.kind]


def rose_text(grown: Grown, rate: bool = True) -> str:
    """`counted memory rose 4.61 MiB over 6 looks, steps 3 to 14 (429.10 KiB a step)`; the rate is the counters'."""
    what = "counted memory" if grown.is_counted else "the memory of tensors"
    what += f" of rank {grown.rank}" if grown.among > 1 else ""
    over = f"over {plural(grown.looks, 'look')}, steps" if grown.looks else "over steps"
    over = f"{over} {grown.from_step} to {grown.to_step}"
    if grown.to_end:
        over = f"from step {grown.from_step} to the end of the script's main code"
    if grown.bytes == 0:
        return f"{what} is what it was {over}"
    if grown.until is not None:
        return f"{what} rose {bytes_text(grown.bytes)} by step {grown.until} and no more {over}"
    how = "rose" if grown.bytes > 0 else "fell"
    speed = f" ({bytes_text(abs(grown.per_step))} a step)" if rate and grown.per_step * grown.bytes > 0 else ""
    return f"{what} {how} {bytes_text(abs(grown.bytes))} {over}{speed}"


def projected_text(run: Run, per_step: float) -> str:
    """`238.42 MiB after 100,000 steps`: what growth of plain data is weighed by."""
    return f"{bytes_text(per_step * run.horizon)} after {run.horizon:,} steps"


def lines_text(lines: Iterable[Line]) -> str:
    """`optimizer state that came to rest 1.10 MiB, unattributed 96.00 KiB`: the largest lines of a growth."""
    told = sorted(lines, key=lambda line: -abs(line.bytes))
    moved = sum(abs(line.bytes) for line in told)
    return ", ".join(_moved_text(line) for line in told[:_SAID] if abs(line.bytes) >= _SHARE * moved)


def _moved_text(line: Line) -> str:
    """`optimizer state that came to rest 1.10 MiB`; of what shrank, that it was freed."""
    words = line_text(line)
    return f"{words} {bytes_text(line.bytes)}" if line.bytes >= 0 else _kind_text(line.bytes, words)


def kinds_text(lines: Iterable[Line]) -> str:
    """`27.00 MiB leaked, 614.11 KiB grad nodes of graphs`: the kinds that moved, but for the small ones."""
    words = {**KINDS, LineKind.LEAKS: "leaked"}
    sizes = by_kind(lines)
    moved = max(sum(map(abs, sizes.values())), 1 / _SHARE)
    largest = sorted(sizes.items(), key=lambda item: -abs(item[1]))
    return ", ".join(_kind_text(size, words[kind]) for kind, size in largest if abs(size) >= _SHARE * moved)


def _kind_text(size: int, words: str) -> str:
    """What has become less was there before the first judged look, as what a script's imports leave is, and is told so:
    it is no growth of a negative size.
    """
    if size >= 0:
        return f"{bytes_text(size)} {words}"
    freed = f"{bytes_text(-size)} from before was freed"
    return freed if words in (KINDS[LineKind.UNATTRIBUTED], FREED) else f"{freed} ({words})"


def ledger_table(
    findings: Findings, groups: Sequence[Sequence[int]] = ()
) -> tuple[tuple[Grown, int, tuple[tuple[int, float, str], ...]], ...]:
    """(what grew, of how many more ranks, its lines) for each rank whose memory grew, alike for text and page; of each
    line (bytes, bytes a step, what it is), the largest first.

    `groups`: ranks that did the same; of each the one that grew most is told.
    """
    found = (grown_of(number, findings.ledgers[number]) for number in findings.ledgers)
    grown = {each.rank: each for each in found if each is not None and each.bytes >= NO_GROWTH * each.steps}
    by_growth = [sorted(group, key=lambda rank: (-grown[rank].bytes if rank in grown else 0, rank)) for group in groups]
    told = one_of_each(grown, by_growth)
    return tuple(
        (
            grown[rank],
            more,
            tuple((line.bytes, line.bytes / grown[rank].steps, line_text(line)) for line in _worth_a_line(grown[rank])),
        )
        for rank, more in told.items()
    )


def _worth_a_line(grown: Grown) -> tuple[Line, ...]:
    """All lines, those too small to be told as one each of their kind, so that they add up."""
    least = max(_SHARE * sum(abs(line.bytes) for line in grown.lines), 1)
    large = [line for line in grown.lines if abs(line.bytes) >= least]
    small = [Line(line.kind, line.bytes) for line in grown.lines if abs(line.bytes) < least]
    return (*large, *merged_lines(small))
