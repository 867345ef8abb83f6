"""What all tests share."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import TESTS

pytest_plugins = ["pytester"]

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is there: tests and what they start leave the machine to others

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def with_support() -> dict[str, str]:
    """The environment in which a process that a test starts can import `support` and `corpus`."""
    paths = [str(TESTS), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


@pytest.fixture
def nothing_collected() -> Iterator[None]:
    """No garbage of other tests, and none collected: only what the test does lies between two looks of the whole process."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    """What one test has compiled is not there for the next: leakscope watches no step of a process that compiles."""
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


@pytest.fixture
def leakscope(tmp_path: Path) -> Command:
    """Runs the command line in an empty folder of its own."""

    def run(*arguments: object, timeout: float = 120, **options: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "leakscope", *map(str, arguments)]
        environment = {**os.environ, **(options.pop("env", None) or {})}  # type: ignore[dict-item]
        return subprocess.run(
            command,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=timeout,
            env=environment,
            check=False,
            **options,
        )  # type: ignore[call-overload,no-any-return]

    return run
