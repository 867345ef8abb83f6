"""What a grad node saved, read without running a saved-tensor hook."""

from __future__ import annotations

from functools import cache
from typing import Any

from torch.autograd.graph import Node

LISTED = "_raw_saved_tensors"
"""How a custom Function's node lists what it saved; it raises once that was freed."""


@cache
def saved_names(kind: type) -> tuple[str, ...]:
    """The names under which a type of grad node shows its saved tensors without running unpack hooks."""
    return tuple(name for name in dir(kind) if name.startswith("_raw_saved_"))


def variables(node: Node) -> list[Any]:
    """What a node saved, each as torch shows it without running unpack hooks."""
    found: list[Any] = []
    for name in saved_names(type(node)):
        saved = getattr(node, name)
        if isinstance(saved, tuple):
            found += saved
        else:
            found.append(saved)
    return found


def freed(start: Node) -> bool:
    """True where an earlier backward freed what the first nodes below `start` saved. Runs no unpack hook.

    Looks down to the first node on each path that saved anything; a graph freed only further down still fails in
    the engine.
    """
    seen = {start}
    pending = [start]
    while pending:
        node = pending.pop()
        names = saved_names(type(node))
        if not names:
            children = [child for child, _ in node.next_functions if child is not None and child not in seen]
            seen.update(children)
            pending.extend(children)
        elif _emptied(node, names):
            return True
    return False


def _emptied(node: Node, names: tuple[str, ...]) -> bool:
    empty = 0
    for name in names:
        try:
            entry = getattr(node, name)
        except RuntimeError:  # a custom Function's freed buffers refuse to be listed
            return True
        for variable in entry if isinstance(entry, tuple) else (entry,):
            if variable.data is not None:
                return False
            empty += 1
    if not empty:
        return False
    # A freed and a never defined saved tensor both read None; only the checked access tells them apart. No hook holds
    # a payload here, so none runs.
    try:
        getattr(node, names[0].replace("_raw_saved_", "_saved_"), None)
    except RuntimeError:
        return True
    return False
