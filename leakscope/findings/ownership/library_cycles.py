"""Is it the user's leak, or a library's that is known?"""

from __future__ import annotations

from leakscope.findings.grouping.candidate import Candidate
from leakscope.findings.kinds import Origin
from leakscope.graph.ownership import is_outside_users_files

KNOWN_CYCLES = {
    "_pytest._code.code.ExceptionInfo": "`pytest.raises(...) as caught` holds the frame that holds `caught`",
}
"""Qualified type name on a cycle to what the library does there."""


def origin_of(candidate: Candidate) -> Origin:
    """`library` where a known one closes the cycle, or every line that can be named on it belongs to a library."""
    graph, group = candidate.graph, candidate.group
    references = list(group.cycles[0]) if group.cycles else list(group.path)
    if group.cycles and any(graph.object(int(graph.holder[r])).name in KNOWN_CYCLES for r in references):
        return Origin.LIBRARY
    lines = [graph.object(int(graph.holder[r])).where for r in references] + [
        graph.reference(r).where for r in references
    ]
    named = [line for line in lines if line]
    if group.freed == 0 or not named:
        return Origin.APPLICATION
    return Origin.LIBRARY if all(is_outside_users_files(line) for line in named) else Origin.APPLICATION
