"""Decides whether a repetition with edits is the same training without the leak."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest
from statistics import median

from leakscope.findings.model import Finding, Reason
from leakscope.fix.rerun import Evidence
from leakscope.run.model import HeapSnapshot, Rank
from leakscope.units import bytes_text
from leakscope.verdict import Verdict


class Aspect(StrEnum):
    """What differs from the run without edits."""

    EXIT = "exit"
    OUTPUT = "output"
    TRAINING = "training"
    LEAK_STAYS = "leak stays"
    NEW_LEAK = "new leak"
    UNJUDGED = "unjudged"
    PEAK = "peak"
    TIME = "time"


@dataclass(frozen=True)
class Refusal:
    """Why a repetition proves nothing."""

    aspect: Aspect
    text: str
    """As in a table: `loss differs at step 3`."""
    fingerprint: str = ""
    """The leak that stays."""


_PEAK_SHARE = 1.02
_PEAK_BYTES = 256 << 10
"""Share and bytes by which a peak may be higher. Heuristic: glibc's count differs between two equal runs."""
_TIME_SHARE = 1.05
_TIME_S = 0.0005
_NOISE = 3.0
"""Seconds and standard errors by which a median step may be longer beyond the share. Heuristic, for a busy machine."""
_STAYS = 0.2
"""Share of a leak's growth in tensors that may remain. Heuristic: one of a few containers that is left is more."""
_TOO_SHORT = (Reason.TOO_FEW_STEPS, Reason.TOO_FEW_SNAPSHOTS, Reason.UNBALANCED)
"""Why a run without a leak has no verdict although one with a leak has."""
_SMALL = 512
"""Bytes per step below which growth of tensors is not compared. Heuristic: a few scalars."""
_FEW = 8
"""Times that, below which a leak has few tensors."""


