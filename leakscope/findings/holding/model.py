"""What is told of memory that is held now."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kept(StrEnum):
    """By what some memory is kept."""

    PROGRAM = "program"
    """By what the program itself holds: a variable, an attribute, a running call."""
    ERROR = "error"
    """By nothing but the traceback of an error that the interpreter or the notebook remembers."""
    OUTPUT = "output"
    """By nothing but what an interactive session has shown: `_`, `Out[3]`."""
    NATIVE = "native"
    """By native code or a running call; no Python object explains it."""
    WAITS_FOR_GC = "waits for gc"
    NEVER_FREED = "never freed"
    """By a cycle through C++ that gc cannot see."""
    UNSEEN = "unseen"
    """The allocator of the device has it out, and no tensor that can be reached owns it."""


class Part(StrEnum):
    """Which memory of a model or an optimizer."""

    NONE = ""
    """It is of none."""
    PARAMETERS = "parameters"
    """And buffers."""
    GRADIENTS = "gradients"
    STATE = "state"
    """Of an optimizer."""


class Keeper(StrEnum):
    """What an interactive session keeps by itself."""

    OUTPUTS = "outputs"
    """`Out`, `_`, `__`, `___`, `_3`, and the copies of them that IPython hides."""
    SHOWN = "shown"
    """`_` of a plain interactive Python."""
    LAST_ERROR = "last error"
    """`sys.last_traceback`, `sys.last_value`, `sys.last_exc`."""
    TRACEBACK = "traceback"
    """IPython's own for `%debug` and `%tb`."""
    DEBUGGER = "debugger"
    """The frames at which `%debug` stood."""
    LAST_CELL = "last cell"
    """The result of the cell before, replaced when the cell that runs now is over."""


@dataclass(frozen=True)
class LettingGo:
    """The references that free some memory when all of them are gone."""

    written: tuple[str, ...]
    """As the user would write them; () where only the session keeps it."""
    where: tuple[str, ...]
    """The line of each, "" where none is known."""
    variables: tuple[str, ...]
    """Those of them that are names of the session: `x`."""
    keepers: tuple[Keeper, ...]
    """What the session has to let go of, too."""
    error_names: tuple[str, ...]
    """Of the names in `sys` by which it keeps the last error, those that are there."""
    bytes: int
    """What that would free: measured on the graph."""
    after_gc: bool
    """Only with a full collection after it."""


@dataclass(frozen=True)
class Typed:
    """One command that lets go of memory, for who types."""

    keepers: tuple[Keeper, ...]
    """What the session lets go of by it."""
    error_names: tuple[str, ...]
    """As in `LettingGo`."""
    variables: tuple[str, ...]
    """Names that it deletes."""
    collects: bool
    """A full collection comes after it, or is part of it."""
    bytes: int
    """What it would free once those before it are typed: measured on the graph."""


@dataclass(frozen=True)
class HeldNow:
    """What one holder keeps."""

    bytes: int
    storages: int
    kept: Kept
    name: str
    """As its user would write it: `cache in main()`; "" where nothing of the program's holds it."""
    where: str
    """`train.py:12` or `In[5]:3`, "" where no line is known."""
    part: Part = Part.NONE
    letting_go: LettingGo | None = None
    """What frees it; None where a few references do not, or where it was not asked."""


@dataclass(frozen=True)
class Alive:
    """All tensor memory that is alive, the largest holders first; the bytes of all lines are `bytes`."""

    bytes: int
    storages: int
    device: str
    """`cpu`, or the kind of accelerator whose allocator was asked."""
    lines: tuple[HeldNow, ...]
    smaller: int
    """Holders that are not told one by one:"""
    smaller_bytes: int
    """their bytes."""
    typed: tuple[Typed, ...]
    """What to type to let go of it, in this order; () where nobody types."""
    error: str
    """The type of the last error that the session remembers, "" without one."""
    hides: bool
    """Whether this torch does not show all that C++ holds."""


@dataclass(frozen=True)
class Link:
    """One reference of a way, and what it holds."""

    name: str
    """As written in code: `.losses`, `[3]`, `local x`, `saved self`."""
    holder: int
    held: int
    """Indexes into `Ways.objects`."""
    where: str


@dataclass(frozen=True)
class Place:
    """One object of a way."""

    label: str
    where: str
    root: str
    """Why it lives of itself, "" where it does not."""


@dataclass(frozen=True)
class Way:
    """One simple way from a root, or from garbage, down to the memory."""

    written: str
    """`main(): losses[2].grad_fn, saved mat1`."""
    where: str
    links: tuple[Link, ...]


@dataclass(frozen=True)
class Ways:
    """Every way from what is alive to one tensor's memory."""

    label: str
    """`Tensor float32[1000]`."""
    bytes: int
    """Of its storage."""
    ways: tuple[Way, ...]
    """The shortest one by each reference to it first."""
    more: int
    """Ways that are not listed."""
    all_counted: bool
    """False where there are more than `more`."""
    of_garbage: bool
    """Whether garbage that waits for gc leads to it, too."""
    keepers: tuple[Keeper, ...]
    """What an interactive session has to let go of, too."""
    objects: tuple[Place, ...]
    letting_go: LettingGo | None
    typed: tuple[Typed, ...]
    """What to type to let go of it, in this order; () where nobody types."""
