"""Growth of DataLoader workers, and objects of the parent that forked workers copy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from leakscope.findings.facts import Facts, FreedBy, HopStatus, RuleName, Severity
from leakscope.findings.model import Cut, CutReference, Finding, Hop, Life, Sighting, lives_of, named
from leakscope.findings.naming import fingerprint
from leakscope.graph.model import ObjectKind
from leakscope.run.model import Rank
from leakscope.run.rows_steps import GrowingInWorker, SharedObjects, WorkerLook, WorkersRead, WorkersStarted

WORKER_COPIES = RuleName.WORKER_COPIES
_LEAST = 64
"""Times `--min-bytes`, chosen, that all workers together have to have copied: 4 MiB unless it is set."""
_AT_REST = 0.02
"""Share of what was copied, chosen, below which what came after it is none."""


@dataclass(frozen=True)
class CopiesFacts(Facts):
    """A container of the parent's, its objects copied by the workers."""

    name: str
    """`self.samples of Images`."""
    type: str
    item: str
    items: int
    bytes: int
    """Of the pages that its objects lie on, in the parent."""
    where: str
    dataset: str
    workers: int
    copied: int
    """Of those pages, what all workers together have a copy of, as the kernel has it."""
    until: int | None
    """The step after which next to nothing was copied; None where it went on to the last reading."""
    gives_back: bool
    """Workers end with each epoch, and copy it again in the next one."""


def copies_findings(rank: Rank, min_bytes: int) -> list[Finding]:
    """One for each container that the workers of a loader have copied."""
    found = []
    for lives in lives_of(rank).values():
        shared = {named(each): each for life in lives for each in life.started.shared}
        for name, told in shared.items():
            life, sizes = max(((life, _copied(life, name)) for life in lives), key=lambda each: max(each[1], default=0))
            if max(sizes, default=0) >= _LEAST * min_bytes:
                found.append(_finding(rank.number, told, life, sizes, len(lives)))
    return found


def _copied(life: Life, name: str) -> list[int]:
    """Bytes of the container that all workers together have copied, at each reading."""
    place = next((k for k, each in enumerate(life.started.shared) if named(each) == name), None)
    return [] if place is None else [_of_reading(read, place) for read in life.reads]


def _of_reading(read: WorkersRead, place: int) -> int:
    return sum(memory.copied[place] for memory in read.workers if place < len(memory.copied))


def _finding(rank: int, shared: SharedObjects, life: Life, sizes: Sequence[int], lives: int) -> Finding:
    most = max(sizes)
    rest = next(k for k, size in enumerate(sizes) if size >= (1 - _AT_REST) * most)
    facts = CopiesFacts(
        name=named(shared),
        type=shared.type,
        item=shared.item,
        items=shared.items,
        bytes=shared.bytes,
        where=shared.where,
        dataset=life.started.dataset,
        workers=life.started.workers,
        copied=most,
        until=life.reads[rest].step if rest < len(sizes) - 1 else None,
        gives_back=lives > 1,
    )
    steps = [read.step for read in life.reads]
    return Finding(
        rule=WORKER_COPIES,
        facts=facts,
        fingerprint=fingerprint((WORKER_COPIES, shared.owner, shared.written)),
        severity=Severity.AVOIDABLE,
        freed_by=FreedBy.PROGRAM,
        retained_bytes=most,
        bytes_per_step=0.0,
        trace=(),
        cut=None,
        sightings=tuple(Sighting(rank, s, b) for s, b in dict(zip(steps, sizes, strict=True)).items() if b),
        subject=facts.name,
        noun="object",
    )


WORKER_GROWTH = RuleName.WORKER_GROWTH
_LOOKS = 3
"""Looks at each of which something must have grown to be told, as for the rank itself."""
_LOOKS_OF_EMPTIED = 6
"""Looks at each of which it must have had more where it has lost items in between, chosen: the number of items of what
is emptied now and then rises over three looks by chance one time in six, over six one time in 720.
"""
_NOTE = 1 / 16
"""Share of the growth that makes a leak from which on one is worth a note, chosen."""
_THIRDS = 3
"""Parts of a life, chosen: a container has to have gained in each, and what has filled up did not in the last."""
_PARTS = 4
"""Parts of a life, chosen: memory without a holder has to have grown in each but the first."""
_STEPS = 16
"""Steps of one life, chosen, below which memory without a holder is not told: workers come to rest first."""
_EXPLAINED = 0.5
"""Share of a growth, chosen, that has to be found in containers for the rest of it not to be told by itself."""


