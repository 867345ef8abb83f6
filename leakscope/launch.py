"""Starts the ranks of a run, each under a recorder, and finds out how every one of them ended."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from leakscope.errors import LaunchFailed
from leakscope.record.folder import read_run, read_stack, write_json, write_run
from leakscope.record.kinds import EndKind
from leakscope.record.model import Ended

_OUTSIDE = (
    ("RANK", "WORLD_SIZE", ""),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", ""),
    ("PMI_RANK", "PMI_SIZE", ""),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_ID"),
)
"""(rank, world size, variable that must be there too) as launchers set them."""

_LOST_PEER = ("connection closed by peer", "connection reset by peer", "broken pipe", "connection refused", "socket",
              "timed out waiting", "remote process has exited", "peer closed", "store is no longer")  # fmt: skip
"""What the errors of a rank say whose peer went away first."""


@dataclass(frozen=True)
class Plan:
    """What to start."""

    target: str
    """Path of the script, or name of the module."""
    arguments: tuple[str, ...]
    folder: Path
    """The run's folder; exists and is writable."""
    module: bool = False
    ranks: int = 1
    """Ranks on this machine."""
    steps: int | None = None
    warmup: int = 2
    budget: float = 0.02
    min_bytes: int = 64 * 1024
    gc_diff: str = "auto"
    prove: bool = False
    lifetimes: bool = True
    snapshot: str = "auto"
    """Which allocator snapshots an accelerator's ranks keep: auto, always or never."""
    hang_timeout: float | None = None
    """Seconds without anything on the wire after which the ranks are ended as hung."""
    grace: float = 10.0
    """Seconds a rank has to leave once a run with `steps` is over."""
    nnodes: int = 1
    node_rank: int = 0
    rdzv_endpoint: str = ""
    rdzv_id: str = ""
    stdout_to_stderr: bool = False
    """Keep stdout free: what the ranks print there goes to stderr."""
    leakscope: str = ""
    """Version, for the record."""

    @property
    def command(self) -> tuple[str, ...]:
        return (*(("-m",) if self.module else ()), self.target, *self.arguments)


@dataclass(frozen=True)
class Outside:
    """This process's place in a job that another launcher has started."""

    rank: int
    world: int


@dataclass(frozen=True)
class Outcome:
    """How a launch ended."""

    status: int
    """The earliest failing rank's own status, 128 + signal for a killed one, 0 where none failed."""
    failed: int | None = None
    """That rank."""
    error: str = ""
    log: str = ""
    """Its log, relative to the run's folder."""


def outside_launcher(environment: Mapping[str, str]) -> Outside | None:
    """The rank that torchrun, MPI or Slurm gave this process; None for a process of one's own."""
    for rank, world, needed in _OUTSIDE:
        numbers = (environment.get(rank, ""), environment.get(world, ""))
        inside = not needed or needed in environment
        if inside and all(number.isdigit() for number in numbers) and int(numbers[1]) > 1:
            return Outside(int(numbers[0]), int(numbers[1]))
    return None


def launch(plan: Plan) -> Outcome:
    """Run the ranks to their end; the folder then says how each of them ended.

    Raises LaunchFailed when the ranks could not be started.
    """
    _begin(plan, plan.ranks * plan.nnodes)
    if plan.nnodes == 1:
        (plan.folder / ".board").unlink(missing_ok=True)
    if plan.ranks == 1 and plan.nnodes == 1:
        codes = {0: _run_alone(plan, _rank_command(plan, rank=0, world=1))}
    else:
        codes = _run_together(plan)
    outcome = _settle(plan, codes)
    if plan.nnodes == 1:
        (plan.folder / ".board").unlink(missing_ok=True)
    return outcome


def launch_inside(plan: Plan, outside: Outside) -> Outcome:
    """Run this one rank of a job that another launcher has started; its folder is replaced, the others are let alone."""
    mine = plan.folder / f"rank_{outside.rank:04d}"
    if mine.exists():
        shutil.rmtree(mine)
    _begin(plan, outside.world)
    code = _run_alone(plan, _rank_command(plan, outside.rank, outside.world))
    if outside.rank == 0:
        _wait_for_the_others(plan.folder, outside.world)
    return _settle(plan, {outside.rank: code}, only=outside.rank)


