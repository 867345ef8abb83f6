"""Runs the command line and the ranks that it starts as forks of one process that has imported what they need.

A copy has its own process id, streams, folder, environment and signals; only the start of Python and the imports are
left out. Torch is imported before the script does it: tests of that, of signals and of the end of the interpreter use
`leakscope_process`. Run as a script, this is the process that is copied.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NoReturn

from leakscope import bootstrap

IMPORTED = (
    "leakscope_cli.run",
    "leakscope_cli.report",
    "leakscope.recorder.__main__",
    "leakscope.recorder.recorder",
    "leakscope.findings",
    "leakscope.launch",
    "leakscope.profiler.repeats",
    "leakscope.report.html.page",
    "leakscope.report.text.page",
    "matplotlib.backends.backend_svg",
    "matplotlib.figure",
    "graphviz",
    "jinja2",
    "sympy",
    "torch._dynamo",
    "torch.distributed.launcher.api",
)
"""With everything that these import; an optimizer of torch imports `torch._dynamo`."""
READ_AT_IMPORT = ("PYTHON", "TORCH", "PYTORCH", "OMP_", "MKL_", "LD_", "MALLOC_")
"""Beginnings of the names of variables that Python, torch and the C library read when they are loaded."""
SET_FOR_RANKS = ("TORCHELASTIC_", "TORCH_NCCL_")
"""Beginnings of those that torch's launcher adds for each rank, read when a process group is made."""
STARTS_S = 120
"""Time limit of the imports, in seconds."""


class Preloaded:
    """The process that is copied; must be closed."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self._folder, self._calls = folder, 0
        asks, self._asks = os.pipe()
        self._answers, answers = os.pipe()
        command = [sys.executable, __file__, str(asks), str(answers)]
        self._process = subprocess.Popen(command, pass_fds=(asks, answers), stdin=subprocess.DEVNULL, env=dict(env))
        os.close(asks)
        os.close(answers)
        self._line(STARTS_S)

    def run(
        self,
        words: Sequence[str],
        folder: Path,
        env: Mapping[str, str],
        timeout: float,
        program: str = "leakscope",
        *,
        together: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """As `subprocess.run` of `python -m PROGRAM`, or of `python` with a script, with these words in that folder.

        With `together`, stderr is interleaved with stdout, as on a terminal.
        """
        self._calls += 1
        output_files = [self._folder / f"{self._calls}.{name}" for name in ("stdout", "stderr")]
        if together:
            output_files[1].touch()
        ask = {
            "words": [program, *words],
            "folder": str(folder),
            "env": dict(env),
            "output_files": [str(path) for path in output_files],
        }
        if together:
            ask["output_files"] = [str(output_files[0])] * 2
        os.write(self._asks, json.dumps(ask).encode() + b"\n")
        process = int(self._line(STARTS_S))
        try:
            status = int(self._line(timeout))
        except subprocess.TimeoutExpired:
            os.kill(process, signal.SIGKILL)
            self._line(STARTS_S)
            raise
        return subprocess.CompletedProcess([program, *words], status, *(path.read_text() for path in output_files))

    def close(self) -> None:
        os.close(self._asks)
        self._process.wait(STARTS_S)
        os.close(self._answers)

    def _line(self, timeout: float) -> str:
        if not select.select([self._answers], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("leakscope", timeout)
        line = b""
        while not line.endswith(b"\n"):
            read = os.read(self._answers, 1)
            assert read, "the process that is copied has ended"
            line += read
        return line.decode()


class Copies:
    """One preloaded process for each PYTHONPATH, as packages there may load themselves with torch."""

    def __init__(self, new_folder: Callable[[], Path]) -> None:
        self._new_folder = new_folder
        self._known: dict[str, Preloaded] = {}

    def __enter__(self) -> Copies:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._known.values():
            one.close()

    def run(
        self,
        words: Sequence[str],
        folder: Path,
        env: Mapping[str, str],
        timeout: float,
        program: str = "leakscope",
        *,
        together: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """As `Preloaded.run`."""
        path = env.get("PYTHONPATH", "")
        if path not in self._known:
            others = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
            self._known[path] = Preloaded(self._new_folder(), others | ({"PYTHONPATH": path} if path else {}))
        return self._known[path].run(words, folder, env, timeout, program, together=together)


def serve(asks: int, answers: int) -> None:
    """Start a copy for each line that is read; write its process id, then its status."""
    loaded_with = read_at_import(os.environ)
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    os.write(answers, b"ready\n")
    with os.fdopen(asks) as lines:
        for line in lines:
            child = os.fork()
            if child == 0:
                be_the_command(json.loads(line), loaded_with, (asks, answers))
            os.write(answers, b"%d\n" % child)
            os.write(answers, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def be_the_command(ask: dict[str, Any], loaded_with: dict[str, str], not_ours: Sequence[int]) -> NoReturn:
    """In the copy: do what `python -m leakscope`, or another program, does."""
    for number in not_ours:
        os.close(number)
    for number, path in zip((1, 2), ask["output_files"], strict=True):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    become(ask["folder"], ask["env"], ask["words"])
    subprocess.Popen._execute_child = copying(  # type: ignore[attr-defined]
        subprocess.Popen._execute_child,  # type: ignore[attr-defined]
        loaded_with,
    )
    program = ask["words"][0]
    if program.endswith(".py"):
        end_as(lambda: runpy.run_path(program, run_name="__main__"))
    end_as(lambda: runpy.run_module(program, run_name="__main__", alter_sys=True))


def read_at_import(env: Mapping[str, str]) -> dict[str, str]:
    return {k: v for k, v in env.items() if k.startswith(READ_AT_IMPORT) and not k.startswith(SET_FOR_RANKS)}


def become(folder: str, env: Mapping[str, str], words: Sequence[str]) -> None:
    """Set the folder, the environment and the command line of this process."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    sys.path[0] = folder
    sys.argv = list(words)


