"""Edits of what keeps a value: containers, hooks, contexts, registries and pipelines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from leakscope.findings.model import Finding
from leakscope.findings.source.edits import StoreCase
from leakscope.findings.source.index import Sources
from leakscope.fix.model import Candidate


def container_candidates(
    finding: Finding,  # noqa: ARG001
    stores: Sequence[StoreCase],  # noqa: ARG001
    sources: Sources,  # noqa: ARG001
) -> Iterator[Candidate]:
    """Yield candidates that empty, bound or close what keeps the memory of a leak.

    Args:
        finding: The leak.
        stores: The stores of each reference of its cut.
        sources: The files of the run.

    Yields:
        Candidates, the most plausible first.

    """
    yield from ()