def _wait_for_the_others(folder: Path, world: int, patience: float = 10.0) -> None:
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if all((folder / f"rank_{rank:04d}" / "ended.json").exists() for rank in range(world)):
            return
        time.sleep(0.1)


def _begin(plan: Plan, world: int) -> None:
    write_run(
        plan.folder,
        {
            "command": list(plan.command),
            "ranks": world,
            "leakscope": plan.leakscope,
            "warmup": plan.warmup,
            "min_bytes": plan.min_bytes,
            "options": {"steps": plan.steps, "budget": plan.budget, "gc_diff": plan.gc_diff},
        },
    )


def _rank_command(plan: Plan, rank: int | None, world: int | None) -> list[str]:
    options = {
        "folder": str(plan.folder.resolve()),
        "rank": rank,
        "world": world,
        "steps": plan.steps,
        "warmup": plan.warmup,
        "budget": plan.budget,
        "gc_diff": plan.gc_diff,
        "prove": plan.prove,
        "lifetimes": plan.lifetimes,
        "snapshot": plan.snapshot,
        "grace": plan.grace,
        "hang_timeout": plan.hang_timeout,
        "module": plan.module,
        "line_by_line": rank is None,
    }
    return [sys.executable, "-m", "leakscope.capture", json.dumps(options), plan.target, *plan.arguments]


def _run_alone(plan: Plan, command: list[str]) -> int:
    """The status of a plain child, negative for a signal; Ctrl-C is the child's to answer, SIGTERM is passed on."""
    stdout = sys.stderr.fileno() if plan.stdout_to_stderr else None
    try:
        child = subprocess.Popen(command, stdout=stdout)
    except OSError as error:
        raise LaunchFailed(f"cannot start {command[0]}: {error.strerror}") from None
    with _signals_kept():
        signal.signal(signal.SIGINT, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: child.send_signal(signal.SIGTERM))
        return child.wait()


@contextmanager
def _signals_kept() -> Iterator[None]:
    watched = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    before = {number: signal.getsignal(number) for number in watched}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run_together(plan: Plan) -> dict[int, int]:
    """Statuses of the failing ranks (negative for a signal), as torch's elastic launcher saw them."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logs = plan.folder / "logs"
    logs.mkdir(exist_ok=True)
    config = LaunchConfig(
        min_nodes=plan.nnodes,
        max_nodes=plan.nnodes,
        nproc_per_node=plan.ranks,
        run_id=plan.rdzv_id or uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint=plan.rdzv_endpoint or "localhost:0",
        rdzv_configs={"is_host": str(plan.node_rank == 0)} if plan.nnodes > 1 else {},
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(log_dir=str(logs), tee=Std.ALL),
        log_line_prefix_template="[rank ${rank}]: ",
    )
    # as torchrun does it; without it every rank would take all cores
    threads = {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": "1"}
    os.environ.update(threads)
    _, *command = _rank_command(plan, None, None)
    try:
        with _signals_kept(), _launcher_log(logs / "launcher.log"):
            elastic_launch(config, sys.executable)(*command)
        return {}
    except ChildFailedError as error:
        return {rank: failure.exitcode for rank, failure in error.failures.items()}
    except SignalException as error:
        return {-1: -int(error.sigval)}
    except (RuntimeError, ValueError, OSError) as error:
        raise LaunchFailed(f"torch's launcher could not start the ranks: {error}") from None
    finally:
        for name in threads:
            del os.environ[name]
        _gather_logs(logs, "rank_{:04d}" if plan.nnodes == 1 else f"node_{plan.node_rank}_local_{{}}")


@contextmanager
def _launcher_log(path: Path) -> Iterator[None]:
    """What torch's launcher says of itself goes to a file: a failure takes it 40 lines, and we name it in one."""
    logger = logging.getLogger("torch.distributed.elastic")
    handlers, propagate = logger.handlers[:], logger.propagate
    file = logging.FileHandler(path)
    logger.handlers[:], logger.propagate = [file], False
    children = [
        log for name, log in logging.Logger.manager.loggerDict.items()
        if name.startswith("torch.distributed.elastic.") and isinstance(log, logging.Logger) and log.handlers
    ]  # fmt: skip
    theirs = [(log, log.handlers[:], log.propagate) for log in children]
    for log in children:
        log.handlers[:], log.propagate = [], True
    try:
        yield
    finally:
        for log, kept, passed_on in [*theirs, (logger, handlers, propagate)]:
            log.handlers[:], log.propagate = kept, passed_on
        file.close()


