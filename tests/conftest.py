"""Lanes, checks and fixtures of all tests."""

from __future__ import annotations

import functools
import gc
import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import pytest
from support import TESTS, browser
from support.commands.launching import by_copies
from support.commands.preloaded import Copies
from support.commands.recorded_runs import Runs
from support.global_state import changes, global_state

pytest_plugins = ["pytester"]

with suppress(ImportError):  # the frameworks' environment lacks it, and has no test that needs it
    from hypothesis import settings

    settings.register_profile("suite", max_examples=25, deadline=None)  # a busy machine is no failure
    settings.load_profile("suite")

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported: several tests run at once
# without bytecode every process compiles leakscope again (1 s), and pytest rewrites every test (7 s)
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# a background job of a shell starts with these ignored, and its child processes inherit that
for _number, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, _handler)

Command = Callable[..., "subprocess.CompletedProcess[str]"]


STARTED = pytest.StashKey[tuple[int, float]]()


INSPECTING = (
    "leakscope.heap.snapshot", "leakscope.heap.sweep", "leakscope.recorder.lifetimes.tracker",
    "leakscope.integrations", "leakscope.profiler", "leakscope.testing", "corpus.case", "support.heap_readers",
    "support.lived_steps", "support.native_fuzz",
)  # fmt: skip
"""Modules that inspect the whole process; so does a test module that imports `leakscope` or from these."""


SECONDS = {"process": 8.0, "unit": 0.02}
"""Approximate duration of a test that workers run."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test: `process` if it or a fixture says so, `inspect` also by its imports, `unit` if it is neither.

    Those that are both run with those that inspect: a snapshot of a process that has collected the whole suite takes
    five times as long. Tests that need the frameworks are in no lane. Workers take the longest files first.
    """
    for item in items:
        if item.get_closest_marker("integrations"):
            continue
        fixtures = getattr(item, "fixturenames", ())
        if "starts_processes" in fixtures or "pytester" in fixtures:
            item.add_marker(pytest.mark.process)
        if item.get_closest_marker("no_tensor_leaks") or is_inspecting(getattr(item, "module", None)):
            item.add_marker(pytest.mark.inspect)
        elif not item.get_closest_marker("process") and not item.get_closest_marker("inspect"):
            item.add_marker(pytest.mark.unit)
    if hasattr(config, "workerinput"):
        takes: dict[Path, float] = defaultdict(float)
        for item in items:
            lanes = {mark.name for mark in item.iter_markers()}
            if "inspect" not in lanes:
                takes[item.path] += sum(seconds for lane, seconds in SECONDS.items() if lane in lanes)
        items.sort(key=lambda item: -takes[item.path])


@functools.cache
def is_inspecting(module: ModuleType | None) -> bool:
    values = list(vars(module).values()) if module else []
    names = [getattr(v, "__name__" if isinstance(v, ModuleType) else "__module__", None) for v in values]
    below = tuple(f"{name}." for name in INSPECTING)
    return any(name in ("leakscope", *INSPECTING) or str(name).startswith(below) for name in names)


def processes_ended() -> tuple[int, float]:
    """Page faults and CPU time of all child processes that have ended: both grow with every one."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_minflt, usage.ru_utime + usage.ru_stime


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    item.stash[STARTED] = processes_ended()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    yield
    may_start = item.get_closest_marker("process") or item.get_closest_marker("integrations")
    if not may_start and processes_ended() != item.stash[STARTED]:
        pytest.fail("started a process: mark the test `process`, or let its fixture ask for `starts_processes`")


@pytest.fixture(scope="session")
def starts_processes() -> None:
    """Requested by every fixture that starts a process, which makes its tests `process` tests."""


@pytest.fixture(autouse=True)
def process_as_found(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test leaves the process as it found it, except for the threads and hooks of frameworks."""
    if request.node.get_closest_marker("integrations"):
        yield
        return
    before = global_state()
    yield
    changed = changes(before)
    assert not changed, "left behind: " + "; ".join(changed)


@pytest.fixture(scope="session")
def with_support(starts_processes: None) -> dict[str, str]:
    """The environment in which a process that a test starts can import `support` and `corpus`."""
    paths = [str(TESTS), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


@pytest.fixture
def nothing_collected() -> Iterator[None]:
    """No garbage of other tests, and no collection: two snapshots differ only by what the test does."""
    for _ in range(5):  # what dies in one collection may leave what dies in the next
        if not gc.collect():
            break
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    """Forget what a test has compiled: leakscope watches no step of a process that compiles."""
    yield
    compiled = sys.modules.get("torch._dynamo.utils")
    if compiled is not None:
        compiled.counters.clear()


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a script into an empty folder of its own."""

    def write(text: str, name: str = "train.py") -> Path:
        path = tmp_path / name
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return path

    return write


@pytest.fixture(scope="module")
def windows(starts_processes: None) -> Iterator[browser.Pages]:
    """A real browser for the tests of one file; meanwhile asyncio can run nothing else in this process."""
    if browser.MISSING:
        pytest.skip(f"{' and '.join(browser.MISSING)} not installed")
    with browser.chromium() as started:
        yield browser.Pages(started, Path())


@pytest.fixture
def pages(windows: browser.Pages, tmp_path: Path) -> Iterator[browser.Pages]:
    """Opens pages in a real browser."""
    windows.folder = tmp_path
    yield windows
    windows.end()


@pytest.fixture(scope="session")
def copies(tmp_path_factory: pytest.TempPathFactory, starts_processes: None) -> Iterator[Copies]:
    """Runs the command line as copies of one preloaded process for each PYTHONPATH."""
    with Copies(lambda: tmp_path_factory.mktemp("copies")) as started:
        yield started


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory, copies: Copies) -> Runs:
    """Recorded runs that tests share."""
    return Runs(lambda: tmp_path_factory.mktemp("recorded"), copies.run)


@pytest.fixture
def pytester(pytester: pytest.Pytester, copies: Copies, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Its subprocesses are copies of a process that has imported torch."""

    def run(*words: str) -> pytest.RunResult:
        began = time.monotonic()
        done = copies.run(words, pytester.path, dict(os.environ), 120, "pytest")
        took = time.monotonic() - began
        return pytest.RunResult(done.returncode, done.stdout.splitlines(), done.stderr.splitlines(), took)

    monkeypatch.setattr(pytester, "runpytest_subprocess", run)
    return pytester


@pytest.fixture
def launches_copies(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    copies: Copies,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`launch` in the module of the test starts copies of a process that has imported torch."""
    monkeypatch.setattr(request.module, "launch", by_copies(copies, tmp_path_factory.mktemp("launch")))


@pytest.fixture
def leakscope(tmp_path: Path, copies: Copies) -> Command:
    """Runs the command line in an empty folder, as a copy of a process that has imported it and torch."""

    def run(
        *arguments: object, timeout: float = 120, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return copies.run([str(word) for word in arguments], tmp_path, {**os.environ, **(env or {})}, timeout)

    return run


@pytest.fixture
def leakscope_process(tmp_path: Path, starts_processes: None) -> Command:
    """As `leakscope`, in new processes of `python -m leakscope`."""

    def run(
        *arguments: object, timeout: float = 120, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "leakscope", *map(str, arguments)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**os.environ, **(env or {})},
            check=False,
        )

    return run
