"""Python objects that every worker of a data loader copies as it reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from leakscope.findings.facts import Facts, FreedBy, RuleName, Severity
from leakscope.findings.model import Finding, Life, Sighting, lives_of, named
from leakscope.findings.naming import fingerprint
from leakscope.findings.rules.rule import Rule
from leakscope.run.model import Rank
from leakscope.run.rows_steps import SharedObjects, WorkersRead
from leakscope.units import bytes_text

NAME = RuleName.WORKER_COPIES
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

    def title_for(self, _: Finding) -> str:
        """What is copied into the workers, and how much that is."""
        what = f"{self.type} of {self.items:,} {self.item}".rstrip()
        many = f"each of {self.workers} workers as they read it" if self.workers > 1 else "the worker as it reads it"
        size, copied = bytes_text(self.bytes), bytes_text(self.copied)
        return f"`{self.name}`, {what}, {size}, is copied into {many}: {copied} so far"

    def advice_for(self, _: Finding) -> str:
        """What to keep it in."""
        ended = f", which ended with step {self.until}" if self.until is not None else ""
        again = "; workers that are started anew copy it again" if self.gives_back else ""
        at = f" (set at {self.where})" if self.where else ""
        return (
            f"To read a Python object writes its reference count, and the page it lies on is copied{ended}{again}. "
            f"Keep the data{at} in one block without reference counts: a numpy array (of fixed-length bytes `S`, or "
            "all texts joined in one array of bytes with an array of offsets), a torch tensor, or an Arrow table "
            "(datasets.Dataset, pyarrow); then nothing of it is copied."
        )


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
        rule=NAME,
        facts=facts,
        fingerprint=fingerprint((NAME, shared.owner, shared.written)),
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


RULE = Rule(RuleName.WORKER_COPIES, "Python objects that every worker of a data loader copies as it reads them.")