@dataclass(frozen=True)
class WorkerGrowthFacts(Facts):
    """What grows in workers."""

    dataset: str
    workers: int
    """That grow so."""
    name: str = ""
    """`self.cache of Images`; "" where no container was found."""
    type: str = ""
    item: str = ""
    items: int = 0
    """That one worker has put into it at most."""
    items_per_batch: float = 0.0
    own_bytes: int | None = None
    """By how much the workers' own memory grew, as the kernel has it; None where it was read but once."""
    own_steps: tuple[int, int] = (0, 0)
    """The steps between which that was read."""
    gives_back: bool = False
    """Workers end with each epoch."""


@dataclass(frozen=True)
class _Line:
    """One container in one worker, look by look."""

    batches: tuple[int, ...]
    rows: tuple[GrowingInWorker, ...]

    @property
    def goes_on(self) -> bool:
        """It gained in each part of its life, seen at enough looks."""
        begin, length = self.batches[0], self.batches[-1] - self.batches[0]
        ends = (begin + length * part / _THIRDS for part in range(_THIRDS + 1))
        marks = [next(k for k, batches in enumerate(self.batches) if batches >= end) for end in ends]
        items = [self.rows[mark].items for mark in marks]
        if len(self.rows) < (_LOOKS_OF_EMPTIED if self._kept < 1 else _LOOKS):
            return False
        if any(after.items < before.items for before, after in pairwise(self.rows)):
            return False  # it has been emptied: what it has put in is more than what it keeps
        return all(after > before for before, after in pairwise(items))

    @property
    def _kept(self) -> float:
        """The share of the items that it has put in since the first look and has not taken out again."""
        put_in = self.rows[-1].gained - self.rows[0].gained
        return max(self.rows[-1].items - self.rows[0].items, 0) / put_in if put_in > 0 else 1.0

    @property
    def bytes(self) -> int:
        """Of what it keeps of all that it has put in."""
        return round(self.rows[-1].bytes * min(self._kept, 1.0))

    @property
    def bytes_per_batch(self) -> float:
        """What it gains with each batch of the worker's."""
        return (self.rows[-1].bytes - self.rows[0].bytes) * min(self._kept, 1.0) / self._batches

    @property
    def items_per_batch(self) -> float:
        """The items of that."""
        return (self.rows[-1].items - self.rows[0].items) / self._batches

    @property
    def _batches(self) -> int:
        return max(self.batches[-1] - self.batches[0], 1)


def worker_growth_findings(rank: Rank, min_bytes: int) -> list[Finding]:
    """One for each container that workers of a loader keep gaining, and one for memory that none of them explains."""
    looks = [row for row in rank.loader_workers if isinstance(row, WorkerLook)]
    found = []
    for loader, lives in lives_of(rank).items():
        again = sum(isinstance(row, WorkersStarted) and row.loader == loader for row in rank.loader_workers) > 1
        of_loader = [look for look in looks if look.loader == loader]
        life = max(lives, key=lambda life: sum(_bytes(look) for look in _last_of_each(of_loader, life)))
        of_life = [look for look in of_loader if look.life == life.started.life]
        named = [
            finding
            for name in dict.fromkeys((row.owner, row.written) for look in of_life for row in look.grown)
            if (finding := _named(rank.number, life, _lines(of_life, name), name, min_bytes, again)) is not None
        ]
        found += named
        longest = max(lives, key=lambda life: life.reads[-1].step - life.reads[0].step)
        unnamed = _unnamed(rank.number, longest, sum(f.retained_bytes for f in named), min_bytes, again)
        found += [] if unnamed is None else [unnamed]
    return found


def _last_of_each(looks: Iterable[WorkerLook], life: Life) -> Iterable[WorkerLook]:
    return {look.worker: look for look in looks if look.life == life.started.life}.values()


def _bytes(look: WorkerLook) -> int:
    return sum(row.bytes for row in look.grown)


def _lines(looks: Sequence[WorkerLook], name: tuple[str, str]) -> list[_Line]:
    """The container in each worker in which it goes on growing."""
    seen: dict[int, list[tuple[int, GrowingInWorker]]] = {}
    for look in looks:
        for row in look.grown:
            if (row.owner, row.written) == name:
                seen.setdefault(look.worker, []).append((look.batches, row))
    lines = (_Line(*map(tuple, zip(*each, strict=True))) for each in seen.values())
    last = {look.worker: look.batches for look in looks}
    of_workers = zip(seen, lines, strict=True)
    return [line for worker, line in of_workers if line.goes_on and line.batches[-1] == last[worker]]


