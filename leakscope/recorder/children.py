"""Records a process that the script started, from its first optimizer or process group on."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from typing import Any

from leakscope.bootstrap import own_imports
from leakscope.options import Options
from leakscope.originals import atexit, os
from leakscope.process import script_runner
from leakscope.process.children import RankDiscovery, current_process, options_in
from leakscope.process.gc_control import no_automatic_gc
from leakscope.process.guard import Guard, in_forked_child, is_the_scripts, write_to_stderr
from leakscope.process.patches import Patches
from leakscope.process.watchdog import Stop
from leakscope.run.model import Ended
from leakscope.run.processes import claim
from leakscope.run.rows import EndKind
from leakscope.run.secrets import conceal
from leakscope.shield import Block, PureBlock, nothing

_POOLS = ("multiprocessing.pool", "torch.multiprocessing.pool")
"""Modules whose parent processes wait forever for a worker that has exited (CPython Lib/multiprocessing/pool.py)."""


class StopChild(Stop, SystemExit):
    """Ends a child process so that its parent sees it finish normally."""


def attach(folder: str) -> None:
    """Record this process. An error of leakscope is one line on stderr, and the script continues."""
    try:
        with no_automatic_gc(), own_imports():
            conceal(sys.orig_argv)
            conceal(sys.argv)
            options = options_in(folder)
            process = claim(options.folder)
            Followed(replace(options, process=process, launcher=0, quiet=True)).begin()
    except Exception as error:
        if is_the_scripts(error):
            raise
        write_to_stderr(f"process {os.getpid()} is not recorded: {type(error).__name__}: {error}")


class Followed:
    """One followed process."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._in_forked_child = in_forked_child()
        self._guard = Guard()
        self._patches = Patches(self._guard)
        self._ended = False
        self._error: BaseException | None = None
        self._file = getattr(sys.modules.get("__main__"), "__file__", None)

    def begin(self) -> None:
        """Start recording, and register the end."""
        from leakscope.recorder.recorder import Recorder

        waited_for = self._options.steps is not None and _works_for_a_pool()
        options = self._options = replace(self._options, steps=None) if waited_for else self._options
        self._recorder = recorder = Recorder(options, self._patches)
        recorder.member.stop = StopChild
        joining = RankDiscovery(options.folder, options.process, current_process(), recorder.member.join)
        recorder.member.first_step = self._guard.guarded("first step", joining.stepped)
        recorder.attach()
        self._guard.call("rank discovery", joining.install, self._patches)
        if waited_for:
            recorder.member.note(
                "a multiprocessing.Pool worker is not stopped after --steps: its parent would wait for it forever"
            )
        self._call_at_end()

    def _call_at_end(self) -> None:
        multiprocessing = sys.modules.get("multiprocessing.process")
        if multiprocessing is not None and multiprocessing.parent_process() is not None:
            from multiprocessing.util import Finalize

            Finalize(None, self._end, exitpriority=-100)  # such a process does not reach its exit handlers
        atexit.register(self._end)
        self._patches.call_before(sys, "excepthook", self._uncaught)

    def _uncaught(self, _: type[BaseException], error: BaseException, *__: Any) -> None:
        self._error = error
        script_runner.trim(error)

    def _end(self) -> None:
        if self._ended or self._in_forked_child:
            return
        self._ended = True
        error, self._error = self._error or sys.exc_info()[1], None
        with self._main_file():
            self._guard.call("end of the process", self._write_the_end, error, even_lost=True)
        self._patches.take_out()

    def _main_file(self) -> PureBlock[None]:
        """Set `__main__.__file__`, which python has removed (CPython Python/pythonrun.c)."""
        names = vars(sys.modules["__main__"])
        if self._file is None or "__file__" in names:
            return Block(nothing, nothing)
        return Block(partial(names.__setitem__, "__file__", self._file), partial(names.pop, "__file__", None))

    def _write_the_end(self, error: BaseException | None) -> None:
        recorder = self._recorder
        error = _raised(error)
        end = script_runner.End(EndKind.FINISHED, 0) if error is None else script_runner.end_of(error)
        if recorder.stopped or (end.status and recorder.is_over()):
            end, error = script_runner.End(EndKind.STOPPED, 0), None
        how, (message, at, stack) = end, script_runner.error_details(end, error, self._options.source)

        def ended(steps: int) -> Ended:
            return Ended(how.how, how.status, steps, message, stack, at=at)

        recorder.failed(error)
        recorder.finish(ended, with_snapshot=end.how in (EndKind.FINISHED, EndKind.EXITED))


def _works_for_a_pool() -> bool:
    multiprocessing = sys.modules.get("multiprocessing.process")
    process = None if multiprocessing is None else multiprocessing.current_process()
    return getattr(getattr(process, "_target", None), "__module__", "") in _POOLS


def _raised(error: BaseException | None) -> BaseException | None:
    """The exception that ends the process: the one that `torch.multiprocessing` passed to its parent, if any."""
    if isinstance(error, SystemExit) and error.code and isinstance(error.__context__, Exception):
        return error.__context__
    return error
