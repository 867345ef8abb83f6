"""One rank: runs the user's script under a Recorder.

`leakscope.bootstrap` calls `main` with the words of the command line, `OPTIONS SCRIPT [ARGS]...`, as
`Options.to_words` wrote them. Neither torch nor numpy is imported before the script does it: what the script sets first
counts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from leakscope.bootstrap import own_imports
from leakscope.options import Options
from leakscope.originals import os, take
from leakscope.process import script_runner
from leakscope.process.children import bootstrap_module, current_process, follow_children
from leakscope.process.gc_control import no_automatic_gc
from leakscope.process.guard import Guard, in_forked_child
from leakscope.process.patches import Patches, without_compiling
from leakscope.process.user_code import adopt_script
from leakscope.process.watchdog import end_with_launcher, known_launcher, launcher_is_gone, yield_to_threads
from leakscope.recorder.steps.step_function import StepFunction
from leakscope.run.processes import link, write_who
from leakscope.run.rows import EndKind, StepSourceKind
from leakscope.run.secrets import conceal

if TYPE_CHECKING:
    from leakscope.process.written_files import WrittenFiles
    from leakscope.recorder.recorder import Recorder
    from leakscope.run.model import Ended

take()  # before the script, which may replace functions of Python

T = TypeVar("T")


class _Rank:
    """Creates the recorder once torch is imported."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.in_forked_child = in_forked_child()
        self.guard = Guard()
        self.patches = Patches(self.guard)
        self.recorder: Recorder | None = None
        self._written: WrittenFiles | None = None
        named = options.step_function
        self.step_function = None if named is None else StepFunction(named, self._step_function_returned)

    def prepare(self) -> tuple[CodeType, ModuleType]:
        """Compile the script and set up its `__main__`; wait for its `import torch`."""
        options, function = self.options, self.step_function
        if options.checksums:  # a repetition, perhaps with edited copies
            from leakscope.overlay import install_overlay
            from leakscope.process.written_files import WrittenFiles

            install_overlay(str(options.folder))
            self._written = WrittenFiles(options.folder)
            self._written.install()
        if function is not None:
            self.guard.call("wait for the step function", function.install, self.patches)
        prepared = script_runner.prepare(
            options.target,
            options.module is not None,
            list(options.arguments),
            None if function is None else self._compiled,
        )
        self.guard.call("location of the script", adopt_script, prepared[0].co_filename, options.module or "")
        self.patches.after_import("torch", self.begin)
        if options.process:
            self.guard.call("recording of child processes", self._follow)
        return prepared

    def _compiled(self, source: str | bytes, path: str, package: str = "") -> CodeType:
        plain = compile(source, path, "exec", dont_inherit=True)  # raises errors of the script
        assert self.step_function is not None
        stepping = self.guard.call("marking of the step function", self.step_function.compiled, source, path, package)
        return stepping or plain

    def _step_function_returned(self) -> None:
        if self.recorder is not None:
            self.guard.call("return of the step function", without_compiling, self._end_step)

    def _end_step(self) -> None:
        from leakscope.recorder.steps.detector import StepEnd

        assert self.recorder is not None
        self.recorder.step_ended(StepEnd(StepSourceKind.FUNCTION, self.options.step_function or ""))

    def _follow(self) -> None:
        """Make child processes of the script record themselves."""
        write_who(self.options.folder / self.options.process, current_process())
        link(self.options.folder)
        follow_children(self.options, self.patches)

    def begin(self) -> None:
        with own_imports():
            with no_automatic_gc():  # it would visit everything that torch has just created
                from leakscope.process.children import RankDiscovery
                from leakscope.recorder.recorder import Recorder

            if self._written is not None:
                self._written.watch_torch(self.patches)
            self.recorder = Recorder(self.options, self.patches)
            self.recorder.attach()
        if self.options.process:
            joining = RankDiscovery(
                self.options.folder, self.options.process, current_process(), self.recorder.member.join
            )
            self.recorder.member.first_step = self.guard.guarded("first step", joining.stepped)
            self.guard.call("rank discovery", joining.install, self.patches)
        end_with_launcher(self.options.launcher, by=None)  # from here on the watchdog checks

    def end(self, end: script_runner.End, error: BaseException | None) -> script_runner.End:
        """Record how the script ended; a rank that was stopped has not failed, whatever it raised afterwards."""
        if self.in_forked_child:
            return end
        recorder = self.recorder
        if recorder is not None and (
            recorder.stopped or (end.status and self._call_last("end of all ranks", recorder.is_over))
        ):
            end = script_runner.End(EndKind.STOPPED, 0)
            error = None
        words = self._call_last(
            "description of the error", script_runner.error_details, end, error, self.options.source
        )
        message, at, stack = words or ("", "", ())

        def ended(steps: int) -> Ended:
            with own_imports():
                from leakscope.run.model import Ended
                from leakscope.run.rank_end import orphaned_after

            if launcher_is_gone(self.options.launcher):  # and its exception is a consequence
                return orphaned_after(steps)
            return Ended(end.how, end.status, steps, message, stack, at=at)

        if recorder is not None:
            if self.step_function is not None and not self.step_function.seen:
                self.guard.call("missing step function", recorder.step_function_is_missing)
            recorder.failed(error)
            # a repetition is compared by its steps: what is alive at the end is not judged
            listed = end.how in (EndKind.FINISHED, EndKind.EXITED) and not self.options.checksums
            recorder.finish(ended, with_snapshot=listed)
        else:
            self._call_last("end without a recorder", self._end_without_recorder, ended)
        return end

    def _call_last(self, name: str, function: Callable[..., T], *args: Any) -> T | None:
        return self.guard.call(name, function, *args, even_lost=True)

    def _end_without_recorder(self, ended: Callable[[int], Ended]) -> None:
        with own_imports():
            from leakscope.run.rows import RecordingEnded
            from leakscope.run.writer import RankFolder

        folder = RankFolder(self.options.folder, self.options.rank, self.options.process)
        if self.guard.lost:
            folder.append(RecordingEnded(0, self.guard.why))
        else:
            folder.note("the script never imported torch in this process")
        folder.ended(ended(0))
        folder.close()


def main(arguments: list[str]) -> int:
    """Run the script; return its exit status or raise its exception."""
    options = Options.from_words(arguments)
    conceal(options.command)
    bootstrap_module().stop()  # for a run within another, the inner one records
    script_runner.hide_from_orig_argv(len(arguments))
    if options.under_elastic:
        options = replace(options, rank=int(os.environ["RANK"]), world=int(os.environ["WORLD_SIZE"]))
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    options = replace(options, launcher=known_launcher(options.launcher))
    end_with_launcher(options.launcher)
    rank = _Rank(options)
    module, error = None, None
    try:
        try:
            code, module = rank.prepare()
        except BaseException as raised:  # noqa: BLE001 - the end of the script ahead of its first line, raised again
            end, error = script_runner.end_of(raised), raised
        else:
            end, error = script_runner.execute(code, module)
        end = rank.end(end, error)
    finally:
        if not rank.in_forked_child:
            rank.patches.take_out()
            end_with_launcher(options.launcher)
    if module is not None:
        _keep(module)
    sys.excepthook = script_runner.trimmed_excepthook()
    yield_to_threads()
    if error is not None and end.how != EndKind.STOPPED:
        raise error
    return end.status


def _keep(module: ModuleType) -> None:
    # python clears __main__ only after threads and exit handlers that may still need it
    sys.modules["__main__"] = module
