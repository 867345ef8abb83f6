"""Starts ranks through torch's elastic launcher, with its store and signal handlers."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from leakscope.errors import LaunchFailed
from leakscope.launch.outcome import LAUNCHER
from leakscope.launch.output import Stream, passed_on
from leakscope.options import Options
from leakscope.run.descriptors import open_private
from leakscope.run.secrets import without
from leakscope.run.writer import make_private

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]


CHANGED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals that leakscope and torch's elastic launcher handle while ranks run."""


@contextmanager
def signals_kept() -> Iterator[None]:
    """Restore every signal handler after the block."""
    before = {number: signal.getsignal(number) for number in CHANGED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_NAME = "leakscope"
_LOOPBACK = "127.0.0.1"


@cache
def loopback_rendezvous() -> str:
    """Name of a rendezvous of one agent on this machine, registered with torch's launcher
    (elastic/rendezvous/api.py).
    """
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]
    from torch.distributed.elastic.rendezvous import (
        RendezvousHandler,
        RendezvousInfo,
        RendezvousParameters,
        RendezvousStoreInfo,
        rendezvous_handler_registry,
    )

    class OneMachine(RendezvousHandler):
        """The agent is complete at once, and nobody joins later."""

        use_agent_store = True  # `init_process_group` of the ranks uses this store too

        def __init__(self, run_id: str) -> None:
            self._run_id = run_id
            self._store, self._port = loopback_store()

        def get_backend(self) -> str:
            return _NAME

        def get_run_id(self) -> str:
            return self._run_id

        def next_rendezvous(self) -> RendezvousInfo:
            store = PrefixStore(self._run_id, self._store)
            return RendezvousInfo(store, 0, 1, RendezvousStoreInfo(_LOOPBACK, self._port))

        def is_closed(self) -> bool:
            return False

        def set_closed(self) -> None:
            pass

        def num_nodes_waiting(self) -> int:
            return 0

        def shutdown(self) -> bool:
            return True

    def create(parameters: RendezvousParameters) -> RendezvousHandler:
        return OneMachine(parameters.run_id)

    rendezvous_handler_registry.register(_NAME, create)
    return _NAME


def loopback_store() -> tuple[TCPStore, int]:
    """A store of this process and its port. Raises OSError or RuntimeError."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    with socket.socket() as listening:
        listening.bind((_LOOPBACK, 0))
        listening.listen()
        port = listening.getsockname()[1]
        store = TCPStore(
            _LOOPBACK,
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listening.fileno(),
        )
        listening.detach()  # accepted by the store
    return store, port


_LOGGER = "torch.distributed.elastic"
_ERROR = "error_"
"""Prefix of the files into which torch writes what a rank raised."""


def run_under_elastic(options: Options, command: Sequence[str]) -> dict[int, int]:
    """Run the ranks under torch's elastic launcher; return the statuses of failing ranks, negative for a signal.

    LAUNCHER maps to the signal that ended the launcher itself. Raises LaunchFailed if no rank could be started.
    """
    try:
        from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs, SignalException
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.elastic.rendezvous import RendezvousError
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch
    except (ImportError, MemoryError, OSError) as error:
        raise LaunchFailed(f"torch's launcher cannot be loaded: {error or 'not enough memory'}") from None

    logs = options.folder / "logs"
    with suppress(OSError):
        make_private(logs)
    streams = _streams(options, logs)

    class Pipes(LogsSpecs):
        """Where the ranks write to; torch displays none of it."""

        @property
        def root_log_dir(self) -> str:
            return str(logs)

        def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
            """The destination of each stream of each local rank; torch's `record` writes what a rank raised into a
            file.
            """
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
        run_id=options.rdzv_id or ("none" if options.nnodes > 1 else uuid.uuid4().hex),  # as in torchrun
        rdzv_backend="c10d" if options.rdzv_endpoint else loopback_rendezvous(),
        rdzv_endpoint=options.rdzv_endpoint,
        rdzv_configs={"is_host": str(options.node_rank == 0)} if options.nnodes > 1 else {},
        max_restarts=0,
        logs_specs=Pipes(),
        signals_to_handle=_signals(),
    )
    # as in torchrun; otherwise every rank would use all cores
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
        raise LaunchFailed(f"rendezvous at {options.rdzv_endpoint or 'the loopback'} failed: {why}") from None
    except (RuntimeError, ValueError, OSError) as error:
        raise LaunchFailed(f"torch's launcher could not start the ranks: {error}") from None
    finally:
        for name in threads:
            del os.environ[name]
        for path in logs.glob(f"{_ERROR}*"):
            path.unlink(missing_ok=True)


def _signals() -> str:
    """The signals that torch's launcher handles, except ignored ones, as nohup leaves SIGHUP."""
    return ",".join(number.name for number in CHANGED if signal.getsignal(number) != signal.SIG_IGN)


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
        """The text of a record without secrets of the command line: torch may log what it starts."""
        return without(super().format(record))

    def handleError(self, record: logging.LogRecord) -> None:
        """Ignore errors: on a full disk each record would print a traceback on stderr."""


@contextmanager
def _launcher_log(path: Path) -> Iterator[None]:
    """Send the messages of torch's launcher to a file: it takes 40 lines for a failure, which
    leakscope reports in one.
    """
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
        with suppress(OSError):  # a failed write is flushed again
            file.close()
