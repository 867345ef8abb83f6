"""What is private to torch, is it there, and what is not told where it is not?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

import torch


class Part(StrEnum):
    """What is recorded with the help of private names; its value ends the sentence `this torch has no X: `."""

    LOOKS = "what is alive, and who holds it, is not told"
    NATIVE = "what only C++ holds may count as held by native code, and what a cut frees is not told"
    SPARSE = "the memory of sparse tensors is not told"
    COLLECTED = "what collecting and cutting really free is not told"
    WATCHED = "where tensors are made, and when they are last used, is not told"
    BACKWARDS = "steps that end with a backward or a module's call are not told"
    CALLS = "steps that end with a module's call are not told"
    BY_HAND = "steps whose gradients are used without the optimizer there is are not told"
    OPTIMIZERS = "a step that an optimizer takes within another one's is not told apart"
    COMM = "what is sent, received and reduced is not told"
    FUNCTIONAL = "what functional collectives send and reduce is not told"
    CONTEXTS = "distributed-autograd contexts are not told"
    COMPILED = "what torch.compile makes of calls that leakscope listens to is not told"
    DEVICE = "memory on another vendor's accelerator is not told"
    WORKERS = "what the workers of a DataLoader take is not told"
    BLOCKS = "which of the allocator's blocks is whose is not told"


NEEDS = {
    Part.COLLECTED: Part.LOOKS,
    Part.WATCHED: Part.LOOKS,
    Part.BLOCKS: Part.LOOKS,
    Part.COMM: Part.LOOKS,
    Part.BY_HAND: Part.LOOKS,
    Part.CALLS: Part.BACKWARDS,
    Part.FUNCTIONAL: Part.COMM,
    Part.CONTEXTS: Part.COMM,
}
"""Parts that are left out with another one: what is watched, sent and accumulated is followed as looks follow it, and a
module's call ends a step only where no backward does."""


@dataclass(frozen=True)
class Private:
    """One private name of torch."""

    path: str
    """`torch._C._has_storage`."""
    part: Part
    """What needs it."""
    works: Callable[[Any], object] | None = None
    """Tries what is found on something of our own: False, or an error, where it is not what it was."""
    optional: bool = False
    """Its holder may not be there: torch can be built without it."""
    versions: str = ""
    """Where it is known not to be there, or not in this shape."""

    def is_there(self) -> bool:
        """Whether this torch has it and it works."""
        if self.optional and at(self.path.rpartition(".")[0]) is None:
            return True
        found = at(self.path)
        try:
            return found is not None and (self.works is None or self.works(found) is not False)
        except Exception:  # noqa: BLE001 - whatever another torch does there, it is not what is used here
            return False


TABLE: list[Private] = []
"""Every private name that is used, in the order of `torch_private`."""


class LackedByTorch(RuntimeError):
    """A private name was used that this torch lacks."""


class Lacked:
    """Stands for a name that this torch lacks: it can be named further, and raises when it is called."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *_: object, **__: object) -> Any:
        """Raises LackedByTorch."""
        raise LackedByTorch(f"this torch has no {self._path}")


def at(path: str) -> Any:
    """What stands at `torch.a.b`, None where nothing does; imports nothing."""
    found: Any = torch
    for name in path.split(".")[1:]:
        found = getattr(found, name, None)
    return found


def bind(path: str, part: Part, **more: Any) -> Any:
    """What stands at a path, entered in the table with the other fields of its `Private`; a `Lacked` for nothing."""
    TABLE.append(Private(path, part, **more))
    found = at(path)
    return Lacked(path) if found is None else found


def getter(path: str, part: Part, **more: Any) -> Any:
    """How a getter of a class of C is asked: a function of the object. One that is lacking answers None."""
    found = bind(path, part, **more)
    if isinstance(found, Lacked):
        return nothing
    return found.fget if isinstance(found, property) else found.__get__


def nothing(*_: object) -> None:
    """Does nothing, whatever it is called with."""


@cache
def lacking() -> tuple[Private, ...]:
    """What of the table this torch lacks; found when first asked, in less than a millisecond."""
    from leakscope.capture.torch_private import past_modes

    with past_modes():
        return tuple(private for private in TABLE if not private.is_there())


def lacks(part: Part) -> bool:
    """Whether a part has to be left out: a name that it needs is lacking, or one of a part that it builds on."""
    below = NEEDS.get(part)
    return any(private.part is part for private in lacking()) or (below is not None and lacks(below))


def sentences() -> tuple[str, ...]:
    """What is not told, a sentence for each part of which something is lacking."""
    paths: dict[Part, list[str]] = {}
    for private in lacking():
        paths.setdefault(private.part, []).append(private.path)
    return tuple(f"this torch has no {' and no '.join(names)}: {part.value}" for part, names in paths.items())
