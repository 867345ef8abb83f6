"""The user's line behind a call: the innermost frame outside torch, the standard library and leakscope."""

from __future__ import annotations

import dis
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import CodeType, FrameType, TracebackType
from typing import Any

from leakscope.originals import _thread
from leakscope.process.raw_types import is_of_leakscope
from leakscope.process.user_code import at, is_users


def running_frames() -> list[FrameType]:
    """All running frames of all threads, innermost first."""
    frames = []
    own = sys._getframe()
    frame: FrameType | None
    for innermost in sys._current_frames().values():
        frame = innermost
        while frame is not None:
            if frame is not own:
                frames.append(frame)
            frame = frame.f_back
    del own, frame, innermost  # a frame that holds itself would outlive this call
    return frames


def is_alone() -> bool:
    """Whether only this thread and leakscope's threads run Python."""
    mine = _thread.get_ident()
    return all(
        ident == mine or is_of_leakscope(_outermost(frame).f_globals.get("__name__"))
        for ident, frame in sys._current_frames().items()
    )


def _outermost(frame: FrameType) -> FrameType:
    while frame.f_back is not None:
        frame = frame.f_back
    return frame


def waiting(home: int) -> FrameType | None:
    """The current frame of a thread: the caller of `backward` while an autograd thread works for it."""
    return sys._current_frames().get(home)


def users_line(frame: FrameType | None) -> str:
    """The innermost frame of the user at or below `frame`, as `train.py:41 forward`; "" if there is none."""
    while frame is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return "" if frame is None else f"{at(frame.f_code.co_filename, frame.f_lineno)} {frame.f_code.co_name}"


def raised_at(error: BaseException | None) -> str:
    """The innermost line of the user in an error's traceback, as `train.py:41 forward`; "" if there is none."""
    place = ""
    trace: TracebackType | None = None if error is None else error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if is_users(code.co_filename):
            place = f"{at(code.co_filename, trace.tb_lineno)} {code.co_name}"
        trace = trace.tb_next
    return place


def arguments_of_running_calls() -> list[tuple[str, str]]:
    """(function, argument) of the user's running functions, by qualified name."""
    arguments = []
    for frame in running_frames():
        code = frame.f_code
        if is_users(code.co_filename):
            count = code.co_argcount + code.co_kwonlyargcount
            arguments += [(code.co_qualname, name) for name in code.co_varnames[:count]]
    return list(dict.fromkeys(arguments))


_MAX_FRAMES = 60
"""Maximum frames climbed to find a line of the user. Heuristic: runs for thousands of operations a step."""
_MAX_CODES = 4096
"""Maximum code objects kept. Heuristic."""
_CODES: dict[int, tuple[CodeType, dict[int, str] | None]] = {}
"""Address of a code object, mapped to (the object, places by instruction); None for library code. Keeping the object
keeps its address valid. Finding the line of an instruction costs more than everything else.
"""


def users_lines(frame: FrameType | None) -> tuple[str, str]:
    """The innermost frame of the user and its caller, as `train.py:41 forward`; "" where there is none."""
    innermost = ""
    for _ in range(_MAX_FRAMES):
        if frame is None:
            break
        code = frame.f_code
        known = _CODES.get(id(code))
        if known is None:
            known = _meet(code)
        places = known[1]
        if places is not None:
            instruction = frame.f_lasti
            place = places.get(instruction)
            if place is None:
                place = places[instruction] = f"{at(code.co_filename, frame.f_lineno)} {code.co_name}"
            if innermost:
                return innermost, place
            innermost = place
        frame = frame.f_back
    return innermost, ""


def _meet(code: CodeType) -> tuple[CodeType, dict[int, str] | None]:
    if len(_CODES) > _MAX_CODES:
        _CODES.clear()
    known = _CODES[id(code)] = code, {} if is_users(code.co_filename) else None
    return known