@dataclass
class Proof:
    """Compares repetitions with one without edits, and with a second one once a difference must be explained."""

    base: Evidence
    again: Evidence | None = None
    """A second repetition without edits."""

    @property
    def is_deterministic(self) -> bool:
        """Whether two repetitions without edits are the same, as far as is known."""
        return self.again is None or not (
            _training_differs(self.base, self.again) or _output_differs(self.base, self.again, {})
        )

    def needs_another(self, tried: Evidence) -> bool:
        """Whether a second repetition without edits must show if the script differs from itself."""
        return self.again is None and bool(
            not _exit_differs(self.base, tried)
            and (_training_differs(self.base, tried) or _output_differs(self.base, tried, {}))
        )

    def refusals(self, tried: Evidence, leaks: Sequence[Finding]) -> list[Refusal]:
        """Why a repetition does not prove that the edits fix these leaks and nothing else.

        Args:
            tried: The repetition.
            leaks: The leaks of the base that must be gone.

        Returns:
            The reasons; empty if it is proved.

        """
        differs = _exit_differs(self.base, tried) or self._training(tried) or self._output(tried)
        found = [differs] if differs is not None else []
        if differs is None or differs.aspect != Aspect.EXIT:
            found += self._leaks(tried, leaks)
        higher = None if found else _peak(self.base, tried)
        return found if higher is None else [higher]

    def _training(self, tried: Evidence) -> Refusal | None:
        differs = _training_differs(self.base, tried)
        if differs is None or self.again is None or not _training_differs(self.base, self.again):
            return differs
        return _distribution_differs(self.base, self.again, tried)

    def _output(self, tried: Evidence) -> Refusal | None:
        varies = {} if self.again is None else _varying(self.base, self.again)
        if varies is None:  # not even the number of lines is the same
            return None
        return _output_differs(self.base, tried, varies)

    def _leaks(self, tried: Evidence, leaks: Sequence[Finding]) -> Iterator[Refusal]:
        before = {leak.fingerprint for leak in self.base.findings.leaks}
        after = {leak.fingerprint: leak for leak in tried.findings.leaks}
        for leak in leaks:
            if leak.fingerprint in after:
                growth = bytes_text(after[leak.fingerprint].bytes_per_step)
                yield Refusal(Aspect.LEAK_STAYS, f"it still grows by {growth} per step", leak.fingerprint)
        new = [leak for fingerprint, leak in after.items() if fingerprint not in before]
        if new:
            text = f"`{new[0].subject or new[0].rule}` grows by {bytes_text(new[0].bytes_per_step)} per step instead"
            yield Refusal(Aspect.NEW_LEAK, text)
        elif tried.findings.verdict == Verdict.INCONCLUSIVE and not self._is_less(tried, leaks):
            yield Refusal(Aspect.UNJUDGED, "the run with the edit is inconclusive")
        elif all(leak.fingerprint not in after for leak in leaks):
            yield from self._growth(tried, leaks)

    def _is_less(self, tried: Evidence, leaks: Sequence[Finding]) -> bool:
        """Whether a run that is too short for a verdict lacks what the leaks take in the base.

        Tensors of the last snapshot are compared; growth of the counted memory where a leak has few tensors.
        """
        why = tried.findings.why
        if isinstance(why, str) or why.reason not in _TOO_SHORT:
            return False
        for rank, other in zip(self.base.run.ranks, tried.run.ranks, strict=False):
            before, after = _ends(rank), _ends(other)
            here = [leak for leak in leaks if rank.number in leak.ranks]
            if before is None or after is None:
                return False
            tensors = sum((leak.retained_bytes - leak.counted_bytes) / len(leak.ranks) for leak in here)
            growth = sum(leak.bytes_per_step / len(leak.ranks) for leak in here)
            if tensors >= _SMALL * _FEW:
                if after[1].explained_bytes > before[1].explained_bytes - tensors / 2:
                    return False
            elif _slope(after, "counted_bytes") > _slope(before, "counted_bytes") - growth / 2:
                return False
        return True

    def _growth(self, tried: Evidence, leaks: Sequence[Finding]) -> Iterator[Refusal]:
        """What the findings do not name must not have grown either: a part of the leak may be left in another place."""
        for rank in self.base.run.ranks:
            other = next((one for one in tried.run.ranks if one.number == rank.number), None)
            gone = sum(_tensors_per_step(leak, rank.number) for leak in leaks)
            before, after = _tensor_growth(rank), None if other is None else _tensor_growth(other)
            if before is None or after is None or gone < _SMALL:
                continue
            left = after - max(before - gone, 0.0)
            if left > max(_STAYS * gone, _SMALL):
                yield Refusal(Aspect.LEAK_STAYS, f"tensors still grow by {bytes_text(int(left))} per step")
                return

    def slower(self, tried: Sequence[Evidence]) -> Refusal | None:
        """Whether a step takes longer with edits.

        Args:
            tried: Repetitions with the same edits.

        """
        bases = [self.base] if self.again is None else [self.base, self.again]
        before, after = max(map(_step_s, bases)), min(map(_step_s, tried))
        if after <= _TIME_SHARE * before + _TIME_S + _NOISE * max(map(_noise_s, (*bases, *tried))):
            return None
        return Refusal(Aspect.TIME, f"a step takes {after / before:.2f} times as long")


def _exit_differs(base: Evidence, tried: Evidence) -> Refusal | None:
    if tried.status != base.status:
        return Refusal(Aspect.EXIT, tried.error or "exit status 0")
    for rank, other in zip_longest(base.run.ranks, tried.run.ranks):
        if rank is None or other is None:
            return Refusal(Aspect.EXIT, "the ranks are not the same")
        if other.ended.how != rank.ended.how:
            return Refusal(Aspect.EXIT, other.ended.error or f"rank {rank.number} {other.ended.how}")
        if len(other.steps) != len(rank.steps):
            return Refusal(Aspect.TRAINING, f"{len(other.steps)} steps in place of {len(rank.steps)}")
    return None


_COMPARED = {"losses": "loss differs", "gradients": "gradients differ", "parameters": "parameters differ"}


def memory_figures_differ(base: Evidence, tried: Evidence) -> bool:
    """Whether lines of output differ that were accepted because only figures of memory do."""
    pairs = (pair for lines in zip(base.output, tried.output, strict=False) for pair in zip(*lines, strict=False))
    return any(_plain(line) != _plain(other) and _is_of_memory(line, other) for line, other in pairs)


def _training_differs(base: Evidence, tried: Evidence) -> Refusal | None:
    """The first step whose losses, gradients or parameters differ."""
    for rank, other in zip(base.run.ranks, tried.run.ranks, strict=False):
        for row, others in zip_longest(rank.training, other.training):
            step = (row or others).step
            if row is None or others is None:
                return Refusal(Aspect.TRAINING, f"step {step} is missing")
            for name, differ in _COMPARED.items():
                if not _same(getattr(row, name), getattr(others, name)):
                    return Refusal(Aspect.TRAINING, f"{differ} at step {step}")
    return None


