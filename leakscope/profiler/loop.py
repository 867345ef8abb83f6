"""`Profiler`: the recorder for loops that mark their own steps."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, ParamSpec, Self, TypeVar

from leakscope.errors import LeakscopeError, Unreadable
from leakscope.options import Options, launchers_number
from leakscope.originals import Path, _thread, atexit, os, tempfile
from leakscope.profiler.block import decorated
from leakscope.profiler.result import Result, judge
from leakscope.run.rows import EndKind, MadeBy
from leakscope.shield import ending_with
from leakscope.units import parse_bytes

if TYPE_CHECKING:
    from leakscope.heap.to_graph import GivenRoot
    from leakscope.recorder.recorder import Recorder
    from leakscope.run.model import Run


def worker_environment() -> dict[str, str]:
    """Environment variables that make a Python process record itself as a rank of the running `leakscope run`.

    Child processes of a recorded script inherit them. Use this for workers that a service starts, such as Ray's, on a
    machine with access to the folder of the run: `ray.init(runtime_env={"env_vars": leakscope.worker_environment()})`.

    Returns:
        Name to value; empty if this process is not recorded, or with `--no-follow`.

    >>> import leakscope
    >>> leakscope.worker_environment()
    {}

    """
    from leakscope.process.children import environment

    return environment()


class StepMark:
    """A step of the loop: a `with` block, or the end of a step if it is not entered.

    A plain call drops it at once, which ends the step. If it is kept, as a notebook keeps the value of a cell, the step
    ends with the next mark.
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
        """End the step, unless it was entered or has ended."""
        if self._counts:
            self._counts = False
            self._over()


_RECORDING: dict[int, tuple[Profiler, int]] = {}
"""Id of each Profiler that was started and not stopped, to itself and the process that started it."""


def _register(profiler: Profiler) -> None:
    """Register a Profiler that was started, and stop those of this process that were forgotten."""
    for forgotten in _own_profilers():
        _stop_forgotten(forgotten, "an earlier Profiler was not stopped; stopping it now")
    if not _RECORDING:
        atexit.unregister(_stop_all)
        atexit.register(_stop_all)
    _RECORDING[id(profiler)] = profiler, os.getpid()


def _unregister(profiler: Profiler) -> None:
    _RECORDING.pop(id(profiler), None)


def _stop_all() -> None:
    for profiler in _own_profilers():
        _stop_forgotten(profiler, "")


def _own_profilers() -> list[Profiler]:
    """Profilers started by this process, not by its parent before a fork."""
    return [profiler for profiler, process in _RECORDING.values() if process == os.getpid()]


def _stop_forgotten(profiler: Profiler, why: str) -> None:
    from leakscope.process.guard import write_to_stderr

    if why:
        write_to_stderr(why)
    try:
        profiler.stop()
    except Exception as error:  # noqa: BLE001 - it was forgotten: nobody waits for what it found
        write_to_stderr(f"the recording was not judged: {type(error).__name__}: {error}")
    finally:
        _unregister(profiler)


