"""Cuts the blamed reference in a forked copy of the process, and measures what really goes free."""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from leakscope.bootstrap import own_imports
from leakscope.capture.heap.garbage import watch_storage
from leakscope.capture.heap.look import Live, LookContext, inspect
from leakscope.capture.heap.native.storages import storage_object
from leakscope.capture.heap.raw_types import mro
from leakscope.capture.process.clock import CLOCK
from leakscope.capture.process.watchdog import end_with_launcher
from leakscope.capture.prove.cut import cut
from leakscope.graph.model import HeapGraph
from leakscope.graph.retained import freed_without, passing
from leakscope.originals import gc, json, os, select, signal
from leakscope.record.kinds import Occasion
from leakscope.record.model import Rank, Run

_ANSWER_TIMEOUT_S = 60.0
"""Seconds in which a forked child makes one cut. Heuristic: it took 0.3 s for the samples; a twentieth would fail on a
machine that swaps."""
_ALL_TIMEOUT_S = 600.0
"""Seconds in which all cuts of a run are tried, each in a child of its own; ten that do not answer fit."""
_NOTHING_KNOWN = LookContext()
Answers = dict[str, int | str]


def prove(run: Run, rank: Rank, step: int, context: LookContext = _NOTHING_KNOWN) -> Answers:
    """Fingerprint of each leak to the bytes its cut really freed, or to the reason why it was not tried.

    `run` and `rank` are what is on disk so far; `context` is what a look is given. Everything happens in forked
    children; this process only waits.
    """
    if run.device != "cpu":
        return {}
    return _in_child(lambda: _cut_each(run, rank, step, context), _ALL_TIMEOUT_S) or {}


def _in_child(work: Any, timeout_s: float = _ANSWER_TIMEOUT_S) -> Any:
    """The JSON that `work()` returns in a forked child; None when the child dies or takes longer than that."""
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
    """What is written into the pipe until its other end is closed or the time is over."""
    chunks, ready = [], select.poll()  # select() takes no descriptor from 1024 on
    ready.register(pipe, select.POLLIN)
    while (left := deadline - CLOCK.monotonic()) > 0 and ready.poll(left * 1000):
        chunk = os.read(pipe, 65536)
        if not chunk:
            break
        chunks.append(chunk)
    return b"".join(chunks)


def _end(child: int) -> None:
    """End a child, which has answered or never will, and wait for it.

    A killed process is waited for without a limit: it cannot catch SIGKILL.
    """
    with suppress(ProcessLookupError, ChildProcessError):  # where the script ignores SIGCHLD the kernel has waited
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _cut_each(run: Run, rank: Rank, step: int, context: LookContext) -> Answers:
    with own_imports():
        from leakscope.findings.build import build_finding
        from leakscope.findings.cut.best_cut import best_cut
        from leakscope.findings.grouping.bounds import downgraded
        from leakscope.findings.grouping.candidates import candidates_of
        from leakscope.findings.grouping.looks import judged_looks
        from leakscope.findings.kinds import Severity
        from leakscope.findings.merge import merge_findings, weighed_together, with_one_cut
        from leakscope.findings.thresholds import Thresholds

    answers: Answers = {}
    with inspect(step, Occasion.LAST, context) as live:
        earlier = [look for look in judged_looks(rank, run.warmup_of(rank)) if look.step < step]
        candidates = candidates_of(rank, [*earlier, live.look])
        thresholds = Thresholds.of(run, rank)
        built = [build_finding(candidate, thresholds) for candidate in candidates]
        weighed = weighed_together(built, candidates, thresholds)
        findings = [downgraded(finding, candidate) for finding, candidate in zip(weighed, candidates, strict=True)]
        for first, *others in with_one_cut(findings):
            fingerprint = merge_findings([findings[place] for place in (first, *others)]).fingerprint
            here = [candidates[place] for place in (first, *others) if candidates[place].graph is live.look.heap]
            held = [candidate.group for candidate in here]
            cuts = [(to_cut, each) for to_cut, _, each in map(best_cut, here)]
            references = tuple(dict.fromkeys(r for to_cut, each in cuts if to_cut is not None for r in each))
            if candidates[first].graph is not live.look.heap:
                answers[fingerprint] = "gc had freed it before the last look"
            elif findings[first].severity != Severity.LEAK or not references:
                continue
            elif any(to_cut is not None and to_cut.after_gc for to_cut, _ in cuts):
                answers[fingerprint] = "not tried: only gc frees what the cut leaves, and a copy does not collect"
            else:
                storages = [storage for group in held for storage in group.storages]
                answer = _in_child(lambda refs=references, storages=storages: _cut_one(live, refs, storages))
                answers[fingerprint] = "the forked copy did not answer" if answer is None else answer
    return answers


def _cut_one(live: Live, references: Sequence[int], storages: Sequence[int]) -> int | str:
    graph = live.look.heap
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
    _let_go_of_everything(live)
    while jobs:
        holder, held, kind, name = jobs.pop()
        problem = cut(holder, held, kind, name)
        del holder, held
        if problem:
            return problem
    for address in waiting:  # the statement that waits in a frame never goes on in this copy
        ctypes.pythonapi.Py_DecRef(ctypes.c_void_p(address))
    return sum(size for storage, size in weak if storage.expired())


def _let_go_of_everything(live: Live) -> None:
    """Empty the lists of the look that is still going on in the frames above: they hold the whole heap."""
    for holds in live.holding:
        holds.clear()


def _dangerous(graph: HeapGraph, objects: Sequence[Any], references: Sequence[int]) -> str:
    """Why cutting might reach outside the copy: a `__del__` or a weakref callback of an object that would die."""
    for index in np.flatnonzero(freed_without(graph, np.asarray(references, dtype=np.int64))).tolist():
        obj = objects[index]
        kind = type(obj)
        for base in mro(kind):
            if "__del__" in type.__dict__["__dict__"].__get__(base) and base.__flags__ & (1 << 9):
                return f"not tried: a {kind.__name__} that would die has a __del__"
        if _calls_outside(obj):
            return f"not tried: a weakref callback watches a {kind.__name__} that would die"
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
