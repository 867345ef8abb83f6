"""Child processes: they inherit the recording and are joined to the run."""

from __future__ import annotations

import hashlib
import multiprocessing.process
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

from leakscope.options import Options, launchers_number
from leakscope.originals import Path, os
from leakscope.process.frames import users_line
from leakscope.process.guard import CLOCK
from leakscope.process.patches import Patches
from leakscope.run.descriptors import open_private
from leakscope.run.processes import ProcessInfo, link, write_who
from leakscope.run.rows import StartedProcess
from leakscope.run.secrets import masked
from leakscope.run.writer import write_json


def current_process() -> ProcessInfo:
    """The identity of this process before it joins a group."""
    multiprocessing = sys.modules.get("multiprocessing.process")
    place = () if multiprocessing is None else tuple(multiprocessing.current_process()._identity)
    rank, world = (launchers_number(os.environ, *variable) for variable in (("RANK", -1), ("WORLD_SIZE", 1)))
    return ProcessInfo(
        os.getpid(), os.getppid(), CLOCK.wall_time(), place, rank if 0 <= rank < world else None, max(world, 1)
    )


OPTIONS = ".follow.json"
"""File in the run's folder with the options of followed processes and the command line shown in the report."""


def bootstrap_module() -> Any:
    """The module that a followed process starts with, loaded once."""
    return sys.modules.get("leakscope_following") or import_module("leakscope.process.site.leakscope_following")


def follow_children(options: Options, patches: Patches) -> None:
    """Make child processes of this one, the first, follow the recording. Raises OSError."""
    folder = options.folder
    encoded, *command = options.to_words()
    write_json(folder / OPTIONS, [encoded, *masked(command)])
    following = bootstrap_module()
    following.follow(str(folder))
    for owner, name, made in following.places():
        patches.replace(owner, name, made)
    patches.add("following of children", following.stop)


def options_in(folder: str) -> Options:
    """The options for followed processes of this run. Raises Unreadable or ValueError."""
    from leakscope.files import read_json

    return Options.from_words(read_json(Path(folder) / OPTIONS))


def is_followed(program: str, words: Sequence[str]) -> bool:
    """Whether this process was started as a followed Python."""
    return bool(bootstrap_module().is_followed(program, words))


def environment() -> dict[str, str]:
    """The variables that a followed process adds to the environment; empty if none is followed."""
    variables: dict[str, str] = bootstrap_module().variables()
    return variables


_MAX_NOTED = 64
"""Maximum number of recorded processes. Heuristic: a pool may start one for each of thousands of tasks."""


class OwnProcesses:
    """Counts Python processes that the script starts and that are not followed, except DataLoader workers."""

    def __init__(
        self, note: Callable[[StartedProcess], object], followed: Callable[[str, Sequence[str]], bool] | None = None
    ) -> None:
        """`followed` says whether a program with these arguments is followed; None if none is."""
        self.count = 0
        self._followed = followed
        self._note_it = note

    def install(self, patches: Patches) -> None:
        """Watch `multiprocessing` and `subprocess`."""
        patches.call_before(multiprocessing.process.BaseProcess, "start", self._of_multiprocessing)
        patches.call_before(subprocess.Popen, "__init__", self._of_subprocess)

    def _of_multiprocessing(self, process: Any, *_: Any, **__: Any) -> None:
        if self._followed is not None:
            return
        from leakscope.process.torch_compat import LOADER_WORKERS  # which imports torch

        target = getattr(process, "_target", None)
        if getattr(target, "__module__", "") != LOADER_WORKERS:
            self._note(_through(process))

    def _of_subprocess(self, _: Any, args: Any = None, *__: Any, **given: Any) -> None:
        words = [str(word) for word in (args if isinstance(args, (list, tuple)) else str(args).split())]
        if not words or not _starts_python(words):
            return
        program = str(given.get("executable") or words[0])
        if given.get("shell") or self._followed is None or not self._followed(program, words):
            self._note("subprocess")

    def _note(self, through: str) -> None:
        self.count += 1
        if self.count <= _MAX_NOTED:
            self._note_it(StartedProcess(through, users_line(sys._getframe(2))))


def _through(process: Any) -> str:
    """`torch.multiprocessing.spawn`, or else the module that starts the processes."""
    target = getattr(process, "_target", None)
    of_spawn = getattr(target, "__module__", "") == "torch.multiprocessing.spawn"
    return "torch.multiprocessing.spawn" if of_spawn else "multiprocessing"


def _starts_python(words: Sequence[str]) -> bool:
    from leakscope.process.torch_compat import COMPILE_WORKERS

    if any("multiprocessing.resource_tracker" in word or COMPILE_WORKERS in word for word in words):
        return False
    program = os.path.basename(words[0])
    return (
        words[0] == sys.executable or program.startswith("python") or program in ("torchrun", "accelerate", "deepspeed")
    )


class RankDiscovery:
    """Tells the recorder of a process its rank as soon as it is known."""

    def __init__(self, folder: Path, process: str, who: ProcessInfo, join: Callable[[int, int, Path], object]) -> None:
        """`join` receives rank, world size, and the file in which the ranks of that group publish their state."""
        self._folder, self._process, self.who, self._join = folder, process, who, join
        self._joined = False

    def install(self, patches: Patches) -> None:
        """Wait for `init_process_group`; join at once if the group exists."""
        import torch  # not ahead of the script, which may set what torch reads when it is imported

        self._write_process()
        if not torch.distributed.is_available():
            return
        if torch.distributed.is_initialized():
            self._in_group()
            return
        patches.call_before(torch.distributed, "init_process_group", self._before)
        patches.call_after(torch.distributed, "init_process_group", self._in_group)

    def _before(self, *args: Any, **kwargs: Any) -> None:
        given = dict(zip(("backend", "init_method", "timeout", "world_size", "rank"), args, strict=False)) | kwargs
        rank, world = given.get("rank", -1), given.get("world_size", -1)
        rank = rank if type(rank) is int and rank >= 0 else launchers_number(os.environ, "RANK", -1)
        world = world if type(world) is int and world > 0 else launchers_number(os.environ, "WORLD_SIZE", -1)
        if 0 <= rank < world:
            self._be(rank, world, str(given.get("init_method") or ""))

    def _in_group(self, *_: Any, **__: Any) -> None:
        import torch

        self._be(torch.distributed.get_rank(), torch.distributed.get_world_size(), "")

    def _be(self, rank: int, world: int, method: str) -> None:
        if self._joined:
            return
        self._joined = True
        self.who = replace(self.who, rank=rank, world=world, trained=True)
        if world > 1:
            self._join(rank, world, self._board(rank, _name_of(method, os.environ)))
        self._write_process()

    def stepped(self) -> None:
        """Called after the first step."""
        if not self.who.trained:
            self.who = replace(self.who, trained=True)
            self._write_process()

    def _write_process(self) -> None:
        write_who(self._folder / self._process, self.who)
        link(self._folder)

    def _board(self, rank: int, name: str) -> Path:
        """The file of this group; the next one if this rank has used one of that name, as before a restart."""
        for generation in range(1 << 20):
            path = self._folder / f".group_{name}_{generation}"
            try:
                os.close(open_private(f"{path}_{rank}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            return path
        raise FileExistsError(name)


def _name_of(method: str, environment: Mapping[str, str]) -> str:
    """A name that all members of a group derive before they communicate."""
    known = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
    values = [method] if method not in ("", "env://") else [environment.get(name, "") for name in known]
    return hashlib.sha256("\n".join(values).encode()).hexdigest()[:16]
