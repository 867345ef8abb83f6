"""What does leakscope's own process do for those who ask by a signal? It passes the question on, and has it judged."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from leakscope import bootstrap
from leakscope.errors import Unreadable
from leakscope.record.folder import ASKED
from leakscope.record.live.answers import is_over, live_ranks
from leakscope.record.live.asked import ask, last_by_signal

_POLL_S = 1.0
"""Seconds, chosen, between two looks at whether there is something to judge: it takes a person longer to come by."""


@contextmanager
def asked_by_signal(folder: Path, judges: Callable[[], bool], quiet: bool) -> Iterator[None]:
    """While the block runs SIGUSR1 sent to this process asks all ranks of the run for a look, as it would end it else.

    Where it `judges`, as one of the launchers that share a folder does, what was asked by that signal, here or of a
    rank, is judged by a process of its own, into the run's `interim`.
    """
    before = signal.getsignal(signal.SIGUSR1)
    taken = before == signal.SIG_DFL and threading.current_thread() is threading.main_thread()
    if taken:
        signal.signal(signal.SIGUSR1, lambda *_: _ask(folder))
    over = threading.Event()
    thread = threading.Thread(target=_judge_what_is_asked, args=(folder, over, judges, quiet), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        if taken:
            signal.signal(signal.SIGUSR1, before)


def _ask(folder: Path) -> None:
    with suppress(OSError):  # the folder is full or gone: nobody would read the answer
        ask(folder, by_signal=True)


def _judge_what_is_asked(folder: Path, over: threading.Event, judges: Callable[[], bool], quiet: bool) -> None:
    judged = 0
    while not over.wait(_POLL_S):
        asked = last_by_signal(folder / ASKED)
        if asked <= judged:
            continue
        try:
            ranks = live_ranks(folder) if judges() else ()
        except (Unreadable, OSError, ValueError):  # the script has removed it
            return
        if not ranks:
            continue
        if is_over(ranks):
            return
        if all(rank.has_answered(asked) for rank in ranks):
            judged = asked
            _judge(folder, asked, over, quiet)


def _judge(folder: Path, asked: int, over: threading.Event, quiet: bool) -> None:
    """By another process: what judges takes memory, and this one may have little; it ends with the run."""
    words = [
        sys.executable,
        *bootstrap.command(
            bootstrap.COMMAND_LINE, ["look", "--answered", str(asked), *(["-q"] if quiet else []), str(folder)]
        ),
    ]
    try:
        judge = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    except OSError:  # no process, no file or no memory to be had: what is recorded is judged at the end
        return
    while judge.poll() is None:
        if over.wait(_POLL_S / 10):
            judge.terminate()
            judge.wait()
