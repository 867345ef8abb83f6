"""Holders of tensor memory as text, as HTML for a notebook, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from leakscope.findings.live_objects import (
    HolderMemory,
    LiveMemory,
    ModelPart,
    ReferencePaths,
    ReleaseCommand,
    ReleasePlan,
    RetentionKind,
    SessionHolder,
)
from leakscope.report.rendering import UNLIMITED, figures, html_page, json_text, laid_out, one_line
from leakscope.units import bytes_text, plural

_KEPT = {
    RetentionKind.WAITS_FOR_GC: "garbage awaiting gc",
    RetentionKind.NEVER_FREED: "uncollectable cycles",
}
_PARTS = {
    ModelPart.PARAMETERS: "parameters and buffers of ",
    ModelPart.GRADIENTS: "gradients of ",
    ModelPart.STATE: "state of ",
    ModelPart.NONE: "",
}
_SESSION_NAMES = {
    SessionHolder.OUTPUTS: "outputs displayed by the session",
    SessionHolder.SHOWN: "outputs displayed by the session",
    SessionHolder.LAST_ERROR: "the last error",
    SessionHolder.TRACEBACK: "the last error",
    SessionHolder.DEBUGGER: "the debugger",
}
OUTPUTS = ("get_ipython().user_ns_hidden.update(_=None, __=None, ___=None)", "%reset -f out")
"""IPython hides copies of the last three outputs, which its own `%reset -f out` leaves there
(IPython/core/displayhook.py, update_user_ns and flush)."""
TYPE = "To free memory, run the lines you no longer need, in this order:"
HIDES = "This torch version hides some C++ references, so the bytes that would be freed are unknown."


def alive_headline(alive: LiveMemory) -> str:
    """The total of live tensor memory."""
    if not alive.storages and not alive.bytes:
        return "no tensor memory is alive"
    where = "" if alive.device == "cpu" else f" (including the allocator of {alive.device})"
    return f"tensor memory alive: {bytes_text(alive.bytes)} in {plural(alive.storages, 'storage')}{where}"


def holder(alive: LiveMemory, held: HolderMemory) -> str:
    """The holder's name."""
    if held.kept == RetentionKind.UNSEEN:
        return "no reachable tensor: native code or allocator rounding"
    if held.kept == RetentionKind.NATIVE:
        return f"native code or a running call ({held.name})"
    if held.kept == RetentionKind.ERROR:
        return f"{held.name}, kept by the last error{f' ({alive.error})' if alive.error else ''}"
    return _KEPT.get(held.kept) or _PARTS[held.part] + held.name


def freed(held: HolderMemory) -> str:
    """The bytes that would be freed."""
    if held.letting_go is None:
        return "-"
    text = bytes_text(held.letting_go.bytes)
    return f"{text} by gc" if held.letting_go.after_gc else text


def together(held: HolderMemory) -> str:
    """What must be deleted to free it; "" if that is only the holder."""
    going = held.letting_go
    if going is None or held.kept == RetentionKind.WAITS_FOR_GC:
        return ""
    if held.part == ModelPart.GRADIENTS:
        return "after zero_grad(set_to_none=True)"
    several = needed(going)
    if held.kept != RetentionKind.PROGRAM or several == (held.name,):
        return ""
    return f"when {_released_text(several)}"


def needed(going: ReleasePlan) -> tuple[str, ...]:
    """Everything to delete: references as written, and references of the session."""
    return tuple(dict.fromkeys((*going.written, *_kept_by(going.keepers))))


def _kept_by(keepers: Sequence[SessionHolder]) -> tuple[str, ...]:
    """References of the interactive session: its displayed outputs or its last error."""
    of_error = {SessionHolder.LAST_ERROR, SessionHolder.TRACEBACK, SessionHolder.DEBUGGER} & {*keepers}
    cell = _SESSION_NAMES[SessionHolder.LAST_ERROR if of_error else SessionHolder.OUTPUTS]
    return tuple(dict.fromkeys(_SESSION_NAMES.get(keeper, cell) for keeper in keepers))


def _released_text(parts: tuple[str, ...]) -> str:
    return f"{_and(parts)} {'is' if len(parts) == 1 else 'are all'} gone"


