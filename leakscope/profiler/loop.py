"""`Profiler`: the recorder for loops that mark their own steps."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, ParamSpec, Protocol, Self, TypeVar

from leakscope.errors import LeakscopeError, Unreadable
from leakscope.options import Options, launchers_number
from leakscope.originals import Path, _thread, atexit, os, tempfile
from leakscope.profiler.block import decorated
from leakscope.profiler.result import Result, judge
from leakscope.run.rows import EndKind, MadeBy
from leakscope.shield import ending_with
from leakscope.units import parse_bytes

if TYPE_CHECKING:
    from leakscope.recorder.recorder import Recorder
    from leakscope.run.model import Run


def worker_environment() -> dict[str, str]:
    """Variables that make a Python process record itself as a rank of the running `leakscope run`, where it trains.

    What a recorded script starts itself has them already. They are for workers that a service starts, as Ray's do, on
    a machine that has the run's folder: `ray.init(runtime_env={"env_vars": leakscope.worker_environment()})`.

    Returns:
        Name to value; nothing where this process is not recorded, or with `--no-follow`.

    """
    from leakscope.process.children import environment

    return environment()


class StepMark:
    """A step of the loop: the `with` block that it is entered with, or what ends where nobody enters it.

    A plain call drops it at once, which ends the step there; where it is kept, as a notebook keeps a cell's last value,
    the step ends with the next mark at the latest.
    """

    __slots__ = ("__weakref__", "_counts", "_over")

    def __init__(self, over: Callable[[], None]) -> None:
        self._over, self._counts = over, True

    def __repr__(self) -> str:
        return "<the end of a step>"

    def __enter__(self) -> None:
        self._counts = False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._over()

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    def __del__(self) -> None:
        self.count()

    def count(self) -> None:
        """End the step here, unless it was entered or has ended."""
        if self._counts:
            self._counts = False
            self._over()


class Started(Protocol):
    """A recording that somebody has to stop."""

    def stop(self) -> object:
        """End it."""


_STARTED: dict[int, tuple[Started, int]] = {}
"""By the id of each: the recording, and the process that started it."""


def started(recording: Started) -> None:
    """Note a recording that goes on until it is stopped; one that was started before and forgotten ends here."""
    for other in _own():
        _end(other, "a Profiler that was started before was not stopped: it ends here")
    if not _STARTED:
        atexit.unregister(_end_all)
        atexit.register(_end_all)
    _STARTED[id(recording)] = recording, os.getpid()


def stopped(recording: Started) -> None:
    """It is over."""
    _STARTED.pop(id(recording), None)


def _end_all() -> None:
    for recording in _own():
        _end(recording, "")


def _own() -> list[Started]:
    """Those of this process; a forked one leaves its parent's alone."""
    return [recording for recording, process in _STARTED.values() if process == os.getpid()]


def _end(recording: Started, why: str) -> None:
    from leakscope.process.guard import say_on_stderr

    if why:
        say_on_stderr(why)
    try:
        recording.stop()
    except Exception as error:  # noqa: BLE001 - it was forgotten: nobody waits for what it found
        say_on_stderr(f"what was recorded was not judged: {type(error).__name__}: {error}")
    finally:
        stopped(recording)


