"""How do all formats say the same thing in the same words?"""

from __future__ import annotations

import signal
import unicodedata
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from leakscope.findings.growth import LEAST_TOTAL_FACTOR
from leakscope.findings.model import Cut, Finding, Findings
from leakscope.findings.pairs import first_to_blame, last_operation
from leakscope.graph.model import HeapGraph
from leakscope.record import Rank, Run, Step
from leakscope.report.marks import closes_cycle
from leakscope.units import bytes_text

T = TypeVar("T")

UNPRINTABLE = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode categories that could move a cursor, reorder a line or break XML."""


def cleaned(value: T) -> T:
    """The same data with every character that no terminal or XML file should see written as an escape.

    Line feeds and tabs stay. What may be long and is not printed is passed on as it is: heap graphs, steps (which
    hold no text), and the lines of further files (`Rank.extras`), which their reader cleans.
    """
    return _cleaned(value)  # type: ignore[no-any-return]


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return value if value.isascii() and value.isprintable() else "".join(map(_character, value))
    if isinstance(value, (tuple, list)):
        return type(value)(_cleaned(item) for item in value)
    if isinstance(value, Mapping):
        return {_cleaned(key): _cleaned(item) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, (HeapGraph, Step, type)):
        told = [f.name for f in fields(value) if f.name != "extras"]
        return replace(value, **{name: _cleaned(getattr(value, name)) for name in told})
    return value


def _character(character: str) -> str:
    if character in "\n\t" or unicodedata.category(character) not in UNPRINTABLE and character not in "\ufffe\uffff":
        return character
    return character.encode("unicode_escape").decode("ascii")


def one_line(text: str) -> str:
    return " ".join(text.split())


def plural(count: int, noun: str) -> str:
    """`1 rank`, `2 ranks`, `3 storages`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def listed_numbers(numbers: tuple[int, ...]) -> str:
    """`0, 1, 2, 7` as `0-2, 7`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" if b > a + 1 else f"{a}, {b}" for a, b in runs)


def leaks(findings: Findings) -> tuple[Finding, ...]:
    return tuple(f for f in findings.findings if f.origin != "library" and f.severity == "leak")


def notes(findings: Findings) -> tuple[Finding, ...]:
    return tuple(f for f in findings.findings if f.origin != "library" and f.severity != "leak")


def library(findings: Findings) -> tuple[Finding, ...]:
    return tuple(f for f in findings.findings if f.origin == "library")


def steps_of(run: Run) -> int:
    """Steps of the rank that took most."""
    return max((max(rank.ended.steps, len(rank.steps)) for rank in run.ranks), default=0)


def held_text(finding: Finding) -> str:
    """`960.00 KiB held in 5 storages at the last look, growing 192.00 KiB a step`."""
    if holds_nothing(finding):
        return f"no memory held, {plural(finding.count, 'time')} seen" if finding.count else "no memory held"
    storages = f" in {plural(finding.count, 'storage')}" if finding.count else ""
    growth = f", growing {bytes_text(finding.bytes_per_step)} a step" if finding.bytes_per_step else ""
    return f"{bytes_text(finding.retained_bytes)} held{storages} at the last look{growth}"


def holds_nothing(finding: Finding) -> bool:
    """Whether it is about what happened and keeps no memory: who would free what is no question then."""
    return not finding.retained_bytes and not finding.trace and finding.cut is None


def seen_text(finding: Finding) -> str:
    """`rank 0, 1; steps 3 to 12`."""
    if not finding.sightings:
        return "at no judged look"
    many = "ranks" if len(finding.ranks) > 1 else "rank"
    first, last = finding.first_step, finding.last_step
    steps = f"step {first}" if first == last else f"steps {first} to {last}"
    return f"{many} {listed_numbers(finding.ranks)}; {steps}"


def freed_text(finding: Finding) -> str:
    """Who gives the memory back, as a sentence without its full stop."""
    if finding.freed_by == "gc":
        if finding.collections:
            return f"gc, late: it takes {plural(finding.collections, 'full collection')}"
        return "gc, late"
    if finding.freed_by == "never":
        return "never: it holds itself through C++ references that gc cannot see"
    if not finding.trace or finding.rule == "native-hold":
        return "whoever holds it in native code: gc cannot help"
    return "the program, once it lets go: gc cannot help, a live root holds it"


def proved_text(finding: Finding) -> str:
    """`proved in a forked process: 786432 bytes went free`, or why nobody tried; "" where nothing is known."""
    cut = finding.cut
    if cut is None:
        return ""
    if cut.proved_bytes is not None:
        return f"proved: {bytes_text(cut.proved_bytes)} went free when a forked copy of the process made the cut"
    return f"not proved: {cut.unproved}" if cut.unproved else ""


def status_text(status: int) -> str:
    """`status 3`, or the signal for 128+n and -n: `SIGKILL`."""
    number = -status if status < 0 else status - 128
    if number > 0:
        try:
            return signal.Signals(number).name
        except ValueError:
            pass
    return f"status {status}"


def ended_text(rank: Rank) -> str:
    """`killed by SIGKILL after 5 steps`."""
    ended = rank.ended
    after = "before its first step" if ended.steps == 0 else f"after {plural(ended.steps, 'step')}"
    if _hung(rank):
        return f"hung {after}"
    words = {
        "finished": "finished",
        "stopped": "stopped by leakscope",
        "raised": "raised",
        "exited": f"exited with {status_text(ended.status)}",
        "killed": f"killed by {status_text(ended.status)}",
        "lost": "lost without a word",
    }
    if ended.how == "finished" and ended.steps == 0:
        return "finished, no step seen"
    return f"{words.get(ended.how, ended.how)} {after}"


_HUNG = "hung: "
"""How the error of a rank begins that `--hang-timeout` ended; it raised nothing."""


def _hung(rank: Rank) -> bool:
    return rank.ended.status == 124 and rank.ended.error.startswith(_HUNG)


def error_text(ended: str, error: str) -> str:
    """An error without what `ended` (an `ended_text`) says already; "" where that is all of it."""
    return "" if ended.startswith(error) else error.removeprefix(_HUNG if ended.startswith("hung ") else "")


def ended_badly(rank: Rank) -> bool:
    return rank.ended.how in ("raised", "killed", "lost") or (rank.ended.how == "exited" and rank.ended.status != 0)


def was_text(rank: Rank) -> str:
    """`ended_text` as it follows `it`: `was killed by SIGKILL after 5 steps`."""
    return f"{'was ' if rank.ended.how in ('killed', 'lost', 'stopped') else ''}{ended_text(rank)}"


_GAVE_UP = (124, 130)
"""Statuses of ranks that `--hang-timeout` or Ctrl-C ended: no rank failed before the others."""


def first_to_fail(run: Run) -> Rank | None:
    """The rank to look at first: one killed from outside, else the failing one that got least far.

    A rank that died of SIGTERM is taken for one that the launcher ended because a peer had failed, and one whose last
    operation on the wire raised for one whose peer had gone away. Where all were ended because nothing moved, it is
    the one that the others waited for.
    """
    failed = [rank for rank in run.ranks if ended_badly(rank)]
    if failed and all(rank.ended.status in _GAVE_UP for rank in failed):
        blamed = first_to_blame(run)
        failed = [rank for rank in failed if rank.number == blamed] or failed
    return min(failed, key=_suspicion, default=None)


def _suspicion(rank: Rank) -> tuple[int, int, int]:
    terminated = rank.ended.how == "killed" and status_text(rank.ended.status) == "SIGTERM"
    lost_its_peer = rank.ended.how == "raised" and (last_operation(rank) or {}).get("state") == "failed"
    order = 3 if terminated else 2 if lost_its_peer else {"killed": 0, "raised": 1, "exited": 1}.get(rank.ended.how, 4)
    return order, rank.ended.steps, rank.number


def cycle_text(finding: Finding) -> str:
    """`function extract, closure extract -> cell, contents -> function extract`; "" where there is no cycle, or the
    trace has gone round it already.
    """
    if not finding.cycle or any(closes_cycle(finding, index) for index in range(len(finding.trace))):
        return ""
    hops = " -> ".join(f"{one_line(holder)}, {one_line(reference)}" for holder, reference, _ in finding.cycle)
    return f"{hops} -> {one_line(finding.cycle[-1][2])}"


def next_text(run: Run, findings: Findings) -> str:
    """What the reader should do now."""
    told = leaks(findings)
    culprit = first_to_fail(run)
    first = ""
    if culprit is not None:
        error = error_text(ended_text(culprit), culprit.ended.error)
        error = f"{': ' if _hung(culprit) else ', '}{error}" if error else ""
        log = f" (its log: {culprit.ended.log})" if culprit.ended.log else ""
        waited = "the others waited for it; " if culprit.ended.status in _GAVE_UP and first_to_blame(run) == culprit.number else ""
        first = f"Look at rank {culprit.number} first: {waited}it {was_text(culprit)}{error}{log}. "
    if told:
        return first + _cut_first(told)
    if first:
        return first + "What is told below was recorded before that."
    if steps_of(run) == 0:
        return (
            "No step was seen, so nothing could be judged. leakscope counts a step each time an optimizer steps; "
            "where there is none, mark the steps with leakscope.Profiler."
        )
    if findings.verdict == "inconclusive":
        return "Run it for longer (at least 10 steps), or mend what kept the rules from judging, listed below."
    growing = [f for f in notes(findings) if f.bytes_per_step > 0]
    if growing:
        small = not any(_is_large(f, run.min_bytes) for f in growing)
        more = ", too little for a verdict (--min-bytes), as long as the run goes on" if small else ""
        return f"Look at what is listed below: it grows by {bytes_text(sum(f.bytes_per_step for f in growing))} a step{more}."
    extra = notes(findings) or library(findings)
    return "Nothing to mend." + (" What is listed below is worth a glance." if extra else "")


def _is_large(finding: Finding, min_bytes: int) -> bool:
    """Whether it is a note for another reason than its size."""
    return finding.bytes_per_step >= min_bytes and finding.retained_bytes >= min_bytes * LEAST_TOTAL_FACTOR


def cut_name(cut: Cut) -> str:
    """The reference to cut, as the user would write it where that is known."""
    return one_line(cut.written or cut.reference)


def also_text(cut: Cut) -> str:
    """` together with log.last in main()`: what else must be cut; "" where one cut is enough."""
    return f" together with {' and '.join(f'`{one_line(reference)}`' for reference in cut.also)}" if cut.also else ""


def _cut_first(told: tuple[Finding, ...]) -> str:
    finding = told[0]
    others = ("", ", then the other leak", f", then the other {len(told) - 1} leaks")[min(len(told), 3) - 1]
    if finding.cut is None:
        return f"Read the first leak below{others}, and run the same command again."
    where = f" at {finding.cut.where}" if finding.cut.where else ""
    freed = bytes_text(finding.cut.frees_bytes)
    return f"Cut `{cut_name(finding.cut)}`{where}{also_text(finding.cut)}: {freed} would be freed{others}. Then run the same command again."
