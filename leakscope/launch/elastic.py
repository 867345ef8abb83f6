"""Starts several ranks through torch's elastic launcher, as torchrun does, and keeps their logs."""

from __future__ import annotations

import logging
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from leakscope.errors import LaunchFailed
from leakscope.launch.loopback import loopback_rendezvous
from leakscope.launch.outcome import LAUNCHER
from leakscope.launch.signals import signals_kept
from leakscope.options import Options
from leakscope.record.folder import make_private

_LOGGER = "torch.distributed.elastic"


def run_under_elastic(options: Options, command: Sequence[str]) -> dict[int, int]:
    """Statuses of the failing ranks (negative for a signal), as torch's elastic launcher saw them.

    Under LAUNCHER stands the signal that ended the launcher itself. Raises LaunchFailed when no rank could be started.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logs = options.folder / "logs"
    make_private(logs)
    config = LaunchConfig(
        min_nodes=options.nnodes,
        max_nodes=options.nnodes,
        nproc_per_node=options.ranks,
        run_id=options.rdzv_id or uuid.uuid4().hex,
        rdzv_backend="c10d" if options.rdzv_endpoint else loopback_rendezvous(),
        rdzv_endpoint=options.rdzv_endpoint,
        rdzv_configs={"is_host": str(options.node_rank == 0)} if options.nnodes > 1 else {},
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(log_dir=str(logs), tee=Std.ALL),
        log_line_prefix_template="[rank ${rank}]: ",
    )
    # as torchrun does it; without it every rank would take all cores
    threads = {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": "1"}
    os.environ.update(threads)
    python, *arguments = command
    try:
        with signals_kept(), _launcher_log(logs / "launcher.log"):
            elastic_launch(config, python)(*arguments)
        return {}
    except ChildFailedError as error:
        return {rank: failure.exitcode for rank, failure in error.failures.items()}
    except SignalException as error:
        return {LAUNCHER: -int(error.sigval)}
    except (RuntimeError, ValueError, OSError) as error:
        raise LaunchFailed(f"torch's launcher could not start the ranks: {error}") from None
    finally:
        for name in threads:
            del os.environ[name]
        _gather_logs(logs, "rank_{:04d}" if options.nnodes == 1 else f"node_{options.node_rank}_local_{{}}")


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
    file = logging.FileHandler(path)
    logger.handlers[:], logger.propagate = [file], False
    for child in children:
        child.handlers[:], child.propagate = [], True
    try:
        yield
    finally:
        for log, handlers, propagate in before:
            log.handlers[:], log.propagate = handlers, propagate
        file.close()


def _gather_logs(logs: Path, name: str) -> None:
    """From the launcher's `<id>/attempt_0/<local rank>/stdout.log` to `rank_0000.stdout.log`."""
    for path in sorted(logs.glob("*/attempt_*/*/std*.log")):
        path.replace(logs / f"{name.format(int(path.parent.name))}.{path.name}")
    for path in logs.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