def end_as(main: Callable[[], object]) -> NoReturn:
    """Run this and end as the interpreter does, without its clean-up of modules."""
    status: Any = 0
    try:
        main()
    except SystemExit as end:
        status = end.code
    except BaseException as error:  # noqa: BLE001 - as at the end of any main
        status = 1
        while error.__traceback__ is not None and error.__traceback__.tb_frame.f_code.co_filename == __file__:
            error.__traceback__ = error.__traceback__.tb_next
        sys.excepthook(type(error), error, error.__traceback__)
    if isinstance(status, str):
        print(status, file=sys.stderr)
        status = 1
    with ExitStack() as last:
        last.callback(os._exit, int(status or 0))
        last.callback(sys.stderr.flush)
        last.callback(sys.stdout.flush)
        last.callback(atexit._run_exitfuncs)
        threading._shutdown()  # type: ignore[attr-defined]
    raise AssertionError("a process that has ended goes on")


def copying(starts: Callable[..., None], loaded_with: dict[str, str]) -> Callable[..., None]:
    """Wrap `Popen._execute_child`: ranks and `leakscope` become copies, all else a new program."""

    def execute_child(self: Any, args: Any, *rest: Any) -> None:
        (_, preexec, _, _, cwd, env, _, _, _, stdin, to_stdin, from_stdout, stdout, from_stderr, stderr) = rest[:15]
        wanted = os.environ if env is None else env
        ours = list(args[:2]) == [sys.executable, bootstrap.FILE] or args[0] == "leakscope"
        if not ours or preexec or read_at_import(wanted) != loaded_with:
            return starts(self, args, *rest)
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            if rest[-2]:
                os.setsid()
            be_what_is_started(args, cwd or os.getcwd(), dict(wanted), (stdin, stdout, stderr))
        self._child_created = True
        self._close_pipe_fds(stdin, to_stdin, from_stdout, stdout, from_stderr, stderr)
        return None

    return execute_child


def be_what_is_started(args: Sequence[str], folder: str, env: Mapping[str, str], streams: Sequence[int]) -> NoReturn:
    """In the copy of a launcher: do what the process of a rank does, or `leakscope` under another launcher."""
    for number, stream in enumerate(streams):
        if stream not in (-1, number):
            os.dup2(stream, number)
    os.closerange(3, 1024)
    for known in signal.valid_signals():
        if callable(signal.getsignal(known)):
            with suppress(OSError):
                signal.signal(known, signal.default_int_handler if known == signal.SIGINT else signal.SIG_DFL)
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    sys.excepthook = sys.__excepthook__
    sys.path.insert(0, "")  # the launcher has none of its own left there
    if args[0] == "leakscope":
        become(folder, env, args)
        end_as(lambda: runpy.run_module("leakscope", run_name="__main__", alter_sys=True))
    become(folder, env, args[1:])
    end_as(lambda: sys.exit(importlib.import_module("leakscope.recorder.__main__").main(list(args[2:]))))


if __name__ == "__main__":
    serve(*map(int, sys.argv[1:]))
