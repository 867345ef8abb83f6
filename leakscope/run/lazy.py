"""Ranks and heaps that are read when they are first used."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from dataclasses import fields, replace
from typing import Any, TypeVar

from leakscope.errors import LeakscopeError, Unreadable
from leakscope.files import read_json
from leakscope.graph.model import HeapGraph
from leakscope.graph.serialize import from_json
from leakscope.originals import Path, os, signal
from leakscope.run.model import Rank, Run
from leakscope.run.rank_end import rank_name
from leakscope.run.reader import OpenRun
from leakscope.run.writer import look_name

_COLUMNS = frozenset(field.name for field in fields(HeapGraph))


class HeapLater(HeapGraph):
    """A heap graph that is read from the file of its look when something of it is asked for, and kept from then on.

    What is asked raises Unreadable where the file is gone by then, or has become another.
    """

    def __init__(self, file: Path) -> None:
        self.__dict__["_file"] = file

    def __getattr__(self, name: str) -> Any:
        if name not in _COLUMNS:
            raise AttributeError(name)
        file: Path = self.__dict__["_file"]
        try:
            self.__dict__.update(vars(from_json(read_json(file)["heap"])))
        except (Unreadable, ValueError, KeyError, TypeError) as error:
            raise Unreadable(f"{file} cannot be read any more: {error}") from None
        return self.__dict__[name]


def without_heaps(rank: Rank, folder: Path) -> Rank:
    """A rank that was read from a folder, the heaps of its looks to be read again by who asks for them."""
    looks = tuple(replace(look, heap=HeapLater(folder / look_name(look))) for look in rank.looks)
    return replace(rank, looks=looks)


T = TypeVar("T")
Work = Callable[[Run, Rank], T]
"""Of a run without its ranks and one of them; a function of a module, whose answer can be pickled."""

RANKS_A_PROCESS = 4
"""Ranks for which another process is worth its start; chosen: reading and judging one took 40 ms, a start 30."""
MOST_PROCESSES = 8
"""Chosen: each has the heaps of one rank in its memory."""
_PR_SET_PDEATHSIG = 1
"""Of prctl(2), in Linux's linux/prctl.h: the signal that a process gets when its parent ends."""


def read_each(opened: OpenRun, work: Work[T], processes: int | None = None) -> tuple[Run, tuple[T, ...]]:
    """The run, the heaps of its looks to be read again by who asks for them, and what `work` says of each rank.

    Each rank is read once, and what is found is the same whatever the number of processes that read.

    Args:
        opened: the run's folder.
        work: is asked of each rank while its heaps are there.
        processes: that read at the same time; None for as many as are worth their start, 1 for this one alone.

    Raises:
        LeakscopeError: a process that read was ended from outside.

    """
    count = processes_for(len(opened.numbers)) if processes is None else processes
    with closing(_in_turn(opened, work) if count <= 1 else _in_processes(opened, work, count)) as answers:
        found = {rank.number: (rank, answer) for rank, answer in answers}
    run = opened.with_ranks(rank for rank, _ in found.values())
    return run, tuple(found[r.number][1] if r.number in found else work(opened.run, r) for r in run.ranks)


def processes_for(ranks: int) -> int:
    """How many processes read so many ranks; one, this one, where it may not be forked: it has threads, or the system
    does not take forks well.
    """
    if threading.active_count() > 1 or ranks < 2 * RANKS_A_PROCESS or sys.platform != "linux":
        return 1
    return min(len(os.sched_getaffinity(0)), ranks // RANKS_A_PROCESS, MOST_PROCESSES)


def _in_turn(opened: OpenRun, work: Work[T]) -> Generator[tuple[Rank, T]]:
    for number in opened.numbers:
        yield _read(opened, work, number)


def _read(opened: OpenRun, work: Work[T], number: int) -> tuple[Rank, T]:
    rank = opened.rank(number)
    answer = work(opened.run, rank)
    return without_heaps(rank, opened.folder / rank_name(number)), answer


def _in_processes(opened: OpenRun, work: Work[T], count: int) -> Generator[tuple[Rank, T]]:
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    # forked, so that they need not import numpy again: there is no other thread that could hold a lock
    pool = ProcessPoolExecutor(count, get_context("fork"), _begin, (opened, work, os.getpid()))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # Python 3.12 counts the threads of OpenBLAS, which wait
            answers = pool.map(_read_here, opened.numbers)
        yield from answers
    except BrokenProcessPool:
        raise LeakscopeError(
            "a process that read the ranks was ended from outside, most likely for want of memory; "
            "try it where there is more"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


_given: list[tuple[OpenRun, Work[Any]]] = []
"""In a process that reads, the run and what is asked of its ranks."""


def _begin(opened: OpenRun, work: Work[Any], parent: int) -> None:
    """To be called in each new process, which ends with its parent, and at Ctrl-C without a word."""
    _given.append((opened, work))
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with suppress(Exception):  # no ctypes: then it ends when it has read its rank
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it went before that was set
        os._exit(1)


def _read_here(number: int) -> tuple[Rank, Any]:
    (opened, work) = _given[0]
    return _read(opened, work, number)