def _same(value: object, other: object) -> bool:
    """Whether two values are equal; NaN equals itself."""
    return repr(value) == repr(other)


def _distribution_differs(base: Evidence, again: Evidence, tried: Evidence) -> Refusal | None:
    """For a script that differs from itself: losses that no run without edits would have."""
    first, second, third = (_losses(each) for each in (base, again, tried))
    if not first:
        return None
    if not third or _ks_p(sorted(first + second), sorted(third)) < _UNLIKELY:
        return Refusal(Aspect.TRAINING, "losses differ in distribution")
    usual = median(abs(a - b) for a, b in zip(first, second, strict=False))
    now = median(abs(a - b) for a, b in zip(first, third, strict=False))
    if now > _TIMES_USUAL * usual:
        return Refusal(Aspect.TRAINING, "losses differ more than between two runs without the edit")
    return None


_UNLIKELY = 0.01
_TIMES_USUAL = 4.0
"""Times that the losses may differ more than between two runs without edits. Heuristic."""


def _losses(evidence: Evidence) -> list[float]:
    return [loss for rank in evidence.run.ranks for row in rank.training for loss in row.losses if math.isfinite(loss)]


def _ks_p(first: Sequence[float], second: Sequence[float]) -> float:
    """Asymptotic p-value of the two-sample Kolmogorov-Smirnov test (Smirnov 1939) of two sorted samples."""
    i = j = 0
    largest = 0.0
    while i < len(first) and j < len(second):
        value = min(first[i], second[j])
        while i < len(first) and first[i] == value:
            i += 1
        while j < len(second) and second[j] == value:
            j += 1
        largest = max(largest, abs(i / len(first) - j / len(second)))
    size = math.sqrt(len(first) * len(second) / (len(first) + len(second)))
    scaled = (size + 0.12 + 0.11 / size) * largest
    if scaled < 0.3:  # noqa: PLR2004 - the series does not converge there; its value is 1
        return 1.0
    terms = ((1.0 if k % 2 else -1.0) * math.exp(-2 * (k * scaled) ** 2) for k in range(1, 20))
    return min(2 * sum(terms), 1.0)


_TIMES = re.compile(
    r"""(?xi)
    \d+(?:\.\d+)?(?:e-?\d+)?\s?(?:it|its|step|steps|sample|samples|tok|token|tokens|img|imgs|images|batch|batches|ex)\s?/\s?(?:s|sec|second)\b
    | \d+(?:\.\d+)?(?:e-?\d+)?\s?(?:s|sec|secs|seconds?|ms|msec|us|µs|ns|min|mins|minutes?|h|hours?)(?:\s?/\s?\w+)?\b
    | \b(?:time|elapsed|took|eta|duration|seconds|secs|throughput|speed|wall)\b\s?[=:]?\s?\d+(?:\.\d+)?(?:e-?\d+)?
    | \b\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?)?
    | \b\d{1,2}:\d{2}(?::\d{2})?(?:[.,]\d+)?\b
    | 0x[0-9a-f]+ | \bpid\s?[=:]?\s?\d+
    """
)
"""Times, dates, speeds, addresses and process ids in a line of output."""
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


def _plain(line: str) -> str:
    return _TIMES.sub("<time>", line)


_SIZE = re.compile(r"-?\d+(?:\.\d+)?\s?(?:[KMGT]i?B|bytes|B)\b", re.IGNORECASE)
_OF_MEMORY = re.compile(
    r"(?i)mem|alloc|reserved|alive|live |leak|rss|\bgc\b|collect|garbage|freed|objects|storages|tensors|refs|cache|peak"
)
"""Words of a line of output whose numbers may be of the memory that an edit frees."""


def _is_of_memory(line: str, other: str) -> bool:
    """Whether two lines differ only in figures of memory, which an edit is to change."""
    first, second = _SIZE.sub("<size>", _plain(line)), _SIZE.sub("<size>", _plain(other))
    if first == second:
        return True
    return bool(_OF_MEMORY.search(line)) and _NUMBER.sub("0", first) == _NUMBER.sub("0", second)


