"""Makes a cut in a forked copy of the process and measures what it frees."""

from __future__ import annotations

import collections
import ctypes
import sys
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from leakscope.bootstrap import own_imports
from leakscope.graph.model import HeapGraph, ReferenceKind
from leakscope.graph.retained import freed_without, passing
from leakscope.heap.garbage import watch_storage
from leakscope.heap.referents import LRU_CACHE, forget_variable
from leakscope.heap.snapshot import LiveSnapshot, SnapshotContext, inspect
from leakscope.heap.storages import storage_object
from leakscope.originals import gc, json, os, select, signal
from leakscope.process.guard import CLOCK
from leakscope.process.raw_types import instance_dict, mro, type_dict
from leakscope.process.torch_compat import MODULE_DICTS, TensorBase
from leakscope.process.watchdog import end_with_launcher
from leakscope.run.model import Rank, Run
from leakscope.run.rows import Occasion

CANNOT = "Python cannot make this cut: only C++ holds the reference"


def cut(holder: Any, held: Any, kind: ReferenceKind, name: str) -> str:
    """Remove the reference; "" on success, else the reason why Python cannot.

    Only for a forked copy of the process: it changes the program.
    """
    cutter = _CUTTERS.get(kind)
    return cutter(holder, held, name) if cutter is not None else CANNOT


def _attribute(holder: Any, held: Any, name: str) -> str:
    if name == ".grad" and TensorBase in mro(type(holder)):
        TensorBase.grad.__set__(holder, None)
        return ""
    if type in mro(type(holder)):
        return _of_class(holder, held, name.removeprefix("."))
    names = holder if type(holder) is dict else _dict_of(holder)
    for values in (names or {}, *_module_dicts(names)):
        for key, value in list(values.items()):
            if value is held and name in (f".{key}", f"[{key}]"):
                dict.__delitem__(values, key)
                return ""
    return _descriptor(holder, name.removeprefix("."))


def _dict_of(holder: Any) -> dict[str, Any] | None:
    """The own dict of an instance, created if its attributes are stored inline."""
    if instance_dict(holder, type(holder)) is None:
        return None
    of_type = (type_dict(base).get("__dict__") for base in mro(type(holder)))
    own: dict[str, Any] = next(found for found in of_type if found is not None).__get__(holder)
    return own


def _of_class(holder: type, held: Any, name: str) -> str:
    if type_dict(holder).get(name) is not held:
        return f"Python cannot make this cut: attribute {name} of the class cannot be deleted"
    type.__delattr__(holder, name)
    return ""


def _module_dicts(names: dict[str, Any] | None) -> list[dict[str, Any]]:
    of_module = [(names or {}).get(key) for key in MODULE_DICTS]
    return [values for values in of_module if type(values) is dict]


def _descriptor(holder: Any, name: str) -> str:
    if name == "__traceback__" and isinstance(holder, BaseException):
        holder.__traceback__ = None
        return ""
    if name in ("__context__", "__cause__") and isinstance(holder, BaseException):
        setattr(holder, name, None)
        return ""
    for base in mro(type(holder)):
        descriptor = type.__dict__["__dict__"].__get__(base).get(name)
        if type(descriptor) is types.MemberDescriptorType:
            try:
                descriptor.__set__(holder, None)
                return ""
            except (AttributeError, TypeError):
                break
    return f"Python cannot make this cut: {name} of a {type(holder).__name__} cannot be set"


def _item(holder: Any, held: Any, _name: str) -> str:
    bases = mro(type(holder))
    if list in bases or collections.deque in bases:
        base: Any = list if list in bases else collections.deque
        for place in range(base.__len__(holder)):
            if base.__getitem__(holder, place) is held:
                base.__setitem__(holder, place, None)
        return ""
    if dict in bases:
        of_dict: Any = collections.OrderedDict if collections.OrderedDict in bases else dict
        for key, value in list(dict.items(holder)):
            if value is held:
                of_dict.__delitem__(holder, key)
        return ""
    if type(holder) is LRU_CACHE and type(held) is dict:
        LRU_CACHE.cache_clear(holder)
        return ""
    return f"Python cannot make this cut: a {type(holder).__name__} cannot be changed"


