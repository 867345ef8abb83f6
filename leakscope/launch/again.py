"""Repeats a recorded run, several times: `python [FLAGS] .../again.py [MODULE]...`.

Reads lines with the folder of a repetition, and writes a line with its process id and another once it has ended. The
folder has the options in `again.json`, which gets the result. With names of modules, these are imported once, and each
rank that is alone is a fork of this process, which starts the script anew: a repetition does not wait for the import of
torch. Without, each rank is a new Python.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any, NoReturn

NAME = "again.json"
STDOUT, STDERR = "stdout.txt", "stderr.txt"
"""Files of the folder with the output of the launcher, and of a rank that is alone."""


class _Fork:
    """A forked rank, as `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])

    def send_signal(self, sig: int) -> None:
        os.kill(self._pid, sig)


def _serve(modules: list[str], start: tuple[list[str], set[str]]) -> None:
    import importlib

    for name in modules:
        importlib.import_module(name)
    import leakscope.launch  # noqa: F401 - for the forks, too

    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _repeat(line.rstrip("\n"), bool(modules), start)
        sys.stdout.write(f"{child}\n")
        sys.stdout.flush()
        os.waitpid(child, 0)
        sys.stdout.write("ended\n")
        sys.stdout.flush()


def _repeat(folder: str, forks: bool, begun: tuple[list[str], set[str]]) -> NoReturn:
    """In a fork: launch the run, write the result."""
    from leakscope.errors import LeakscopeError
    from leakscope.launch import launch
    from leakscope.options import Options
    from leakscope.originals import Path, json

    os.setsid()
    place = Path(folder)
    for number, name in ((1, STDOUT), (2, STDERR)):
        file = os.open(place / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        os.dup2(file, number)
        os.close(file)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    options = Options.from_words(json.loads((place / NAME).read_text(encoding="utf-8"))["words"])
    result: dict[str, Any]
    try:
        result = {"status": launch(options, start=_forked(begun) if forks else None).status}
    except LeakscopeError as error:
        result = {"error": str(error)}
    (place / NAME).write_text(json.dumps(result), encoding="utf-8")
    sys.stderr.flush()
    os._exit(0)


def _forked(begun: tuple[list[str], set[str]]) -> Any:
    """Start a rank as a fork of this process, whose modules are those of a Python that has imported some."""

    def start(options: Any) -> _Fork:
        from dataclasses import replace

        launcher = os.getpid()
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
            _be_rank(replace(options, folder=options.folder.resolve(), launcher=launcher), begun)
        return _Fork(pid)

    return start


def _be_rank(options: Any, begun: tuple[list[str], set[str]]) -> NoReturn:
    """Run the script, and end as the interpreter does, without its clean-up of modules."""
    import atexit
    import threading

    from leakscope import bootstrap
    from leakscope.recorder.__main__ import main

    bootstrap.become_rank(*begun)
    sys.orig_argv = [sys.executable, *options.command]
    status: Any = 0
    try:
        status = main(options.to_words())
    except SystemExit as end:
        status = end.code
    except BaseException as error:  # noqa: BLE001 - as at the end of any main
        status = 1
        sys.excepthook(type(error), error, error.__traceback__)
    if isinstance(status, str):
        sys.stderr.write(f"{status}\n")
        status = 1
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit((status or 0) & 0xFF)


if __name__ == "__main__":
    _begun = (sys.path[0 if sys.flags.safe_path else 1 :], set(sys.modules))
    from leakscope.bootstrap import use_own_path

    use_own_path()  # without the folder of this file
    _serve(sys.argv[1:], _begun)