def _output_differs(base: Evidence, tried: Evidence, varies: dict[tuple[int, int], set[int]]) -> Refusal | None:
    """The first line on stdout that differs, apart from times and from numbers that differ in any case.

    Where the training itself was compared, figures of memory may differ too.
    """
    is_trained = any(row.tensors for rank in base.run.ranks for row in rank.training)
    for rank, (lines, others) in enumerate(zip(base.output, tried.output, strict=False)):
        for number, (line, other) in enumerate(zip_longest(lines, others)):
            if line is None or other is None:
                return Refusal(Aspect.OUTPUT, f"stdout has {len(others)} lines in place of {len(lines)}")
            if line == other or _plain(line) == _plain(other):
                continue
            ignored = varies.get((rank, number))
            if ignored is not None and _without(line, ignored) == _without(other, ignored):
                continue
            if not (is_trained and _is_of_memory(line, other)):
                return Refusal(Aspect.OUTPUT, f"stdout differs at line {number + 1}")
    return None


def _without(line: str, ignored: set[int]) -> str:
    """A line without some of its numbers."""
    place = -1

    def shown(match: re.Match[str]) -> str:
        nonlocal place
        place += 1
        return "<varies>" if place in ignored else match[0]

    return _NUMBER.sub(shown, _plain(line))


def _varying(base: Evidence, again: Evidence) -> dict[tuple[int, int], set[int]] | None:
    """(rank, line), mapped to the positions of numbers that differ between two runs without edits; None if more than
    numbers differ.
    """
    varies: dict[tuple[int, int], set[int]] = {}
    for rank, (lines, others) in enumerate(zip(base.output, again.output, strict=False)):
        if len(lines) != len(others):
            return None
        for number, (line, other) in enumerate(zip(lines, others, strict=True)):
            first, second = _plain(line), _plain(other)
            if first == second:
                continue
            if _NUMBER.sub("0", first) != _NUMBER.sub("0", second):
                return None
            pairs = zip(_NUMBER.findall(first), _NUMBER.findall(second), strict=True)
            varies[rank, number] = {place for place, (one, two) in enumerate(pairs) if one != two}
    return varies


def _peak(base: Evidence, tried: Evidence) -> Refusal | None:
    for rank, other in zip(base.run.ranks, tried.run.ranks, strict=False):
        before, after = _peak_bytes(rank), _peak_bytes(other)
        if after > max(_PEAK_SHARE * before, before + _PEAK_BYTES):
            return Refusal(Aspect.PEAK, f"the peak is {bytes_text(after)} in place of {bytes_text(before)}")
    return None


def _peak_bytes(rank: Rank) -> int:
    return max((step.peak_bytes or step.counted_bytes or 0 for step in rank.steps), default=0)


def _times_s(evidence: Evidence) -> list[float]:
    """Seconds of each step after warm-up."""
    return [step.seconds for rank in evidence.run.ranks for step in rank.steps[evidence.run.warmup :]] or [0.0]


def _step_s(evidence: Evidence) -> float:
    return float(median(_times_s(evidence)))


def _noise_s(evidence: Evidence) -> float:
    """Standard error of the median step time, from the median absolute deviation of a normal distribution."""
    times, middle = _times_s(evidence), _step_s(evidence)
    return 1.25 * 1.48 * float(median(abs(time - middle) for time in times)) / math.sqrt(len(times))


def _tensor_growth(rank: Rank) -> float | None:
    """Bytes per step by which the tensors of a rank grow between its snapshots."""
    ends = _ends(rank)
    return None if ends is None else _slope(ends, "explained_bytes")


def _slope(ends: tuple[HeapSnapshot, HeapSnapshot], name: str) -> float:
    first, last = ends
    return float((getattr(last, name) or 0) - (getattr(first, name) or 0)) / (last.step - first.step)


def _ends(rank: Rank) -> tuple[HeapSnapshot, HeapSnapshot] | None:
    """The first and the last snapshot at the end of a step, the first of many left out: memory still settles there."""
    snapshots = [one for one in rank.heap_snapshots if one.step > 0 and one.occasion in ("step", "last")]
    if len(snapshots) < 2:  # noqa: PLR2004
        return None
    return snapshots[min(1, len(snapshots) - 2)], snapshots[-1]


def _tensors_per_step(leak: Finding, rank: int) -> float:
    """Growth of a leak on one rank, without what the allocator counts beside tensors."""
    if rank not in leak.ranks or not leak.retained_bytes:
        return 0.0
    share = 1 - min(leak.counted_bytes / leak.retained_bytes, 1.0)
    return share * leak.bytes_per_step / len(leak.ranks)