_LEAVES = frozenset(
    (
        *("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_ABSOLUTE"),
        *("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"),
    )
)
"""Instructions after which the next one never runs."""
_READS_ANY = frozenset(("locals", "globals", "vars", "dir", "eval", "exec", "__import__", "breakpoint"))
"""Names of functions that may read a variable without naming it."""
_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))


def unread_variables(frame: FrameType) -> frozenset[str]:
    """Local variables that no instruction reads before setting them again, on any path from here.

    Variables of inner functions count as read, since those may run at any time; so do all variables if the function may
    read them by name, through `locals()` or `eval`. Only the position of the frame is read.
    """
    code = frame.f_code
    if not _READS_ANY.isdisjoint(code.co_names):
        return frozenset()
    names = {*code.co_varnames} - {*code.co_cellvars, *code.co_freevars}
    return frozenset(names - _read_after(code, frame.f_lasti, "FAST"))


def unread_globals(frame: FrameType) -> frozenset[str]:
    """Globals of a running script that its remaining code does not read; those that its functions name are excluded."""
    code = frame.f_code
    inner = {name for each in _inner(code) for name in each.co_names}
    if not _READS_ANY.isdisjoint((*code.co_names, *inner)):
        return frozenset()
    return frozenset({*code.co_names} - inner - _read_after(code, frame.f_lasti, "NAME|GLOBAL"))


def _inner(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _inner(constant)


def _read_after(code: CodeType, lasti: int, where: str) -> set[str]:
    """Names read after the instruction at `lasti` before they are set, on some path through the code."""
    listing = dis.Bytecode(code)
    instructions = list(listing)
    place = {instruction.offset: number for number, instruction in enumerate(instructions)}
    handlers = [(e.start, e.end, e.target) for e in getattr(listing, "exception_entries", ())]
    follow = [_follow(instructions, number, place, handlers) for number in range(len(instructions))]
    touched = [_touched(instruction, where) for instruction in instructions]
    names = sorted(set().union(*(reads for reads, _ in touched)))
    bit = {name: 1 << k for k, name in enumerate(names)}
    masks = [tuple(sum(bit.get(name, 0) for name in part) for part in both) for both in touched]
    before = [0] * len(instructions)  # sets of names as bits: a long script has thousands of instructions
    changed = True
    while changed:
        changed = False
        for number in range(len(instructions) - 1, -1, -1):
            reads, sets = masks[number]
            now = reads | (_after(before, follow[number]) & ~sets)
            changed = changed or now != before[number]
            before[number] = now
    here = max((number for offset, number in place.items() if offset <= lasti), default=-1)
    later = _after(before, follow[here] if here >= 0 else range(len(before)))
    return {name for name in names if later & bit[name]}


def _after(before: Sequence[int], follow: Iterable[int]) -> int:
    later = 0
    for number in follow:
        later |= before[number]
    return later


def _follow(
    instructions: list[dis.Instruction], number: int, place: Mapping[int, int], handlers: list[tuple[int, int, int]]
) -> list[int]:
    """The instructions that may run next: the following one, jump targets, exception handlers."""
    one = instructions[number]
    following = [number + 1] if one.opname not in _LEAVES and number + 1 < len(instructions) else []
    if one.opcode in _JUMPS:
        following.append(place[one.argval])
    return following + [place[target] for start, end, target in handlers if start <= one.offset < end]


def _touched(one: dis.Instruction, where: str) -> tuple[set[str], set[str]]:
    """Return (names read, names set or deleted); Python 3.13 and later have instructions for two variables."""
    if not re.search(f"_({where})", one.opname):
        return set(), set()
    argument: Any = one.argval
    names = argument if isinstance(argument, tuple) else (argument,)
    verbs = re.findall("LOAD|STORE|DELETE", one.opname)
    pairs = list(zip(verbs, names, strict=False))
    # an inlined comprehension saves and restores the variable of its name (LOAD_FAST_AND_CLEAR)
    return {name for verb, name in pairs if verb == "LOAD"}, {name for verb, name in pairs if verb != "LOAD"}
