"""The doorways for Python code: `watch` a block, `Profiler` around a training loop, `check` a training step."""

from __future__ import annotations

import functools
import gc
import inspect
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, ParamSpec, Self, TypeVar

from leakscope.findings.model import FreedBy, Origin, Severity, Verdict
from leakscope.record.kinds import Occasion
from leakscope.units import bytes_text, parse_bytes

if TYPE_CHECKING:
    from leakscope.capture.device.counters import Counter
    from leakscope.capture.recorder import Recorder
    from leakscope.findings.model import Finding, Findings
    from leakscope.record.model import Look, Rank, Run

P = ParamSpec("P")
T = TypeVar("T")

_IN_FLIGHT = ("dist-autograd-context", "p2p-buffer")
"""Rules that a block answers for although something alive holds the memory."""

_COUNTED_FROM = 64 * 1024
"""Growth a step from which the allocator's own count is trusted to tell it."""


class LeaksFound(AssertionError):
    """A block left tensor memory behind; the message holds each leak's trace."""

    def __init__(self, message: str, findings: Findings) -> None:
        super().__init__(message)
        self.findings = findings


class watch:
    """A block that must leave no tensor memory unreachable and unfreed.

    What a live variable holds is no leak here, and neither is what was there before. Automatic gc waits until the block
    is over, so that what it would have freed is seen every time; before the block gc collects once. With `fail`, leaks of
    more than `allowance` bytes raise LeaksFound at the end of a block that raised nothing itself.
    """

    findings: Findings
    """What the block left behind; there after the block."""
    run: Run
    """What was seen of it, as the rest of leakscope takes it."""

    def __init__(self, fail: bool = False, allowance: int | str = 0) -> None:
        self._fail, self._allowance = fail, parse_bytes(allowance)

    def __enter__(self) -> Self:
        self._collecting = gc.isenabled()
        gc.disable()
        self._before = None
        if "torch" in sys.modules:
            gc.collect()
            self._before = _look(0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            after = _look(1) if "torch" in sys.modules and kind is None else None
        finally:
            if self._collecting:
                gc.enable()
        self.run = _block(after)
        self.findings = _left_behind(self._before, after)
        leaked = sum(finding.retained_bytes for finding in leaks_of(self.findings))
        if self._fail and leaked > self._allowance:
            raise LeaksFound(leaks_text(self.run, self.findings, self._allowance), self.findings)


def _look(step: int, occasion: Occasion = Occasion.BLOCK, counter: Counter | None = None) -> Look:
    from leakscope.capture.device.counters import Counter
    from leakscope.capture.heap.look import look

    counter = counter or Counter()
    counted = counter.read().bytes
    with counter.ours(most=sys.maxsize):  # the look itself is kept: megabytes where thousands of tensors live
        return look(step, occasion, counted_bytes=counted, counted_on=counter.device)


def _run_of(rank: Rank) -> Run:
    """A run of one rank that was never on disk."""
    from leakscope import __version__
    from leakscope.record.model import Run

    torch = sys.modules.get("torch")
    return Run(
        command=(Path(sys.argv[0]).name,),
        ranks=(rank,),
        expected_ranks=1,
        device=rank.looks[-1].counted_on if rank.looks else "cpu",
        torch="" if torch is None else str(torch.__version__),
        leakscope=__version__,
        warmup=0,
        min_bytes=0,
    )


def _block(look: Look | None) -> Run:
    from leakscope.record.kinds import EndKind
    from leakscope.record.model import Ended, Rank

    return _run_of(Rank(0, (), () if look is None else (look,), Ended(EndKind.FINISHED, 0, 0)))


def _left_behind(before: Look | None, after: Look | None) -> Findings:
    """Findings after the block, without what was found before it."""
    from leakscope.findings import Findings, judge

    if after is None:
        return Findings(Verdict.CLEAN, "torch was not used, or the block raised", 0)
    found = judge(_block(after))
    kept = [finding for finding in found.findings if finding.freed_by != FreedBy.PROGRAM or finding.rule in _IN_FLIGHT]
    if before is not None and kept:
        # the same leak may have been there before, made by somebody else: only what came on top counts
        known = {finding.fingerprint: finding.retained_bytes for finding in judge(_block(before)).findings}
        kept = [
            replace(finding, retained_bytes=finding.retained_bytes - known.get(finding.fingerprint, 0))
            for finding in kept
        ]
        kept = [finding for finding in kept if finding.retained_bytes > 0]
    # a block has no steps: nothing grows by so much a step, and collecting is not set against its time
    left = replace(found, findings=tuple(replace(finding, bytes_per_step=0.0) for finding in kept), gc_advice=())
    if leaks_of(left):
        return replace(left, why=_left_text(left))
    return replace(left, verdict=Verdict.CLEAN, why="the block left no tensor memory behind", exit_status=0)


def leaks_text(run: Run, findings: Findings, allowance: int = 0) -> str:
    """What a failing test says: the sum, then every leak's trace."""
    from leakscope.report.as_text import render_in_test

    repeats = sum(len(rank.steps) for rank in run.ranks)
    allowed = f", {bytes_text(allowance)} allowed" if allowance else ""
    called = f" after {repeats} repeats, each of them a step" if repeats else ""
    return f"{_left_text(findings)}{called}{allowed}\n\n{render_in_test(run, findings)}"


def _left_text(findings: Findings) -> str:
    leaks = leaks_of(findings)
    total = bytes_text(sum(finding.retained_bytes for finding in leaks))
    return f"{len(leaks)} tensor leak{'s' * (len(leaks) != 1)}, {total} left behind"


class Profiler:
    """Records a training loop whose steps the caller marks, and judges it at the end.

    `output` is the run's folder; without it the run is kept only in memory. Under a launcher (RANK, WORLD_SIZE) every
    rank records itself into the same folder, and judges itself.
    """

    findings: Findings
    """What leaks; there after the `with` block."""
    run: Run
    """What was recorded."""

    def __init__(
        self,
        output: str | Path | None = None,
        *,
        warmup: int = 2,
        budget: float = 0.02,
        min_bytes: int | str = 64 * 1024,
    ) -> None:
        self._output = None if output is None else Path(output)
        self._warmup, self._budget, self._min_bytes = warmup, budget, parse_bytes(min_bytes)
        self._recorder: Recorder | None = None
        self._temporary: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Self:
        from leakscope import __version__
        from leakscope.capture.recorder import Recorder
        from leakscope.options import Options
        from leakscope.record.folder import prepare_folder, write_run

        rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        folder = self._folder()
        if self._output is not None and world == 1:
            prepare_folder(folder, force=False)
        write_run(
            folder,
            {
                "command": sys.argv,
                "ranks": world,
                "leakscope": __version__,
                "torch": str(sys.modules["torch"].__version__) if "torch" in sys.modules else "",
                "warmup": self._warmup,
                "min_bytes": self._min_bytes,
            },
        )
        options = Options(folder, rank, world, warmup=self._warmup, budget=self._budget, by_hand=True)
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
        from leakscope.findings import judge
        from leakscope.record.folder import read_run
        from leakscope.record.kinds import EndKind
        from leakscope.record.model import Ended
        from leakscope.report import write

        assert self._recorder is not None
        how, status = (EndKind.FINISHED, 0) if kind is None else (EndKind.RAISED, 1)
        text = "" if kind is None else f"{kind.__name__}: {error}"
        self._recorder.failed(error)
        self._recorder.finish(lambda steps: Ended(how, status, steps, text), look=False)
        self._recorder = None
        self.run = read_run(self._folder(), snapshots=True)
        self.findings = judge(self.run)
        if self._output is not None and self.run.expected_ranks == 1:
            write(self.run, self.findings, self._output)
        if self._temporary is not None:
            self._temporary.cleanup()

    @contextmanager
    def step(self) -> Iterator[None]:
        """One step of the training; a step that raises is not counted."""
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


def check(train_step: Callable[[], object], repeats: int = 7, *, warmup: int = 2, min_bytes: int | str = 0) -> Findings:
    """What grew on every one of `repeats` calls, after `warmup` calls that are not judged.

    `train_step` takes no arguments and its result is dropped. Automatic gc waits until the last call is over, so that
    what it would have freed is seen every time. Raises ValueError for fewer than three repeats: that is too few to tell
    growth; TypeError for a coroutine or generator function.
    """
    return checked(train_step, repeats, warmup, parse_bytes(min_bytes))[1]


def checked(train_step: Callable[[], object], repeats: int, warmup: int, min_bytes: int) -> tuple[Run, Findings]:
    """`check`, with the run it judged."""
    from leakscope.capture.device.counters import Counter
    from leakscope.capture.heap.pause import no_automatic_gc
    from leakscope.capture.process.gc_callbacks import CollectionWatch
    from leakscope.capture.process.patches import Patches
    from leakscope.findings import judge
    from leakscope.record.kinds import EndKind
    from leakscope.record.model import Ended, Rank, Step

    enough(repeats)
    if inspect.iscoroutinefunction(train_step) or inspect.isgeneratorfunction(train_step):
        raise TypeError(
            "the train step is a coroutine or generator function: calling it runs nothing; wrap it in one that runs it to its end"
        )
    for _ in range(warmup):
        train_step()
    steps, looks, counter = [], [], Counter()
    collections = CollectionWatch(
        lambda: counter.read().bytes
    )  # the caller's own: what they free has come all the same
    with ExitStack() as restored:
        patches = Patches()
        collections.install(patches)
        restored.callback(patches.take_out)
        restored.enter_context(no_automatic_gc())
        for number in range(warmup + 1, warmup + repeats + 1):
            began = time.perf_counter()
            train_step()
            seconds = time.perf_counter() - began
            with collections.not_listening():
                look = _look(number, Occasion.STEP, counter)
            # on CPU the counted bytes hold leakscope's own as well: too coarse for small allowances
            looks.append(look if min_bytes >= _COUNTED_FROM else replace(look, counted_bytes=None))
            steps.append(Step(number, seconds, looks[-1].counted_bytes, None, collections.taken(), look.counted_on))
    rank = Rank(0, tuple(steps), tuple(looks), Ended(EndKind.FINISHED, 0, warmup + repeats))
    run = replace(_run_of(rank), warmup=warmup, min_bytes=min_bytes)
    return run, judge(run)


def enough(repeats: int) -> None:
    """Refuse a number of repeats that cannot tell growth. Raises TypeError or ValueError."""
    if not isinstance(repeats, int):
        raise TypeError(f"repeats={repeats!r} is no whole number")
    if repeats < 3:
        raise ValueError(f"repeats={repeats} is too few to tell growth; give 3 or more")


def leaks_of(findings: Findings) -> tuple[Finding, ...]:
    """The findings that are leaks of the application's own."""
    return tuple(f for f in findings.findings if f.severity == Severity.LEAK and f.origin == Origin.APPLICATION)
