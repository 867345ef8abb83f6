"""Runs a command of a page: what starts leakscope as a copy of a process that has imported it, the rest in bash."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from support.commands.preloaded import Copies
from support.pages import concurrent_commands

TIMEOUT_S = 300
"""For one command."""
SHELL_CHARACTERS = frozenset("|&;<>$`*()~")
"""Characters that need a shell: a command with one of them runs in bash."""
UNSET = ("CI", "GITHUB_", "COLUMNS", "NO_COLOR", "FORCE_COLOR", "PYTEST_", "LEAKSCOPE_")
"""Beginnings of variables that change the output of a command and that a reader does not have."""
PYTEST_OPTIONS = "-p no:asyncio"
"""A reader need not have pytest-asyncio, which warns about missing settings."""
MEETING = "node0:29500"
"""The rendezvous of the machines of a page."""
TASKS: Mapping[str, Callable[[int, int], dict[str, str]]] = {
    "srun": lambda rank, world: {"SLURM_PROCID": f"{rank}", "SLURM_NTASKS": f"{world}", "SLURM_STEP_ID": "0"},
    "mpirun": lambda rank, world: {"OMPI_COMM_WORLD_RANK": f"{rank}", "OMPI_COMM_WORLD_SIZE": f"{world}"},
}
"""Variables that launchers set for each task, for those that are not installed on a test machine."""


class Shell:
    """A terminal in a folder; files of the tests go to the folder `aside`."""

    def __init__(self, folder: Path, aside: Path, copies: Copies) -> None:
        self._folder, self._aside, self._copies = folder, aside, copies
        aside.mkdir()

    def run(self, words: str) -> tuple[int, str]:
        """The status, and the output of a terminal."""
        first, pipe, rest = words.partition(" | ")
        variables, typed = split(first)
        if typed is None or (pipe and typed[0] not in ("leakscope", "pytest")):
            return self._bash(words)
        if pipe:
            piped = self._copy(typed[0], typed[1:], variables)[1]
            return self._bash(rest, piped)
        if typed[0] in TASKS:
            world, command = int(typed[2]), typed[3:]
            done = self.at_once([(shlex.join(command), TASKS[typed[0]](rank, world)) for rank in range(world)])
            return max(status for status, _ in done), "".join(output for _, output in done)
        if typed[0] == "torchrun":
            typed = ["python", "-m", "torch.distributed.run", *typed[1:]]
        if typed[0] == "python" and len(typed) > 1:
            typed = typed[2:] if typed[1] == "-m" else typed[1:]
        if typed[0] in ("leakscope", "pytest", "torch.distributed.run") or typed[0].endswith(".py"):
            return self._copy(typed[0], typed[1:], variables)
        return self._bash(words)

    def at_once(self, commands: list[tuple[str, dict[str, str]]]) -> list[tuple[int, str]]:
        """Run each with its variables, all at the same time, with a free port for their rendezvous."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            here = f"127.0.0.1:{free.getsockname()[1]}"
        request = [(shlex.split(words.replace(MEETING, here)), variables) for words, variables in commands]
        status, output, done = self.exchange(Path(concurrent_commands.__file__), request)
        assert status == 0, output
        return [(status, text.replace(here, MEETING)) for status, text in json.loads(done)]

    def exchange(self, program: Path, data: Any) -> tuple[int, str, str]:
        """Run a script that reads one file and writes another: its status, its output, what it wrote."""
        request, response = self._aside / "request.json", self._aside / "response.json"
        request.write_text(json.dumps(data), encoding="utf-8")
        response.write_text("", encoding="utf-8")
        status, output = self._copy(str(program), [str(request), str(response)], {})
        return status, output, response.read_text(encoding="utf-8")

    def _copy(self, program: str, words: list[str], variables: dict[str, str]) -> tuple[int, str]:
        env = environment() | variables
        done = self._copies.run(words, self._folder, env, TIMEOUT_S, program, together=True)
        return done.returncode, done.stdout

    def _bash(self, words: str, read: str = "") -> tuple[int, str]:
        done = subprocess.run(
            ["bash", "-c", words],
            cwd=self._folder,
            env=environment(),
            input=read,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        return done.returncode, done.stdout


def split(words: str) -> tuple[dict[str, str], list[str] | None]:
    """The variables set for a command and its words; no words where only a shell understands them."""
    words = words.replace("\\\n", " ")
    if SHELL_CHARACTERS & set(words) or "\n" in words:
        return {}, None
    typed = shlex.split(words)
    variables = {}
    while typed and (found := re.fullmatch(r"([A-Z_][A-Z0-9_]*)=(.*)", typed[0])):
        variables[found[1]] = found[2]
        typed.pop(0)
    return variables, typed or None


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(UNSET)}
    here = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return kept | {"PATH": here, "PYTEST_ADDOPTS": PYTEST_OPTIONS}