def _gather_logs(logs: Path, name: str) -> None:
    """From the launcher's `<id>/attempt_0/<local rank>/stdout.log` to `rank_0000.stdout.log`."""
    for path in sorted(logs.glob("*/attempt_*/*/std*.log")):
        path.replace(logs / f"{name.format(int(path.parent.name))}.{path.name}")
    for path in logs.iterdir():
        if path.is_dir():
            shutil.rmtree(path)


def _settle(plan: Plan, codes: Mapping[int, int], only: int | None = None) -> Outcome:
    """Complete what the ranks wrote: how the silent ones ended, where the logs are, what is common to all of them."""
    interrupted = codes.get(-1)
    run = read_run(plan.folder)
    times = _end_times(plan.folder, run.expected_ranks)
    failures: list[tuple[bool, float, int, Ended]] = []
    for rank in run.ranks:
        code = codes.get(rank.number, interrupted if rank.ended.how == EndKind.LOST else None)
        ended = _true_end(rank.ended, code, len(rank.steps))
        log = f"logs/rank_{rank.number:04d}.stderr.log"
        path = plan.folder / f"rank_{rank.number:04d}"
        stack = ended.stack or (read_stack(path / "stack.txt") if ended.status else ())
        ended = replace(ended, log=log if (plan.folder / log).exists() else "", stack=stack)
        if ended != rank.ended:
            path.mkdir(exist_ok=True)
            write_json(path / "ended.json", asdict(ended))
        if ended.status and ended.how != EndKind.LOST and only in (None, rank.number):
            failures.append((_is_aftermath(ended), times[rank.number] or time.time(), rank.number, ended))
    _tell_of_all(plan.folder)
    if interrupted is not None:
        return Outcome(128 - interrupted, error=f"interrupted by {signal.Signals(-interrupted).name}")
    if not failures:
        return Outcome(0)
    *_, number, ended = min(failures, key=lambda failure: failure[:3])
    return Outcome(ended.status, number, ended.error, ended.log)


def _true_end(ended: Ended, code: int | None, steps: int) -> Ended:
    """What the rank wrote, unless the operating system knows better: killed, or ended by `os._exit`."""
    if ended.how == EndKind.STOPPED or code is None:
        return ended
    status = 128 - code if code < 0 else code
    if ended.how not in (EndKind.LOST, EndKind.FINISHED) or (ended.how == EndKind.FINISHED and code == 0):
        return ended
    if code < 0:
        return Ended(EndKind.KILLED, status, steps, error=f"killed by {signal.Signals(-code).name}")
    return Ended(
        EndKind.EXITED if code else EndKind.FINISHED,
        status,
        steps,
        error="" if ended.how == EndKind.FINISHED else "left without a word",
    )


def _is_aftermath(ended: Ended) -> bool:
    """Did this rank only fail because another one had?"""
    if ended.how == EndKind.KILLED:
        return ended.status == 128 + signal.SIGTERM
    return any(words in ended.error.lower() for words in _LOST_PEER)


def _end_times(folder: Path, world: int) -> list[float]:
    """Seconds since the epoch at which each rank's script ended, 0.0 where it did not get to say so."""
    times = []
    for rank in range(world):
        path = folder / f"rank_{rank:04d}" / "ended.json"
        times.append(path.stat().st_mtime if path.exists() else 0.0)
    return times


def _tell_of_all(folder: Path) -> None:
    """Put what the ranks know of device, torch and source files into `run.json`."""
    data: dict[str, Any] = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    sources: dict[str, list[str]] = {}
    for path in sorted(folder.glob("rank_*/about.json")):
        about = json.loads(path.read_text(encoding="utf-8"))
        sources.update(about.pop("sources"))
        data.setdefault("device", about["device"])
        data.setdefault("torch", about["torch"])
    write_run(folder, {**data, "sources": sources})
