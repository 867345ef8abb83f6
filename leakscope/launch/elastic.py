"""Starts several ranks through torch's elastic launcher, as torchrun does, and keeps their logs."""

from __future__ import annotations

import logging
import os
import signal
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from leakscope.errors import LaunchFailed
from leakscope.launch.loopback import loopback_rendezvous
from leakscope.launch.outcome import LAUNCHER
from leakscope.launch.output import Stream, passed_on
from leakscope.launch.signals import CHANGED, signals_kept
from leakscope.options import Options
from leakscope.record.descriptors import open_private
from leakscope.record.folder import make_private
from leakscope.record.secrets import without

_LOGGER = "torch.distributed.elastic"
_ERROR = "error_"
"""How the names of the files begin into which torch writes what a rank raised."""


def run_under_elastic(options: Options, command: Sequence[str]) -> dict[int, int]:
    """Statuses of the failing ranks (negative for a signal), as torch's elastic launcher saw them.

    Under LAUNCHER stands the signal that ended the launcher itself. Raises LaunchFailed when no rank could be started.
    """
    try:
        from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs, SignalException
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.elastic.rendezvous import RendezvousError
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch
    except (ImportError, MemoryError, OSError) as error:
        raise LaunchFailed(f"torch's launcher cannot be loaded: {error or 'there is no memory for it'}") from None

    logs = options.folder / "logs"
    with suppress(OSError):
        make_private(logs)
    streams = _streams(options, logs)

    class Pipes(LogsSpecs):
        """Where the ranks write to; torch shows none of it."""

        @property
        def root_log_dir(self) -> str:
            return str(logs)

        def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
            """Where each stream of each local rank goes; `record` of torch writes what a rank raised into a file."""
            errors = {local: str(logs / f"{_ERROR}{local}.json") for local in envs}
            for local, environment in envs.items():
                environment["TORCHELASTIC_ERROR_FILE"] = errors[local]
                for name in ("stdout", "stderr"):
                    streams[local, name].prefix = f"[rank {environment['RANK']}]: "
            outs, errs = ({local: streams[local, name].path for local in envs} for name in ("stdout", "stderr"))
            return LogsDest(outs, errs, {}, {}, errors)

    config = LaunchConfig(
        min_nodes=options.nnodes,
        max_nodes=options.nnodes,
        nproc_per_node=options.ranks,
        run_id=options.rdzv_id or ("none" if options.nnodes > 1 else uuid.uuid4().hex),  # as torchrun has it
        rdzv_backend="c10d" if options.rdzv_endpoint else loopback_rendezvous(),
        rdzv_endpoint=options.rdzv_endpoint,
        rdzv_configs={"is_host": str(options.node_rank == 0)} if options.nnodes > 1 else {},
        max_restarts=0,
        logs_specs=Pipes(),
        **_signals(LaunchConfig),
    )
    # as torchrun does it; without it every rank would take all cores
    threads = {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": "1"}
    os.environ.update(threads)
    python, *arguments = command
    try:
        with signals_kept(), _launcher_log(logs / "launcher.log"), passed_on(streams.values()):
            elastic_launch(config, python)(*arguments)
        return {}
    except ChildFailedError as error:
        return {rank: failure.exitcode for rank, failure in error.failures.items()}
    except SignalException as error:
        return {LAUNCHER: -int(error.sigval)}
    except RendezvousError as error:
        why = str(error.__cause__ or error).partition("\n")[0]
        raise LaunchFailed(f"the machines do not meet at {options.rdzv_endpoint or 'the loopback'}: {why}") from None
    except (RuntimeError, ValueError, OSError) as error:
        raise LaunchFailed(f"torch's launcher could not start the ranks: {error}") from None
    finally:
        for name in threads:
            del os.environ[name]
        for path in logs.glob(f"{_ERROR}*"):
            path.unlink(missing_ok=True)


def _signals(config: type) -> dict[str, Any]:
    """What torch's launcher answers: none that is ignored, as nohup leaves SIGHUP; an older torch cannot be told."""
    if "signals_to_handle" not in {field.name for field in fields(config)}:
        return {}
    answered = [number.name for number in CHANGED if signal.getsignal(number) != signal.SIG_IGN]
    return {"signals_to_handle": ",".join(answered)}


def _streams(options: Options, logs: Path) -> dict[tuple[int, str], Stream]:
    """The streams of this machine's ranks, by local rank and name."""
    streams = {}
    for local in range(options.ranks):
        log = f"rank_{local:04d}" if options.nnodes == 1 else f"node_{options.node_rank}_local_{local}"
        for name, terminal in (("stdout", sys.stdout), ("stderr", sys.stderr)):
            streams[local, name] = Stream(terminal, logs / f"{log}.{name}.log")
    return streams


class _Log(logging.FileHandler):
    def format(self, record: logging.LogRecord) -> str:
        """The text of a record, without what the command line hides: torch may name what it starts."""
        return without(super().format(record))

    def handleError(self, record: logging.LogRecord) -> None:
        """Say nothing: the disk is full, and each record would give a traceback on stderr."""


@contextmanager
def _launcher_log(path: Path) -> Iterator[None]:
    """What torch's launcher says of itself goes to a file: a failure takes it 40 lines, and we name it in one."""
    logger = logging.getLogger(_LOGGER)
    children = [
        child
        for name, child in logging.Logger.manager.loggerDict.items()
        if name.startswith(f"{_LOGGER}.") and isinstance(child, logging.Logger) and child.handlers
    ]
    before = [(log, log.handlers[:], log.propagate) for log in (*children, logger)]
    try:
        os.close(open_private(path, os.O_WRONLY | os.O_CREAT))
        file: logging.Handler = _Log(path)
    except OSError:
        file = logging.NullHandler()
    logger.handlers[:], logger.propagate = [file], False
    for child in children:
        child.handlers[:], child.propagate = [], True
    try:
        yield
    finally:
        for log, handlers, propagate in before:
            log.handlers[:], log.propagate = handlers, propagate
        with suppress(OSError):  # what could not be written is flushed again
            file.close()