def _closure(holder: Any, _held: Any, name: str) -> str:
    for variable, cell in zip(holder.__code__.co_freevars, holder.__closure__ or (), strict=False):
        if f"closure {variable}" == name:
            del cell.cell_contents
            return ""
    return f"Python cannot make this cut: {holder.__qualname__} has no variable {name}"


def _local(holder: Any, held: Any, name: str) -> str:
    return "" if forget_variable(holder, name.removeprefix("local "), held) else CANNOT


def _hooks(_holder: Any, held: Any, _name: str) -> str:
    """Remove hooks as `remove()` of their handles does.

    A tensor whose hooks are set to None may keep them (python_variable.cpp).
    """
    if type(held) in (dict, collections.OrderedDict):
        held.clear()
        return ""
    return CANNOT


_CUTTERS: dict[ReferenceKind, Callable[[Any, Any, str], str]] = {
    ReferenceKind.ATTRIBUTE: _attribute,
    ReferenceKind.BUFFER: _attribute,
    ReferenceKind.ITEM: _item,
    ReferenceKind.CLOSURE: _closure,
    ReferenceKind.LOCAL: _local,
    ReferenceKind.HOOK: _hooks,
}


_ANSWER_TIMEOUT_S = 60.0
"""Seconds for a forked child to make one cut. Heuristic: 0.3 s for the samples; a twentieth would fail on a machine
that swaps.
"""
_ALL_TIMEOUT_S = 600.0
"""Seconds for all cuts of a run, each in its own child; enough for ten that do not answer."""
_NOTHING_KNOWN = SnapshotContext()
Answers = dict[str, int | str]


def verify_cuts(run: Run, rank: Rank, step: int, context: SnapshotContext = _NOTHING_KNOWN) -> Answers:
    """Map the fingerprint of each leak to the bytes its cut freed, or to the reason why it was not tried.

    `run` and `rank` are what is on disk so far; `context` is that of a snapshot. Everything happens in forked children;
    this process only waits.
    """
    if run.device != "cpu":
        return {}
    return _in_child(lambda: _cut_each(run, rank, step, context), _ALL_TIMEOUT_S) or {}