def _named(
    rank: int, life: Life, lines: Sequence[_Line], name: tuple[str, str], min_bytes: int, again: bool
) -> Finding | None:
    """The container as a finding; None where it gains too little, or in no worker to the end."""
    if not lines:
        return None
    # a step takes one batch, of one of the workers
    per_step = sum(line.bytes_per_batch for line in lines) / life.started.workers
    if per_step < _NOTE * min_bytes:
        return None
    row = max((line.rows[-1] for line in lines), key=lambda row: row.bytes)
    size = sum(line.bytes for line in lines)
    owner, written = name
    subject = f"{written} of {owner}" if written.startswith("self.") else written
    facts = WorkerGrowthFacts(
        dataset=life.started.dataset,
        workers=len(lines),
        name=subject,
        type=row.type,
        item=row.item,
        items=max(line.rows[-1].gained for line in lines),
        items_per_batch=sum(line.items_per_batch for line in lines) / len(lines),
        own_bytes=_own(life) if len(life.reads) > 1 else None,
        own_steps=_steps(life),
        gives_back=again,
    )
    trace = _trace(row)
    return Finding(
        rule=WORKER_GROWTH,
        facts=facts,
        fingerprint=fingerprint((WORKER_GROWTH, owner, written)),
        severity=_severity(per_step, min_bytes, again),
        freed_by=FreedBy.PROGRAM,
        retained_bytes=size,
        bytes_per_step=per_step,
        trace=trace,
        cut=Cut((CutReference(trace[0].reference, row.where, subject, trace=0),), size),
        sightings=(Sighting(rank, life.reads[-1].step, size),),
        subject=subject,
        noun="object",
    )


def _severity(per_step: float, min_bytes: int, again: bool) -> Severity:
    if per_step < min_bytes:
        return Severity.NOTE
    return Severity.AVOIDABLE if again else Severity.LEAK


def _own(life: Life) -> int:
    """Growth of what the workers have allocated themselves, over their life."""
    first = {memory.worker: memory.anonymous for memory in life.reads[0].workers}
    last = life.reads[-1].workers
    return sum(memory.anonymous - first[memory.worker] for memory in last if memory.worker in first)


def _steps(life: Life) -> tuple[int, int]:
    return life.reads[0].step, life.reads[-1].step


def _trace(row: GrowingInWorker) -> tuple[Hop, ...]:
    """What holds it in the worker: as far as it was followed there."""
    inner = row.written.removeprefix("self.").removeprefix(f"{row.owner}.")
    kind, what = ObjectKind.INSTANCE, f"{row.owner}, in the worker's process"
    if row.written.startswith(f"{row.owner}."):
        kind, what = ObjectKind.CLASS, f"class {row.owner}"
    elif not row.written.startswith("self."):
        kind, what = ObjectKind.NAMESPACE, f"module {row.owner}"
    return (
        Hop(what, row.owner, kind, row.where, HopStatus.EXPECTED, f".{inner}", name=row.owner),
        Hop(f"{row.type}, {row.items:,} items", row.type, ObjectKind.CONTAINER, "", HopStatus.LEAKED, "[i]"),
        Hop(f"{row.gained:,} {row.item}", row.item, ObjectKind.NATIVE, "", HopStatus.LEAKED, ""),
    )


def _unnamed(rank: int, life: Life, named_bytes: int, min_bytes: int, again: bool) -> Finding | None:
    """Memory of the workers that grows to the end, and that no container explains."""
    reads = [read for read in life.reads if len(read.workers) == life.started.workers]
    if not reads or reads[-1].step - reads[0].step < _STEPS:
        return None
    sizes = [(read.step, sum(memory.anonymous for memory in read.workers)) for read in reads]
    length = sizes[-1][0] - sizes[0][0]
    marks = [next(s for s in sizes if s[0] >= sizes[0][0] + length * part / _PARTS) for part in range(1, _PARTS)]
    marks.append(sizes[-1])
    rates = [(after[1] - before[1]) / max(after[0] - before[0], 1) for before, after in pairwise(marks)]
    grown, steps = marks[-1][1] - marks[0][1], marks[-1][0] - marks[0][0]
    if min(rates) < min_bytes or steps <= 0 or named_bytes >= _EXPLAINED * grown:
        return None
    return Finding(
        rule=WORKER_GROWTH,
        facts=WorkerGrowthFacts(
            dataset=life.started.dataset,
            workers=life.started.workers,
            own_bytes=_own(life),
            own_steps=_steps(life),
            gives_back=again,
        ),
        fingerprint=fingerprint((WORKER_GROWTH, life.started.dataset)),
        severity=_severity(grown / steps, min_bytes, again),
        freed_by=FreedBy.PROGRAM,
        retained_bytes=grown,
        bytes_per_step=grown / steps,
        trace=(),
        cut=None,
        sightings=(Sighting(rank, reads[-1].step, grown),),
        noun="object",
    )
