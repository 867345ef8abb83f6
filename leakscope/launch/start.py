"""Starts the ranks of a run, or joins a job that another launcher started."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from leakscope.bootstrap import FILE
from leakscope.errors import LaunchFailed, Unreadable
from leakscope.launch.elastic import run_under_elastic, signals_kept
from leakscope.launch.outcome import (
    Outcome,
    assigned_ranks,
    collect_outcome,
    count_oom_kills,
    outcome_of_statuses,
    remove_leftovers,
    statuses_by_rank,
    with_status_of_main,
)
from leakscope.launch.repeat import LaunchRecord
from leakscope.options import Options
from leakscope.run.model import read_header
from leakscope.run.multi_node import Job, job_here, machines, ranks_elsewhere
from leakscope.run.processes import MAIN
from leakscope.run.rank_end import ended_file, rank_name, ranks_in
from leakscope.run.secrets import conceal
from leakscope.run.writer import REQUEST_FILE, initial_header, make_private, write_run

_VARIABLES = (
    ("RANK", "WORLD_SIZE", "", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "", "MPI_LOCALNRANKS"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_ID", "SLURM_NTASKS_PER_NODE"),
)
"""(rank, world size, further required variable, local world size), as set by torchrun, Open MPI, MPICH and Slurm."""


@dataclass(frozen=True)
class ExternalLauncher:
    """The place of this process in a job of another launcher."""

    rank: int
    world: int
    machines: int = 1
    """Number of machines, with equally many ranks each; 1 if unknown."""


def outside_launcher(environment: Mapping[str, str]) -> ExternalLauncher | None:
    """The rank that torchrun, MPI or Slurm assigned to this process; None without a launcher.

    Raises LaunchFailed if both variables of a launcher are set but invalid.
    """
    for rank, world, needed, local in _VARIABLES:
        values = (environment.get(rank, ""), environment.get(world, ""))
        if not all(values) or (needed and needed not in environment):
            continue
        numbers = [int(number) if number.isascii() and number.isdigit() else -1 for number in values]
        if not 0 <= numbers[0] < numbers[1]:
            raise LaunchFailed(
                f"{rank}={values[0]} and {world}={values[1]} in the environment are not a valid rank; unset them, "
                "or use --ranks N to start a separate run"
            )
        if numbers[1] > 1:
            return ExternalLauncher(numbers[0], numbers[1], _machines(numbers[1], environment.get(local, "")))
    return None


def _machines(world: int, local: str) -> int:
    here = int(local) if local.isascii() and local.isdigit() else 0
    return world // here if here and world % here == 0 else 1


def interpreter_flags() -> list[str]:
    """Interpreter options of this process, such as `-O`, `-X dev` or `-W error`.

    Taken from the command line or, if it does not contain `-m leakscope`, as `multiprocessing` does for its processes.
    """
    words = sys.argv[1:]
    before = sys.orig_argv[1 : len(sys.orig_argv) - len(words)]
    if sys.orig_argv[len(before) + 1 :] == words:
        if before[-2:] == ["-m", "leakscope"]:
            return before[:-2]
        if before[-1:] == sys.argv[:1]:  # the console script, whose first line may contain options
            return before[:-1]
    return subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined,no-any-return]


_MARK = ".git"
"""The folder, or file in a separate work tree, at the root of a repository."""


def in_repository(script: str) -> dict[str, str]:
    """Working folder and script, relative to the root of the repository that contains the script, else the folder:
    `{"folder": "examples", "script": "examples/train.py"}`; paths outside are omitted, and all without a repository.

    Args:
        script: Its path; "" if a module is run.

    """
    try:
        folder = Path.cwd().resolve()
        file = (folder / script).resolve() if script else folder
        root = next((above for start in (file, folder) for above in (start, *start.parents) if _is_root(above)), None)
    except OSError:
        return {}
    if root is None:
        return {}
    paths = {"folder": folder, **({"script": file} if script else {})}
    return {name: path.relative_to(root).as_posix() for name, path in paths.items() if path.is_relative_to(root)}


def _is_root(folder: Path) -> bool:
    return os.path.lexists(folder / _MARK)


_PEERS_TIMEOUT_S = 10.0
"""Seconds that rank 0 of another launcher waits for the other ranks to record their end; as the grace period."""
_SECOND_INTERRUPT_S = 1.0
"""Seconds after which a second Ctrl-C counts as intended. Heuristic."""
_POLL_S = 0.1
"""Seconds between two checks for that."""


class Process(Protocol):
    """The process of a rank, as `subprocess.Popen` has it."""

    def wait(self) -> int:
        """Wait for its end; the status, negative for a signal."""

    def send_signal(self, sig: int) -> None:
        """Send it a signal."""


def launch(
    options: Options,
    meanwhile: Callable[[], object] | None = None,
    start: Callable[[Options], Process] | None = None,
) -> Outcome:
    """Run the ranks to their end, which is then recorded in the outcome's folder.

    Args:
        options: The options of the run.
        meanwhile: Called once a rank that is alone on its machine has started, without waiting.
        start: Starts the process of such a rank; a new Python by default.

    Raises:
        LaunchFailed: The ranks could not be started.

    """
    options = replace(options, world=options.ranks * options.nnodes)
    if options.follow and options.world == 1:
        options = replace(options, process=MAIN)
    conceal(options.command)
    _write_run(options)
    ended_before = count_oom_kills()
    if options.nnodes == 1:
        options.rank_state.unlink(missing_ok=True)
    if options.node_rank == 0:
        (options.folder / REQUEST_FILE).unlink(missing_ok=True)
    if options.world == 1:
        codes = {0: _run_alone(options, meanwhile, start)}
    else:
        codes = run_under_elastic(options, rank_command(replace(options, under_elastic=True)))
    outcome = _outcome(options, codes, oom_kills=count_oom_kills() - ended_before)
    if options.nnodes == 1:
        remove_leftovers(options.folder)
        with suppress(OSError):
            options.rank_state.unlink(missing_ok=True)
            (options.folder / REQUEST_FILE).unlink(missing_ok=True)
        shutil.rmtree(options.turns, ignore_errors=True)
    return outcome


def launch_inside(options: Options, outside: ExternalLauncher) -> Outcome:
    """Run this process as one rank of another launcher's job; only its own folder is replaced."""
    options = replace(options, rank=outside.rank, world=outside.world)
    conceal(options.command)
    own = options.folder / rank_name(options.rank)
    if own.exists():
        shutil.rmtree(own)
    _write_run(options, outside)
    with suppress(OSError):  # reported there by the rank itself
        make_private(own)  # announces that its machine records into this folder, whatever happens to the rank
    if options.rank == 0:
        (options.folder / REQUEST_FILE).unlink(missing_ok=True)
    code = _run_alone(options)
    if options.rank == 0:
        _wait_for_peers(options)
    return _outcome(options, {options.rank: code}, outside)


