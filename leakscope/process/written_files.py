"""Keeps what the script's files were before it writes to them, in a process that repeats a run.

A repetition must not replace the checkpoint of a long training by that of its first steps. Each file is copied before
it is opened for writing, removed or replaced, and a journal in the folder of the run lists what to restore.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from leakscope.originals import Path, _thread, json, open_file, os, shutil, tempfile
from leakscope.process.patches import Patches

_FOLDER, _JOURNAL = "written", "journal.jsonl"
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_IGNORED = ("/dev/", "/proc/", "/sys/")
_CACHES = (f"{os.sep}__pycache__{os.sep}", f"{os.sep}.cache{os.sep}", f"{os.sep}torchinductor_")
"""Parts of paths of caches, which are valid in any run."""


class WrittenFiles:
    """Copies files before the script changes them."""

    def __init__(self, folder: Path) -> None:
        """Keep the copies in a folder of a run."""
        self._folder = Path(os.path.realpath(folder)) / _FOLDER
        self._run = os.path.realpath(folder) + os.sep
        self._temporary = os.path.realpath(tempfile.gettempdir()) + os.sep
        self._known: set[str] = set()
        self._busy = _thread._local()
        """Per thread, whether it is copying a file."""

    def install(self) -> None:
        """Watch this process and its forks from here on; an audit hook stays until it ends (PEP 578)."""
        self._folder.mkdir(parents=True, exist_ok=True)
        sys.addaudithook(self._audit)

    def watch_torch(self, patches: Patches) -> None:
        """Watch the imported torch: `torch.save` opens its file in C++ (torch/serialization.py)."""
        writer = getattr(sys.modules["torch"].serialization, "_open_zipfile_writer_file", None)
        if writer is not None:
            patches.call_before(writer, "__init__", lambda _, name, *__, **___: self.keep(name))

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _EVENTS:
            for path in _EVENTS[event](arguments):
                self.keep(path)

    def keep(self, path: Any) -> None:
        """Copy a file, once, unless it is in a cache; note one that does not exist.

        Raises OSError if it cannot be copied: the script must not overwrite it then.
        """
        if getattr(self._busy, "now", False) or not isinstance(path, (str, bytes, os.PathLike)):
            return
        self._busy.now = True
        try:
            self._keep(os.path.realpath(os.fsdecode(path)))
        finally:
            self._busy.now = False

    def _keep(self, real: str) -> None:
        if real in self._known or real.startswith((*_IGNORED, self._run)) or any(part in real for part in _CACHES):
            return
        is_temporary = real.startswith(self._temporary) and not os.getcwd().startswith(self._temporary)
        if is_temporary or (os.path.exists(real) and not os.path.isfile(real)):
            return
        copy = ""
        if os.path.exists(real):
            copy = str(self._folder / f"{os.getpid()}_{_thread.get_ident()}_{len(self._known)}")
            shutil.copy2(real, copy)
        with open_file(self._folder / _JOURNAL, "a", encoding="utf-8") as journal:
            journal.write(json.dumps([real, copy]) + "\n")
        self._known.add(real)


def _of_open(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    path, _, flags = arguments
    return (path,) if isinstance(flags, int) and flags & _WRITES else ()


_EVENTS: dict[str, Callable[[tuple[Any, ...]], tuple[Any, ...]]] = {
    "open": _of_open,
    "os.remove": lambda arguments: arguments[:1],
    "os.truncate": lambda arguments: arguments[:1],
    "os.rename": lambda arguments: arguments[:2],
    "os.link": lambda arguments: arguments[1:2],
    "os.symlink": lambda arguments: arguments[1:2],
}
"""Audit events of functions that change a file, mapped to the paths in their arguments."""


def restore_written_files(folder: Path) -> list[str]:
    """Restore what the processes of a run have changed, and remove files that they have created.

    Args:
        folder: The folder of the run, which has ended.

    Returns:
        The files that could not be restored.

    """
    kept = folder / _FOLDER
    try:
        lines = (kept / _JOURNAL).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    failed, seen = list[str](), set[str]()
    for line in lines:  # of several processes that wrote one file the first saw the original
        path, copy = json.loads(line)
        if path in seen:
            continue
        seen.add(path)
        try:
            if copy:
                shutil.copy2(copy, path)
            else:
                os.unlink(path)
        except FileNotFoundError:
            continue
        except OSError:
            failed.append(path)
    shutil.rmtree(kept, ignore_errors=True)
    return failed
