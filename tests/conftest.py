"""What all tests share."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that tests start leave the machine to others."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


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