def _outcome(
    options: Options, codes: Mapping[int, int], outside: ExternalLauncher | None = None, oom_kills: int = 0
) -> Outcome:
    """How it ended; where the folder cannot be written, as far as it can be read."""
    only = None if outside is None else options.rank
    assignment = assigned_ranks(options)
    by_rank = statuses_by_rank(assignment, codes)
    unwritable = ""
    try:
        try:
            outcome = collect_outcome(options.folder, by_rank, only, oom_kills)
        except OSError as error:
            unwritable = error.strerror or str(error)
            outcome = collect_outcome(options.folder, by_rank, only, oom_kills, read_only=True)
    except Unreadable:  # the script has removed it; its own end is reported all the same
        return outcome_of_statuses(codes)
    return replace(with_status_of_main(assignment, codes, outcome), unwritable=unwritable)


def _wait_for_peers(options: Options) -> None:
    deadline = time.monotonic() + _PEERS_TIMEOUT_S
    try:
        header, there = read_header(options.folder), ranks_in(options.folder)
        elsewhere = ranks_elsewhere(options.folder, header, options.world, there)
    except (Unreadable, OSError):  # removed by the script
        return
    peers = sorted(set(range(options.world)) - set(elsewhere))
    while time.monotonic() < deadline:
        if all(ended_file(options.folder / rank_name(rank)).exists() for rank in peers):
            return
        time.sleep(_POLL_S)


def _write_run(options: Options, outside: ExternalLauncher | None = None) -> None:
    """Write `run.json` first, so that a run whose launcher dies is readable."""
    try:
        write_run(options.folder, _about_run(options, outside))
    except OSError as error:
        raise LaunchFailed(f"cannot write to {options.folder}: {error.strerror}; give another --output") from None


def _about_run(options: Options, outside: ExternalLauncher | None = None) -> dict[str, Any]:
    """The initial `run.json`."""
    if outside is None:
        host, _, port = options.rdzv_endpoint.rpartition(":")
        job = Job(options.rdzv_id, port if host else "")
        several = machines(options.nnodes, options.ranks)
    else:
        job = job_here(os.environ)
        several = machines(outside.machines, options.world // outside.machines)
    return {
        **initial_header(options, options.command),
        "repository": in_repository(options.script),
        "launch": LaunchRecord.of(options, tuple(interpreter_flags()), outside is not None).to_json(),
        **({"job": vars(job)} if options.world > 1 and job != Job() else {}),
        **several,
    }


def rank_command(options: Options) -> list[str]:
    """The command of a rank's process; the folder is absolute, since the script may change its directory."""
    options = replace(options, folder=options.folder.resolve(), launcher=os.getpid())
    return [sys.executable, *interpreter_flags(), FILE, *options.to_words()]


def _once_more(child: Process) -> Callable[..., None]:
    """Ignore the first Ctrl-C, which the terminal also sends to the child; pass on a repeated one, in case the first
    was sent to this process only.
    """
    first: list[float] = []

    def interrupted(*_: object) -> None:
        if first and time.monotonic() - first[0] > _SECOND_INTERRUPT_S:
            child.send_signal(signal.SIGINT)
        first.append(time.monotonic())

    return interrupted


def _start(options: Options) -> Process:
    stdout = sys.stderr.fileno() if options.needs_stdout else None
    command = rank_command(options)
    try:
        return subprocess.Popen(command, stdout=stdout)
    except OSError as error:
        raise LaunchFailed(f"cannot start {command[0]}: {error.strerror}") from None


def _run_alone(
    options: Options,
    meanwhile: Callable[[], object] | None = None,
    start: Callable[[Options], Process] | None = None,
) -> int:
    """Return the status of a plain child, negative for a signal; signals of the terminal are left to the child, others
    are passed on.
    """
    child = (start or _start)(options)
    with signals_kept():
        signal.signal(signal.SIGINT, _once_more(child))
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:  # as set by nohup
                signal.signal(number, lambda signalled, _: child.send_signal(signalled))
        if meanwhile is not None:
            with suppress(Exception):  # the child is waited for in any case; what fails now fails again
                meanwhile()
        return child.wait()