def rank_and_world() -> tuple[int, int]:
    """The rank of this process and how many there are: as torch.distributed has it, else as a launcher said.

    Lightning, accelerate and spawned processes join a group without the variables RANK and WORLD_SIZE.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    rank, world = (launchers_number(os.environ, *said) for said in (("RANK", 0), ("WORLD_SIZE", 1)))
    return (rank, world) if 0 <= rank < world else (0, 1)


Given = tuple[tuple[str, weakref.ref[object]], ...]
"""Each name with what it stands for, which is not kept alive."""


def weakly(roots: Mapping[str, object]) -> Given:
    """The roots with their names, none of them kept alive.

    Raises TypeError for what takes no weak reference, or is named by no text.
    """
    return tuple((_text(name), _weak(name, root)) for name, root in roots.items())


def _text(name: object) -> str:
    if not isinstance(name, str) or not name.strip():
        raise TypeError(f"roots: {name!r} is no name; give the text that the object is to be written as")
    return name


def _weak(name: str, root: object) -> weakref.ref[object]:
    try:
        return weakref.ref(root)
    except TypeError:
        kind = type(root).__name__
        raise TypeError(f"roots: a {kind} cannot be held weakly; give the object that holds {name!r}") from None


P = ParamSpec("P")
T = TypeVar("T")


class Profiler:
    """Records a training loop whose steps the caller marks, and judges it at the end.

    `with`, `async with` and `@Profiler()` record a block, or each call of a function or coroutine function; `start()`
    and `stop()` what comes between them, over the cells of a notebook. It can be used again and again and has the
    findings of what it recorded last; a call within a decorated call belongs to that one.

    Under a launcher (RANK, WORLD_SIZE) every rank records itself into the same folder and judges itself alone;
    `leakscope report` tells of all of them once they are through.

    Args:
        output: the run's folder, which also gets `findings.json` and `report.html`; an earlier run of a Profiler there
            is replaced. Without it nothing stays on disk.
        warmup: steps that are not judged.
        budget: share of the run's time that looking may take; 0.02 is 2%.
        min_bytes: growth a step, in bytes or like `"64 KiB"`, below which it is a note; None where its kind and size
            decide.
        roots: objects by the name that traces through them are to begin with, as `{"trainer": trainer}`; none of them
            is kept alive.
        horizon: steps over which growth is projected; plain data that reaches 1% of the memory there is within them is
            a leak.

    Raises:
        TypeError: a root that takes no weak reference, as a list or a dict; what is decorated is a generator function,
            whose calls run nothing, or no function.
        ValueError: a size that is none, a negative warmup, or a budget that is no share between 0 and 1.
        LeakscopeError: on entering, where `output` holds something else already or cannot be written to.
        RuntimeError: on entering, where it records already; of `step()`, where it does not.

    >>> import torch, leakscope
    >>> net, losses = torch.nn.Linear(256, 256), []
    >>> with leakscope.Profiler(budget=1.0) as profiler:
    ...     for _ in range(8):
    ...         with profiler.step():
    ...             losses.append(net(torch.ones(256, 256)).sum())
    >>> profiler.findings.verdict.value, profiler.findings.findings[0].rule.value
    ('leaks', 'retained-graph')

    """

    findings: Result
    """What leaks; there after the `with` block."""
    run: Run
    """What was recorded."""

    def __init__(
        self,
        output: str | Path | None = None,
        *,
        warmup: int = Options.warmup,
        budget: float = Options.budget,
        min_bytes: int | str | None = Options.min_bytes,
        roots: Mapping[str, object] | None = None,
        horizon: int = Options.horizon,
    ) -> None:
        self._output = None if output is None else Path(output)
        least = None if min_bytes is None else parse_bytes(min_bytes)
        self._options = Options(warmup=warmup, budget=budget, min_bytes=least, horizon=horizon, by_hand=True)
        self._roots = weakly(roots or {})
        self._recorder: Recorder | None = None
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._mark: tuple[weakref.ref[StepMark], int] | None = None
        """The last one, and the thread that asked for it."""

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """The same function, each call of it recorded and judged."""
        return decorated("leakscope.Profiler()", lambda: nullcontext() if self._recorder else _Call(self), function)

    def start(self) -> Self:
        """Record from here on, until `stop()`; one that was started before and never stopped ends here.

        What is not stopped at the end of the program ends with it, and its report is written where it has an `output`.
        """
        started(self)
        try:
            return self.__enter__()
        except BaseException:
            stopped(self)
            raise

    def stop(self) -> Result:
        """End the recording, and judge it; a second time what was found is given again.

        Raises RuntimeError where nothing was started.
        """
        if self._recorder is not None:
            self.__exit__(None, None, None)
        elif not hasattr(self, "findings"):
            raise RuntimeError("nothing was recorded: profiler.start() comes first")
        return self.findings

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    def __enter__(self) -> Self:
        if self._recorder is not None:
            raise RuntimeError("this Profiler records already; what is to be recorded beside it needs one of its own")
        from leakscope._version import __version__
        from leakscope.native import heap_reader
        from leakscope.recorder.recorder import Recorder
        from leakscope.run.secrets import conceal, masked
        from leakscope.run.writer import time_now, write_run

        rank, world = self._rank, self._world = rank_and_world()
        options = replace(self._options, folder=self._folder(), rank=rank, world=world)
        if self._output is not None and world == 1:
            _prepare(options.folder)
        conceal(sys.argv)
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
                "horizon": options.horizon,
                "made_by": MadeBy.PROFILER,
            },
        )
        self._recorder = Recorder(options, given=self._roots)
        try:
            self._recorder.attach()
        except BaseException:  # Python calls no `__exit__` then
            self._leave()
            raise
        return self

    def _folder(self) -> Path:
        if self._output is None:
            self._temporary = self._temporary or tempfile.TemporaryDirectory(prefix="leakscope_")
            return Path(self._temporary.name)
        return self._output

    def _leave(self) -> None:
        """Nothing of the recording stays in the process."""
        if self._recorder is not None:
            self._recorder.abandon()
        self._recorder = None
        stopped(self)
        if self._temporary is not None:
            self._temporary.cleanup()
        self._temporary = None

    @ending_with(_leave)
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        from leakscope.process.guard import say_on_stderr
        from leakscope.run.model import Ended

        assert self._recorder is not None
        self._count_mark()
        how, status = (EndKind.FINISHED, 0) if kind is None else (EndKind.RAISED, 1)
        self._recorder.failed(error)
        self._recorder.finish(
            # an error's own text may raise, too
            lambda steps: Ended(how, status, steps, "" if kind is None else f"{kind.__name__}: {error}"),
            look=False,
        )
        self._recorder = None
        stopped(self)
        try:
            self._judge()
        except Exception as problem:
            if error is None:
                raise
            say_on_stderr(f"what was recorded was not judged: {type(problem).__name__}: {problem}")

    def _judge(self) -> None:
        from leakscope.process.guard import say_on_stderr
        from leakscope.report import write
        from leakscope.run.reader import read_run

        self.run = read_run(self._folder(), snapshots=True)
        if self._world > 1:  # the others still run, or have folders of their own
            own = tuple(rank for rank in self.run.ranks if rank.number == self._rank)
            self.run = replace(self.run, ranks=own, expected_ranks=1)
        if self._temporary is not None:
            self.run = replace(self.run, folder="")  # nobody can ask it for more
        self.findings = judge(self.run)
        if self._output is not None and self._world == 1:
            try:
                write(self.run, self.findings, self._output)
            except OSError as problem:  # the training has come to its end, and what was found is here
                say_on_stderr(f"{self._output} could not be written: {problem.strerror}")

    def step(self) -> StepMark:
        """One step of the training: a `with` block, which counts unless it raises, or called plainly at the step's end.

        Raises RuntimeError where nothing is recorded.
        """
        if self._recorder is None:
            raise RuntimeError(
                "profiler.step() belongs inside `with leakscope.Profiler() as profiler:`, or between profiler.start() "
                "and profiler.stop()"
            )
        self._count_mark()
        mark = StepMark(self._step_over)
        self._mark = weakref.ref(mark), _thread.get_ident()
        return mark

    def _count_mark(self) -> None:
        """End the step of the last mark, where somebody keeps that and has not entered it."""
        mark = self._mark[0]() if self._mark is not None and self._mark[1] == _thread.get_ident() else None
        if mark is not None:
            mark.count()

    def _step_over(self) -> None:
        if self._recorder is not None:
            self._recorder.boundary()

    def wrap(self, train_step: Callable[P, T]) -> Callable[P, T]:
        """The same training step, each call of it marked as a step; a coroutine function from its start to its end.

        Raises TypeError for a generator function, whose calls run nothing.
        """
        return decorated("profiler.step()", self.step, train_step)


class _Call:
    """One call of a decorated function."""

    def __init__(self, profiler: Profiler) -> None:
        self._profiler = profiler

    def __enter__(self) -> None:
        self._profiler.__enter__()

    def _leave(self) -> None:
        self._profiler._leave()

    @ending_with(_leave)
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._profiler.__exit__(kind, error, trace)


def _prepare(folder: Path) -> None:
    """Make the folder, in place of an earlier run of a Profiler's. Raises LeakscopeError for anything else in it."""
    from leakscope.process.guard import say_on_stderr
    from leakscope.run.model import read_header
    from leakscope.run.writer import prepare_folder, who_else_may_enter

    try:
        own = read_header(folder).get("made_by") == MadeBy.PROFILER
    except Unreadable:
        own = False
    if not own and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise LeakscopeError(f"{folder} holds something else than a Profiler's run; give another output=")
    prepare_folder(folder, force=own)
    others = who_else_may_enter(folder)
    if others:
        say_on_stderr(others)
