"""Is it the user's leak, or a library's that is known?"""

from __future__ import annotations

from leakscope.findings.candidate import Candidate


def origin_of(found: Candidate) -> str:
    """`library` where every line that can be named on the cycle or way belongs to a library."""
    graph, group = found.graph, found.group
    references = list(group.cycles[0]) if group.cycles else list(group.way)
    lines = [graph.object(int(graph.holder[r])).where for r in references] + [graph.reference(r).where for r in references]
    named = [line for line in lines if line]
    if group.freed == 0 or not named:
        return "application"
    return "library" if all(line.startswith("<") for line in named) else "application"
