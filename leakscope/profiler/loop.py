"""What leaks in a training loop whose steps the caller marks?"""

from __future__ import annotations

import functools
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, ParamSpec, Self, TypeVar

from leakscope.options import Options, launchers_number
from leakscope.record.kinds import EndKind
from leakscope.units import parse_bytes

if TYPE_CHECKING:
    from leakscope.capture.recorder import Recorder
    from leakscope.findings.model import Findings
    from leakscope.record.model import Run

P = ParamSpec("P")
T = TypeVar("T")


class Profiler:
    """Records a training loop whose steps the caller marks, and judges it at the end.

    Under a launcher (RANK, WORLD_SIZE) every rank records itself into the same folder and judges itself.

    Args:
        output: the run's folder, which also gets `findings.json` and `report.html`; without it nothing stays on disk.
        warmup: steps that are not judged.
        budget: share of the run's time that looking may take; 0.02 is 2%.
        min_bytes: growth a step, in bytes or like `"64 KiB"`, below which it is a note.

    Raises:
        ValueError: a size that is none, a negative warmup, or a budget that is no share between 0 and 1.
        LeakscopeError: on entering, where `output` holds something already or cannot be written to.

    >>> import torch, leakscope
    >>> net, losses = torch.nn.Linear(256, 256), []
    >>> with leakscope.Profiler(budget=1.0) as profiler:
    ...     for _ in range(8):
    ...         with profiler.step():
    ...             losses.append(net(torch.ones(256, 256)).sum())
    >>> profiler.findings.verdict.value, profiler.findings.findings[0].rule.value
    ('leaks', 'retained-graph')

    """

    findings: Findings
    """What leaks; there after the `with` block."""
    run: Run
    """What was recorded."""

    def __init__(
        self,
        output: str | Path | None = None,
        *,
        warmup: int = Options.warmup,
        budget: float = Options.budget,
        min_bytes: int | str = Options.min_bytes,
    ) -> None:
        self._output = None if output is None else Path(output)
        self._options = Options(warmup=warmup, budget=budget, min_bytes=parse_bytes(min_bytes), by_hand=True)
        self._recorder: Recorder | None = None
        self._temporary: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Self:
        from leakscope._version import __version__
        from leakscope.capture.recorder import Recorder
        from leakscope.native import heap_reader
        from leakscope.record.folder import prepare_folder, time_now, write_run
        from leakscope.record.secrets import masked

        rank, world = (launchers_number(os.environ, *said) for said in (("RANK", 0), ("WORLD_SIZE", 1)))
        if not 0 <= rank < world:
            rank, world = 0, 1
        options = replace(self._options, folder=self._folder(), rank=rank, world=world)
        if self._output is not None and world == 1:
            prepare_folder(options.folder, force=False)
        write_run(
            options.folder,
            {
                "command": masked(sys.argv),
                "ranks": world,
                "leakscope": __version__,
                "started": time_now(),
                "heap_reader": heap_reader(),
                "torch": str(sys.modules["torch"].__version__) if "torch" in sys.modules else "",
                "warmup": options.warmup,
                "min_bytes": options.min_bytes,
            },
        )
        self._recorder = Recorder(options)
        self._recorder.attach()
        return self

    def _folder(self) -> Path:
        if self._output is None:
            self._temporary = self._temporary or tempfile.TemporaryDirectory(prefix="leakscope_")
            return Path(self._temporary.name)
        return self._output

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        from leakscope.capture.process.guard import say_on_stderr
        from leakscope.record.model import Ended

        assert self._recorder is not None
        how, status = (EndKind.FINISHED, 0) if kind is None else (EndKind.RAISED, 1)
        self._recorder.failed(error)
        self._recorder.finish(
            # an error's own text may raise, too
            lambda steps: Ended(how, status, steps, "" if kind is None else f"{kind.__name__}: {error}"),
            look=False,
        )
        self._recorder = None
        try:
            self._judge()
        except Exception as problem:
            if error is None:
                raise
            say_on_stderr(f"what was recorded was not judged: {type(problem).__name__}: {problem}")
        if self._temporary is not None:
            self._temporary.cleanup()

    def _judge(self) -> None:
        from leakscope.capture.process.guard import say_on_stderr
        from leakscope.findings import judge
        from leakscope.record.reading import read_run
        from leakscope.report import write

        self.run = read_run(self._folder(), snapshots=True)
        self.findings = judge(self.run)
        if self._output is not None and self.run.expected_ranks == 1:
            try:
                write(self.run, self.findings, self._output)
            except OSError as problem:  # the training has come to its end, and what was found is here
                say_on_stderr(f"{self._output} could not be written: {problem.strerror}")

    @contextmanager
    def step(self) -> Iterator[None]:
        """One step of the training: a block, which counts unless it raises.

        Raises RuntimeError outside of the profiler's own `with` block.
        """
        if self._recorder is None:
            raise RuntimeError("profiler.step() belongs inside `with leakscope.Profiler() as profiler:`")
        yield
        self._recorder.boundary()

    def wrap(self, train_step: Callable[P, T]) -> Callable[P, T]:
        """The same training step, each call of it marked as a step."""

        @functools.wraps(train_step)
        def stepped(*args: P.args, **kwargs: P.kwargs) -> T:
            with self.step():
                return train_step(*args, **kwargs)

        return stepped
