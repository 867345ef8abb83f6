"""Scripts run under the command and under python, each once for all tests that ask for the same run."""

from __future__ import annotations

import functools
import os
import subprocess
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

TIMEOUT_S = 300
"""For one run, in seconds: two ranks on a busy machine need a minute."""
Environment = tuple[tuple[str, str], ...]
"""What is added to the environment, as pairs: an argument that can be remembered."""


@dataclass(frozen=True)
class RecordedRun:
    """A run that is over."""

    done: subprocess.CompletedProcess[str]
    script: Path
    folder: Path
    """Of what was recorded."""


@dataclass(frozen=True)
class Runs:
    """Runs that were asked for with the same words are one."""

    new_folder: Callable[[], Path]
    command: Callable[..., subprocess.CompletedProcess[str]]
    """Runs `leakscope`, or a program given last, as `Copies.run` does."""

    @functools.cache  # noqa: B019 - lives as long as the session
    def recorded(self, text: str, *options: str, words: tuple[str, ...] = (), env: Environment = ()) -> RecordedRun:
        """The script under `leakscope run` with these options, and words of its own."""
        script = self._written(text)
        command = ["run", *options, "-o", "run", script.name, *words]
        done = self.command(command, script.parent, {**os.environ, **dict(env)}, TIMEOUT_S)
        return RecordedRun(done, script, script.parent / "run")

    @functools.cache  # noqa: B019 - lives as long as the session
    def plain(self, text: str, *words: str, env: Environment = ()) -> subprocess.CompletedProcess[str]:
        """The script under python."""
        script = self._written(text)
        return self.command(words, script.parent, {**os.environ, **dict(env)}, TIMEOUT_S, script.name)

    def _written(self, text: str) -> Path:
        script = self.new_folder() / "train.py"
        script.write_text(textwrap.dedent(text), encoding="utf-8")
        return script
