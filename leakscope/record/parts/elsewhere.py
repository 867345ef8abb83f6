"""Which ranks ran on machines that have left nothing in this folder, and so have one of their own?"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from leakscope.originals import Path

NODES = "nodes"
"""In `run.json`: how many machines take part; left out for one."""
RANKS_A_NODE = "ranks_a_node"
"""In `run.json`: ranks of each of them; left out where that is not known, or not the same on each."""

_LOG = re.compile(r"node_([0-9]+)_local_")
"""How the name of a log of a rank begins, with the number of its machine."""


def machines(nodes: int, ranks_a_node: int) -> dict[str, int]:
    """What `run.json` says of them."""
    return {NODES: nodes, RANKS_A_NODE: ranks_a_node} if nodes > 1 and ranks_a_node > 0 else {}


def ranks_elsewhere(folder: Path, header: Mapping[str, Any], expected: int, there: Collection[int]) -> list[int]:
    """The ranks of those machines none of which has a folder here; none where no rank has one at all, nor where several
    machines have their logs here: they share the folder, and a rank without one has left nothing.

    Which rank is on which machine is told by the ranks that are there: launchers number the machines as they come.
    """
    nodes, each = header.get(NODES), header.get(RANKS_A_NODE)
    if type(nodes) is not int or type(each) is not int or each < 1 or nodes * each != expected:
        return []
    here = {number // each for number in there if number < expected}
    if not here or len({found[1] for path in folder.glob("logs/node_*") if (found := _LOG.match(path.name))}) > 1:
        return []
    return [number for number in range(expected) if number // each not in here]
