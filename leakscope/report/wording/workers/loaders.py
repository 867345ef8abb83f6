"""Sentences about the workers of data loaders: what they copy, what they keep, and what is on its way."""

from __future__ import annotations

from leakscope.findings.memory.worker_copies import CopiesFacts
from leakscope.findings.memory.worker_growth import WorkerGrowthFacts
from leakscope.findings.model import Finding
from leakscope.findings.workers.ledger import LoaderMemory, WorkerLine, WorkerLineKind
from leakscope.report.wording.numbers import plural
from leakscope.units import bytes_text

_KINDS = {
    WorkerLineKind.OTHER_COPIES: "copies of other memory of the parent's, which each full collection writes to",
    WorkerLineKind.OWN: "what they have allocated since they were first read",
    WorkerLineKind.MAPPED: "files and shared memory of theirs alone",
    WorkerLineKind.BEGAN: "what they had when they were first read",
}


def copies_title(_finding: Finding, facts: CopiesFacts) -> str:
    """What is copied into the workers, and how much that is."""
    what = f"{facts.type} of {facts.items:,} {facts.item}".rstrip()
    many = f"each of {facts.workers} workers as they read it" if facts.workers > 1 else "the worker as it reads it"
    size, copied = bytes_text(facts.bytes), bytes_text(facts.copied)
    return f"`{facts.name}`, {what}, {size}, is copied into {many}: {copied} so far"


def copies_advice(_finding: Finding, facts: CopiesFacts) -> str:
    """What to keep it in."""
    ended = f", which ended with step {facts.until}" if facts.until is not None else ""
    again = "; workers that are started anew copy it again" if facts.gives_back else ""
    at = f" (set at {facts.where})" if facts.where else ""
    return (
        f"To read a Python object writes its reference count, and the page it lies on is copied{ended}{again}. Keep "
        f"the data{at} in one block without reference counts: a numpy array (of fixed-length bytes `S`, or all texts "
        "joined in one array of bytes with an array of offsets), a torch tensor, or an Arrow table "
        "(datasets.Dataset, pyarrow); then nothing of it is copied."
    )


def worker_growth_title(finding: Finding, facts: WorkerGrowthFacts) -> str:
    """What grows in the workers, and how fast."""
    pace = f"{bytes_text(finding.bytes_per_step)} a step"
    each = f"each of {facts.workers} workers" if facts.workers > 1 else "a worker"
    if not facts.name:
        who = f"{plural(facts.workers, 'worker')} over {facts.dataset}"
        return f"the memory of {who} grows by {pace}, in no container found"
    back = ", given back with each epoch" if facts.gives_back else ""
    rate = f"{facts.items_per_batch:,.0f}" if facts.items_per_batch >= 1 else f"{facts.items_per_batch:.1f}"
    gained = f"{rate} {facts.item or 'result'}".rstrip()
    return f"{facts.name} gains {gained} with each batch in {each}, {pace}{back}"


def worker_growth_advice(_finding: Finding, facts: WorkerGrowthFacts) -> str:
    """What to do about it, in a process that is not the script's own."""
    own = ""
    if facts.own_bytes is not None:
        first, last = facts.own_steps
        own = f" (the kernel has them take {bytes_text(facts.own_bytes)} more from step {first} to {last})"
    if not facts.name:
        return (
            f"It is in the workers' processes{own}: look for what the dataset's `__getitem__`, its transforms or "
            "collate_fn keep, in a library's cache or in C code. persistent_workers=False gives it back with each "
            "epoch."
        )
    return (
        f"Each worker fills one of its own, which the script's process never sees{own}: take out what is done with, "
        "give it a bound, or share one cache between the workers (a file, shared memory). persistent_workers=False "
        "gives it back with each epoch."
    )


def loader_text(loader: LoaderMemory) -> str:
    """`2 workers over Images (train.py:14 main), forked, started 3 times: 93.0 MiB of their own at most`."""
    started = loader.started
    how = {"fork": "forked"}.get(started.method, f"started by {started.method}")
    at = f" ({started.started_at})" if started.started_at else ""
    times = f", started {loader.lives} times" if loader.lives > 1 else ""
    kept = ", persistent" if started.persistent else ""
    return (
        f"{plural(started.workers, 'worker')} over {started.dataset}{at}, {how}{times}{kept}: "
        f"{bytes_text(loader.unique_bytes)} of their own at most, at step {loader.step}"
    )


def worker_line_text(line: WorkerLine) -> str:
    """`copies of self.samples of Images`."""
    return f"copies of `{line.holder}`" if line.kind == WorkerLineKind.COPIES else _KINDS[line.kind]


def loader_notes(loader: LoaderMemory) -> tuple[str, ...]:
    """What else there is to know: batches on their way, what is given back, pinned copies."""
    told = []
    if loader.sent_bytes:
        bound = f" of {loader.most_sent} at most" if loader.most_sent is not None else ""
        told.append(
            f"batches on their way{bound} (prefetch_factor x num_workers): {bytes_text(loader.sent_bytes)} in shared "
            "memory at most; bounded, no leak"
        )
    if loader.gives_back:
        told.append("workers end with each epoch and give back what they had")
    elif loader.started.persistent:
        told.append("persistent_workers: what workers have is kept from epoch to epoch")
    if loader.pinned_bytes is not None:
        told.append(f"a thread pins each batch in the parent: {bytes_text(loader.pinned_bytes)} pinned at most")
    return tuple(told)


def loader_lines(loader: LoaderMemory) -> tuple[str, ...]:
    """All of a loader's lines, and what else there is to know, each a text."""
    lines = (f"{bytes_text(line.bytes)}: {worker_line_text(line)}" for line in loader.lines if line.bytes)
    return (*lines, *loader_notes(loader))


def loader_in_short(loader: LoaderMemory) -> str:
    """A loader in a line: its workers, and the largest of the lines."""
    largest = loader.lines[0]
    return f"{loader_text(loader)}; {bytes_text(largest.bytes)} are {worker_line_text(largest)}"