def rank_and_world() -> tuple[int, int]:
    """The rank of this process and the world size, from torch.distributed or the environment.

    Lightning, accelerate and spawned processes join a group without the variables RANK and WORLD_SIZE.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    rank, world = (launchers_number(os.environ, *variable) for variable in (("RANK", 0), ("WORLD_SIZE", 1)))
    return (rank, world) if 0 <= rank < world else (0, 1)


def weak_roots(roots: Mapping[str, object]) -> tuple[GivenRoot, ...]:
    """Each name with a weak reference to its object.

    Raises:
        TypeError: A root cannot be weakly referenced, or its name is not a non-empty string.

    """
    weak: list[GivenRoot] = []
    for name, root in roots.items():
        if not isinstance(name, str) or not name.strip():
            raise TypeError(f"roots: the name {name!r} must be a non-empty string")
        try:
            weak.append((name, weakref.ref(root)))
        except TypeError:
            kind = type(root).__name__
            raise TypeError(
                f"roots: a {kind} cannot be weakly referenced; pass the object that holds {name!r}"
            ) from None
    return tuple(weak)


P = ParamSpec("P")
T = TypeVar("T")


class Profiler:
    """Record a training loop that marks its own steps, and judge it at the end.

    `with`, `async with` and `@Profiler()` record a block, or each call of a function or coroutine function; `start()`
    and `stop()` record what runs between them, such as cells of a notebook. A Profiler can be used repeatedly;
    `findings` are those of the last recording. A call within a decorated call belongs to the outer one.

    Under a launcher (RANK, WORLD_SIZE) each rank records into the same folder and judges itself; `leakscope report`
    combines them once they have finished.

    Args:
        output: Folder of the run, which also gets `findings.json` and `report.html`. An earlier run of a Profiler there
            is replaced. None keeps nothing on disk.
        warmup: Steps to skip before growth is measured.
        budget: Maximum share of the run time spent on heap snapshots; 0.02 is 2%.
        min_bytes: Minimum growth per step to report as a leak, in bytes or like `"64 KiB"`; None to decide by kind and
            `horizon`.
        roots: Name to object: reference paths through these objects begin with the name, as in `{"trainer": trainer}`.
            They are held weakly.
        horizon: Report growth of plain data as a leak if it would reach 1% of memory within that many steps.

    Raises:
        TypeError: A root cannot be weakly referenced (a list or dict), or the decorated object is not a function or is
            a generator function.
        ValueError: `min_bytes` is not a size, `warmup` is negative, or `budget` is not between 0 and 1.
        LeakscopeError: On entering: `output` holds something else, or cannot be written.
        RuntimeError: On entering: it is already recording.

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
    """The findings of the last recording; set after the `with` block."""
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
        self._roots = weak_roots(roots or {})
        self._recorder: Recorder | None = None
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._mark: tuple[weakref.ref[StepMark], int] | None = None
        """The last mark, and the thread that made it."""

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """Decorate a function: each call of it is recorded and judged."""
        return decorated(
            "leakscope.Profiler()", lambda: nullcontext() if self._recorder else _RecordedCall(self), function
        )

    def start(self) -> Self:
        """Start recording until `stop()`. A Profiler that is still recording is stopped.

        A recording that is not stopped ends with the program, and is reported if it has an `output`.

        Returns:
            The Profiler itself.

        Raises:
            LeakscopeError: `output` holds something else, or cannot be written.
            RuntimeError: It is already recording.

        >>> import leakscope
        >>> profiler = leakscope.Profiler(warmup=0).start()
        >>> profiler.step()
        <the end of a step>
        >>> profiler.stop().verdict.value
        'inconclusive'

        """
        _register(self)
        try:
            return self.__enter__()
        except BaseException:
            _unregister(self)
            raise

    def stop(self) -> Result:
        """End the recording and judge it.

        Returns:
            The findings; those of the last recording if nothing is being recorded.

        Raises:
            RuntimeError: Nothing was recorded.

        """
        if self._recorder is not None:
            self.__exit__(None, None, None)
        elif not hasattr(self, "findings"):
            raise RuntimeError("nothing was recorded; call profiler.start() first")
        return self.findings

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    def __enter__(self) -> Self:
        if self._recorder is not None:
            raise RuntimeError("this Profiler is already recording; use another one to record beside it")
        from leakscope.native import heap_reader
        from leakscope.recorder.recorder import Recorder
        from leakscope.run.secrets import conceal
        from leakscope.run.writer import initial_header, write_run

        rank, world = self._rank, self._world = rank_and_world()
        options = replace(self._options, folder=self._folder(), rank=rank, world=world)
        if self._output is not None and world == 1:
            _prepare(options.folder)
        conceal(sys.argv)
        write_run(
            options.folder,
            {
                **initial_header(options, sys.argv),
                "heap_reader": heap_reader(),
                "torch": str(sys.modules["torch"].__version__) if "torch" in sys.modules else "",
                "made_by": MadeBy.PROFILER,
            },
        )
        self._recorder = Recorder(options, given=self._roots)
        try:
            self._recorder.attach()
        except BaseException:  # Python then calls no `__exit__`
            self._leave()
            raise
        return self

    def _folder(self) -> Path:
        if self._output is None:
            self._temporary = self._temporary or tempfile.TemporaryDirectory(prefix="leakscope_")
            return Path(self._temporary.name)
        return self._output

    def _leave(self) -> None:
        """Remove the recording from the process."""
        if self._recorder is not None:
            self._recorder.abandon()
        self._recorder = None
        _unregister(self)
        if self._temporary is not None:
            self._temporary.cleanup()
        self._temporary = None

    @ending_with(_leave)
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        from leakscope.process.guard import write_to_stderr
        from leakscope.run.model import Ended

        assert self._recorder is not None
        self._count_mark()
        how, status = (EndKind.FINISHED, 0) if kind is None else (EndKind.RAISED, 1)
        self._recorder.failed(error)
        self._recorder.finish(
            # the text of an error may raise, too
            lambda steps: Ended(how, status, steps, "" if kind is None else f"{kind.__name__}: {error}"),
            with_snapshot=False,
        )
        self._recorder = None
        _unregister(self)
        try:
            self._judge()
        except Exception as problem:
            if error is None:
                raise
            write_to_stderr(f"the recording was not judged: {type(problem).__name__}: {problem}")

    def _judge(self) -> None:
        from leakscope.process.guard import write_to_stderr
        from leakscope.report import write
        from leakscope.run.reader import read_run

        self.run = read_run(self._folder(), snapshots=True)
        if self._world > 1:  # the others are still running, or have their own folders
            own = tuple(rank for rank in self.run.ranks if rank.number == self._rank)
            self.run = replace(self.run, ranks=own, expected_ranks=1)
        if self._temporary is not None:
            self.run = replace(self.run, folder="")  # nobody can request more of it
        self.findings = judge(self.run)
        if self._output is not None and self._world == 1:
            try:
                write(self.run, self.findings, self._output)
            except OSError as problem:  # the training has ended, and its findings are here
                write_to_stderr(f"cannot write {self._output}: {problem.strerror}")

    def step(self) -> StepMark:
        """Mark one step: as a `with` block, which counts unless it raises, or as a plain call at the end of the step.

        Returns:
            A context manager around the step. A plain call drops it, which ends the step.

        Raises:
            RuntimeError: Nothing is being recorded.

        """
        if self._recorder is None:
            raise RuntimeError(
                "nothing is being recorded; call profiler.step() inside `with leakscope.Profiler() as profiler:`, or "
                "between profiler.start() and profiler.stop()"
            )
        self._count_mark()
        mark = StepMark(self._step_over)
        self._mark = weakref.ref(mark), _thread.get_ident()
        return mark

    def _count_mark(self) -> None:
        """End the step of the last mark, if that is kept and was not entered."""
        mark = self._mark[0]() if self._mark is not None and self._mark[1] == _thread.get_ident() else None
        if mark is not None:
            mark.count()

    def _step_over(self) -> None:
        if self._recorder is not None:
            self._recorder.boundary()

    def wrap(self, train_step: Callable[P, T]) -> Callable[P, T]:
        """Make each call of a function a step; a coroutine function from its start to its end.

        Args:
            train_step: The training step.

        Returns:
            A function with the same signature.

        Raises:
            TypeError: `train_step` is not a function, or is a generator function, whose call runs nothing.

        """
        return decorated("profiler.step()", self.step, train_step)


class _RecordedCall:
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
    """Make the folder, replacing an earlier run of a Profiler. Raises LeakscopeError if it holds something else."""
    from leakscope.process.guard import write_to_stderr
    from leakscope.run.model import read_header
    from leakscope.run.writer import prepare_folder, who_else_may_enter

    try:
        own = read_header(folder).get("made_by") == MadeBy.PROFILER
    except Unreadable:
        own = False
    if not own and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise LeakscopeError(f"{folder} is not empty and holds no run of a Profiler; choose another output=")
    prepare_folder(folder, force=own)
    others = who_else_may_enter(folder)
    if others:
        write_to_stderr(others)
