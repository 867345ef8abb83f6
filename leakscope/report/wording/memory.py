"""Sentences about memory that no storage explains, that an allocator keeps, or that one rank holds beside its peers."""

from __future__ import annotations

from leakscope.findings.compare_ranks import RankSkewFacts
from leakscope.findings.memory.allocator import CaughtFacts, OutsideFacts, PendingFacts, ReservedFacts, RetriesFacts
from leakscope.findings.memory.device import NativeBlocksFacts
from leakscope.findings.memory.unattributed import UnattributedFacts
from leakscope.findings.model import Finding
from leakscope.units import bytes_text

_FOR_EACH_SHAPE = (
    "oneDNN keeps what it has built for each new shape, up to ONEDNN_PRIMITIVE_CACHE_CAPACITY of them (1024 "
    "unless set): "
    "run with fixed shapes, or set it to 1, to see whether anything else grows. "
)
_ON_HOST = (
    "Look first for a list or dict that gains what leakscope does not look into: strings, lists of numbers (logs, "
    "x.tolist()), PIL images, pyarrow tables, arrays and bytes of less than 4 KiB each, objects of C extensions; then "
)


def unattributed_title(_finding: Finding, facts: UnattributedFacts) -> str:
    """How fast memory grows that is no tensor's."""
    how = f" by {bytes_text(facts.per_step)} a step"
    if not facts.is_steady:
        how = f", not steadily, by {bytes_text(facts.grown)} in all"
    shapes = ", while shapes are new at each look" if facts.shapes_are_new else ""
    return f"memory that is no tensor's grows{how}{shapes}"


def unattributed_advice(_finding: Finding, facts: UnattributedFacts) -> str:
    """Where to look for it."""
    shapes = _FOR_EACH_SHAPE if facts.shapes_are_new else ""
    look = _ON_HOST if facts.on_host else "Look "
    return (
        f"{shapes}{look}for handles of asynchronous operations that are kept (Work of isend, irecv, "
        "all_reduce(async_op=True)), distributed-autograd contexts left open, an autocast region never left, or a C++ "
        "extension that caches."
    )


def native_blocks_title(_finding: Finding, facts: NativeBlocksFacts) -> str:
    """How fast device memory grows that nothing explains."""
    grows = f"grows by {bytes_text(facts.per_step)} a step"
    return f"device memory that no Python object and no autograd path explains {grows}"


def native_blocks_advice(_finding: Finding, facts: NativeBlocksFacts) -> str:
    """What may keep it."""
    return (
        f"These blocks were made at {facts.made_at[0] if facts.made_at else 'an unknown place'} and are kept by native "
        "code: look for handles of asynchronous operations that are kept, an autocast region never left, captured "
        "graphs, or a C++ extension that caches."
    )


def reserved_title(_finding: Finding, facts: ReservedFacts) -> str:
    """How much is reserved, and how much was ever in use."""
    reserved, most = bytes_text(facts.reserved), bytes_text(facts.most)
    return f"device {facts.device} has {reserved} reserved where at most {most} were ever in use"


def reserved_advice(_finding: Finding, facts: ReservedFacts) -> str:
    """What against fragmentation."""
    private = f" {bytes_text(facts.private)} of it belong to private pools." if facts.private else ""
    return (
        "Blocks of changing sizes do not fit into each other's places: set "
        f"`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, or pad inputs to a few sizes.{private}"
    )


def pending_title(_finding: Finding, facts: PendingFacts) -> str:
    """How much is dead and not given back."""
    return f"{bytes_text(facts.bytes)} of dead tensors on device {facts.device} wait for another stream"


def pending_advice(_finding: Finding, _facts: PendingFacts) -> str:
    """When it is given back."""
    return (
        "A tensor used on another stream (`record_stream`, asynchronous collectives) is given back only once that "
        "stream has passed it: wait for the Work handles, or keep the tensor and let it go after synchronising."
    )


def outside_title(_finding: Finding, facts: OutsideFacts) -> str:
    """How fast memory grows that torch has not reserved."""
    return f"memory of device {facts.device} outside torch's allocator grows by {bytes_text(facts.per_step)} a step"


def outside_advice(_finding: Finding, _facts: OutsideFacts) -> str:
    """Whose it may be."""
    return (
        "No snapshot shows it: communicators and their buffers, library handles and workspaces, captured graphs, or "
        "another process on the same device, which is counted as well."
    )


def retries_title(_finding: Finding, facts: RetriesFacts) -> str:
    """How often the device was full."""
    full = f"device {facts.device} was full {facts.times} times, in {facts.steps} steps"
    return f"{full}: its cache was given back and asked for again"


def retries_advice(_finding: Finding, _facts: RetriesFacts) -> str:
    """What it costs."""
    return "Each time waits for the device. Free what the findings above name, or take a smaller batch."


def caught_title(_finding: Finding, facts: CaughtFacts) -> str:
    """How often memory ran out without an end."""
    times = "once" if facts.times == 1 else f"{facts.times} times"
    largest = f"the largest request was {bytes_text(facts.largest_bytes)}"
    return f"device memory ran out {times} and the script went on; {largest}"


def caught_advice(_finding: Finding, _facts: CaughtFacts) -> str:
    """Who caught it."""
    return (
        "It was caught: by the script, as one that takes a smaller batch then, or by a library that tries one "
        "algorithm "
        "after the other. No failure by itself."
    )


def skew_title(_finding: Finding, facts: RankSkewFacts) -> str:
    """How much it holds, and what its peers' share would be."""
    largest = f"; the largest holder is {facts.largest}" if facts.largest else ""
    return (
        f"rank {facts.rank} holds {bytes_text(facts.held_bytes)} beside its model where its peers' share would be "
        f"{bytes_text(facts.expected_bytes)}{largest}"
    )


def skew_advice(_finding: Finding, facts: RankSkewFacts) -> str:
    """What to compare."""
    return (
        f"Compare what rank {facts.rank} holds at its last look with a peer's, by category. In a pipeline the first "
        "stages keep more microbatches in flight; the last stage keeps logits, losses and what a logged metric holds."
    )
