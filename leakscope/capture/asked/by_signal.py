"""Was SIGUSR1 sent to this rank? It asks for a look, where the script does not answer it itself.

A handler of Python's would have the script's system calls interrupted, would not run while native code does, and would
be what `signal.getsignal` shows. So faulthandler's stands there, in C: it writes the stack of the main thread into a
file of the rank's, which is told even of a rank that is stuck in native code, and the file has grown.
"""

from __future__ import annotations

import faulthandler

from leakscope.capture.process.forks import call_in_forked_child
from leakscope.capture.process.patches import Patches
from leakscope.originals import Path, os, signal
from leakscope.record.descriptors import Descriptor

NAME = "asked_stacks.txt"
"""Where the rank's folder has the stacks."""
_SIGNAL = signal.SIGUSR1
_STATUS = Path("/proc/self/status")


class SignalHeard:
    """Listens from here on, where nobody else does; a handler that the script sets later takes the signal from us."""

    def __init__(self, path: Path, patches: Patches) -> None:
        self._path = path
        self._file: Descriptor | None = None
        self._size = 0
        self._listens = _is_free()
        if not self._listens:
            return
        patches.add("stack on SIGUSR1", self._leave)
        for name in ("register", "unregister"):
            patches.call_before(faulthandler, name, self._script_takes)
        call_in_forked_child(self._leave)
        self._register()

    def heard(self) -> bool:
        """Whether it came since this was asked last; to be asked at every tick."""
        if not self._listens:
            return False
        there = None if self._file is None else self._file.status()
        if there is None:  # the script has closed it, and opened one of its own by that number
            self._register()
            return False
        before, self._size = self._size, there.st_size
        return self._size > before

    def _register(self) -> None:
        try:
            self._file = Descriptor(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        except OSError:  # the disk is full, all files are open that may be, or the folder is gone
            self._leave()
            return
        self._size = 0
        if signal.getsignal(_SIGNAL) == signal.SIG_DFL:
            _REGISTER(_SIGNAL, file=self._file.number, all_threads=False, chain=False)

    def _script_takes(self, number: int = 0, *_: object, **more: object) -> None:
        if more.get("signum", number) == _SIGNAL:
            self._leave()

    def _leave(self) -> None:
        if not self._listens:
            return
        self._listens = False
        if signal.getsignal(_SIGNAL) == signal.SIG_DFL:  # else a handler of the script's would go
            _UNREGISTER(_SIGNAL)
        if self._file is not None:
            self._file.close()


_REGISTER, _UNREGISTER = faulthandler.register, faulthandler.unregister


def _is_free() -> bool:
    """Whether nothing in this process answers or ignores the signal, be it native code."""
    if signal.getsignal(_SIGNAL) != signal.SIG_DFL:
        return False
    try:
        lines = _STATUS.read_text().splitlines()
        masks = [int(line.split()[1], 16) for line in lines if line.startswith(("SigCgt:", "SigIgn:"))]
    except (OSError, ValueError, IndexError):  # no Linux: then what Python knows counts
        return True
    return not any(mask & 1 << (_SIGNAL - 1) for mask in masks)