def _and(parts: tuple[str, ...]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def to_type(steps: Sequence[ReleaseCommand]) -> Iterator[tuple[str, str]]:
    """(lines to run, bytes they free after the lines above; "" if none yet)."""
    for step in steps:
        yield "\n".join(_lines(step)), f"{bytes_text(step.bytes)} would be freed" if step.bytes else ""


def _lines(step: ReleaseCommand) -> Iterator[str]:
    if SessionHolder.OUTPUTS in step.keepers:
        yield from OUTPUTS
        return
    if SessionHolder.SHOWN in step.keepers:
        yield "import builtins; builtins._ = None"
    if SessionHolder.LAST_ERROR in step.keepers:
        yield f"import sys; del {', '.join(f'sys.{name}' for name in step.error_names)}"
    if SessionHolder.TRACEBACK in step.keepers:
        yield "get_ipython().InteractiveTB.tb = None"
    if SessionHolder.DEBUGGER in step.keepers:
        yield "get_ipython().InteractiveTB.pdb = None"
    if step.variables:
        yield f"del {', '.join(step.variables)}"
    if step.collects:
        yield "import gc; gc.collect()"


def paths_headline(paths: ReferencePaths) -> str:
    """The number of reference paths to a tensor."""
    count = len(paths.ways) + paths.more
    number = plural(count, "reference path") if paths.all_counted else f"more than {plural(count, 'reference path')}"
    if count == 0 and not paths.keepers:
        return f"{paths.label}, {bytes_text(paths.bytes)}: held only by this call"
    return f"{paths.label}, {bytes_text(paths.bytes)}: {number} from live objects"


def paths_freed(paths: ReferencePaths) -> str:
    """What must be deleted to free the tensor."""
    going = paths.letting_go
    if going is None:
        return "no set of up to four references frees it" if paths.ways else ""
    gc = ", after gc.collect()" if going.after_gc else ""
    several = needed(going)
    if not several:
        return f"{bytes_text(going.bytes)} would be freed by gc.collect()" if going.after_gc else ""
    return f"{bytes_text(going.bytes)} would be freed{gc} when {_released_text(several)}"


def other_holders(paths: ReferencePaths) -> str:
    """References of the session, or garbage, that also hold the tensor; "" if none."""
    names = [*_kept_by(paths.keepers)]
    names += ["garbage awaiting gc"] if paths.of_garbage else []
    return f"also kept by {_and(tuple(names))}" if names else ""


_HEAD = ("held", "would be freed", "holder", "line")


def _rows(alive: LiveMemory) -> list[tuple[str, str, str, str, str]]:
    """The cells of `_HEAD` for each holder, and what else must be deleted."""
    rows = [
        (
            bytes_text(held.bytes),
            freed(held),
            one_line(holder(alive, held)),
            held.where,
            one_line(together(held)),
        )
        for held in alive.lines
    ]
    if alive.smaller:
        rows.append((bytes_text(alive.smaller_bytes), "-", plural(alive.smaller, "smaller holder"), "", ""))
    return rows


def alive_as_text(alive: LiveMemory, headline: str = "") -> str:
    """A table of holders with what else must be deleted, and the lines to run."""
    lines = [headline or alive_headline(alive)]
    if not alive.lines:
        return lines[0]
    rows = _rows(alive)
    head, *table = laid_out([figures([row[:4] for row in rows], "rrll", _HEAD)], UNLIMITED)
    lines += [*([HIDES] if alive.hides else []), "", head]
    for line, (*_, more) in zip(table, rows, strict=True):
        lines += [line, *([" " * (head.index(_HEAD[2]) + 2) + more] if more else [])]
    if alive.typed:
        lines += ["", TYPE, *_typed(alive.typed)]
    return "\n".join(lines)


def _typed(steps: Sequence[ReleaseCommand]) -> Iterator[str]:
    for text, frees in to_type(steps):
        *lines, last = text.split("\n")
        yield from (f"  {line}" for line in lines)
        yield f"  {last}    # {frees}" if frees else f"  {last}"


def _notes(paths: ReferencePaths) -> list[str]:
    """What else holds the tensor, and what frees it."""
    return [text for text in (other_holders(paths), paths_freed(paths)) if text]


def _more(paths: ReferencePaths) -> str:
    """The number of reference paths that are not listed; "" if all are."""
    return f"and {'' if paths.all_counted else 'more than '}{paths.more} more" if paths.more else ""


def paths_as_text(paths: ReferencePaths) -> str:
    """A list of reference paths, and what frees the memory."""
    lines = [paths_headline(paths)]
    for number, path in enumerate(paths.ways, start=1):
        lines.append(f"{number:>4}. {one_line(path.written)}{f'  ({path.where})' if path.where else ''}")
    if more := _more(paths):
        lines.append(f"      {more}")
    return "\n".join([*lines, *_notes(paths), *_typed(paths.typed)])


def alive_as_html(alive: LiveMemory) -> str:
    """The table of holders and the lines to run."""
    return html_page(
        "holders.html",
        headline=alive_headline(alive),
        warning=HIDES if alive.lines and alive.hides else "",
        heads=_HEAD,
        rows=_rows(alive) if alive.lines else (),
        paths=(),
        notes=[TYPE] if alive.typed else [],
        commands=list(to_type(alive.typed)),
        picture="",
    )


def paths_as_html(paths: ReferencePaths, svg: str) -> str:
    """A list of reference paths, with their picture if there is one."""
    return html_page(
        "holders.html",
        headline=paths_headline(paths),
        warning="",
        rows=(),
        paths=[{"written": one_line(path.written), "where": path.where} for path in paths.ways],
        notes=[*([more] if (more := _more(paths)) else []), *_notes(paths)],
        commands=list(to_type(paths.typed)),
        picture=svg,
    )


def as_json(memory: LiveMemory | ReferencePaths) -> str:
    """The fields of the dataclass as JSON; unknown is null."""
    return json_text(asdict(memory), indent=1).rstrip()