def _in_child(work: Any, timeout_s: float = _ANSWER_TIMEOUT_S) -> Any:
    """The JSON returned by `work()` in a forked child; None if the child dies or takes too long."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    parent, child = os.getpid(), os.fork()
    if child == 0:
        status = 1
        try:
            end_with_launcher(parent, signal.SIGKILL)
            os.close(reading)
            gc.disable()
            answer = json.dumps(work()).encode()
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(answer)
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    try:
        answer = _answer_of(reading, CLOCK.monotonic() + timeout_s)
    finally:
        os.close(reading)
        _end(child)
    try:
        return json.loads(answer)
    except ValueError:
        return None


def _answer_of(pipe: int, deadline: float) -> bytes:
    """What is written to the pipe until its other end is closed or the time is over."""
    chunks, ready = [], select.poll()  # select() does not accept descriptors from 1024 on
    ready.register(pipe, select.POLLIN)
    while (left := deadline - CLOCK.monotonic()) > 0 and ready.poll(left * 1000):
        chunk = os.read(pipe, 65536)
        if not chunk:
            break
        chunks.append(chunk)
    return b"".join(chunks)


def _end(child: int) -> None:
    """End a child and wait for it, without a limit: it cannot catch SIGKILL."""
    with suppress(ProcessLookupError, ChildProcessError):  # if the script ignores SIGCHLD the kernel has reaped it
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _cut_each(run: Run, rank: Rank, step: int, context: SnapshotContext) -> Answers:
    with own_imports():
        from leakscope.findings.build import judge_candidate
        from leakscope.findings.candidates import candidates_of
        from leakscope.findings.cut import best_cut
        from leakscope.findings.facts import Severity
        from leakscope.findings.grouping import judged_snapshots
        from leakscope.findings.merge import decide_severities, merge_findings, with_one_cut
        from leakscope.findings.thresholds import Thresholds

    answers: Answers = {}
    with inspect(step, Occasion.LAST, context) as live:
        earlier = [snapshot for snapshot in judged_snapshots(rank, run.warmup_of(rank)) if snapshot.step < step]
        candidates = candidates_of(rank, [*earlier, live.snapshot])
        thresholds = Thresholds.of(run, rank)
        judged = [judge_candidate(candidate, thresholds) for candidate in candidates]
        decide_severities(judged, thresholds)
        for first, *others in with_one_cut(judged):
            fingerprint = merge_findings([judged[place].finding for place in (first, *others)]).fingerprint
            here = [candidates[place] for place in (first, *others) if candidates[place].graph is live.snapshot.heap]
            held = [candidate.group for candidate in here]
            cuts = [(to_cut, each) for to_cut, _, each in map(best_cut, here)]
            references = tuple(dict.fromkeys(r for to_cut, each in cuts if to_cut is not None for r in each))
            if candidates[first].graph is not live.snapshot.heap:
                answers[fingerprint] = "garbage collection freed it before the last heap snapshot"
            elif judged[first].severity != Severity.LEAK or not references:
                continue
            elif any(to_cut is not None and to_cut.after_gc for to_cut, _ in cuts):
                answers[fingerprint] = "not tried: only gc would free the memory, and the forked copy does not collect"
            else:
                storages = [storage for group in held for storage in group.storages]
                answer = _in_child(lambda refs=references, storages=storages: _cut_one(live, refs, storages))
                answers[fingerprint] = "the forked copy did not answer" if answer is None else answer
    return answers


def _cut_one(live: LiveSnapshot, references: Sequence[int], storages: Sequence[int]) -> int | str:
    graph = live.snapshot.heap
    over = passing(graph)
    reason = _dangerous(graph, live.objects, [*references, *over.tolist()])
    if reason:
        return reason
    weak = [watch_storage(storage_object(live.objects[s]), int(graph.bytes[s])) for s in storages]
    jobs = []
    for reference in references:
        r = graph.reference(reference)
        jobs.append((live.objects[r.holder], live.objects[r.held], r.kind, r.name))
    waiting = [id(live.objects[held]) for held in graph.held[over].tolist()]
    live.objects.clear()
    live.swept.clear()  # the list in the frames above that holds the whole heap
    while jobs:
        holder, held, kind, name = jobs.pop()
        problem = cut(holder, held, kind, name)
        del holder, held
        if problem:
            return problem
    for address in waiting:  # the statement that waits in a frame never continues in this copy
        ctypes.pythonapi.Py_DecRef(ctypes.c_void_p(address))
    return sum(size for storage, size in weak if storage.expired())


def _dangerous(graph: HeapGraph, objects: Sequence[Any], references: Sequence[int]) -> str:
    """Why cutting might have effects outside the copy: a `__del__` or a weakref callback of an object
    that would die.
    """
    for index in np.flatnonzero(freed_without(graph, np.asarray(references, dtype=np.int64))).tolist():
        obj = objects[index]
        kind = type(obj)
        for base in mro(kind):
            if "__del__" in type.__dict__["__dict__"].__get__(base) and base.__flags__ & (1 << 9):
                return f"not tried: a {kind.__name__} that would be freed has a __del__ method"
        if _calls_outside(obj):
            return f"not tried: a {kind.__name__} that would be freed has a weakref callback"
    return ""


_HARMLESS = ("weakref", "leakscope", "torch")


def _calls_outside(obj: Any) -> bool:
    try:
        watching: Mapping[int, Any] | list[Any] = weakref.getweakrefs(obj)
    except TypeError:
        return False
    for reference in watching:
        if type(reference).__module__.partition(".")[0] == "leakscope":
            continue
        callback = getattr(reference, "__callback__", None)
        module = getattr(callback, "__module__", None) if callback is not None else "weakref"
        if not (isinstance(module, str) and module.partition(".")[0] in _HARMLESS):
            return True
    return False
