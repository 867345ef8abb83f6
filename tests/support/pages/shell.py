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
from support.pages import beside

TIMEOUT_S = 120
"""For one command."""
OF_A_SHELL = frozenset("|&;<>$`*()~")
"""What only a shell understands: a command with one of these is bash's."""
NOT_HEARD = ("CI", "GITHUB_", "COLUMNS", "NO_COLOR", "FORCE_COLOR", "PYTEST_", "LEAKSCOPE_")
"""Variables that change what a command says, and are not the reader's."""
NOT_THE_READERS = "-p no:asyncio"
"""pytest-asyncio, which the tests need and a reader need not have, warns where its settings are not given."""
MEETING = "node0:29500"
"""Where the machines of a page meet."""
TASKS: Mapping[str, Callable[[int, int], dict[str, str]]] = {
    "srun": lambda rank, world: {"SLURM_PROCID": f"{rank}", "SLURM_NTASKS": f"{world}", "SLURM_STEP_ID": "0"},
    "mpirun": lambda rank, world: {"OMPI_COMM_WORLD_RANK": f"{rank}", "OMPI_COMM_WORLD_SIZE": f"{world}"},
}
"""Launchers that a test machine lacks: what they set for each task, and what of it leakscope and scripts read."""


class Shell:
    """A terminal in a folder; `aside` is for what the folder's owner is not to see."""

    def __init__(self, folder: Path, aside: Path, copies: Copies) -> None:
        self._folder, self._aside, self._copies = folder, aside, copies
        aside.mkdir()

    def run(self, words: str) -> tuple[int, str]:
        """The status, and what a terminal shows."""
        first, pipe, rest = words.partition(" | ")
        variables, typed = split(first)
        if typed is None or (pipe and typed[0] not in ("leakscope", "pytest")):
            return self._bash(words)
        if pipe:
            piped = self._copy(typed[0], typed[1:], variables)[1]
            return self._bash(rest, piped)
        if typed[0] in TASKS:
            world, command = int(typed[2]), typed[3:]
            told = self.beside([(shlex.join(command), TASKS[typed[0]](rank, world)) for rank in range(world)])
            return max(status for status, _ in told), "".join(output for _, output in told)
        if typed[0] == "torchrun":
            typed = ["python", "-m", "torch.distributed.run", *typed[1:]]
        if typed[0] == "python" and len(typed) > 1:
            typed = typed[2:] if typed[1] == "-m" else typed[1:]
        if typed[0] in ("leakscope", "pytest", "torch.distributed.run") or typed[0].endswith(".py"):
            return self._copy(typed[0], typed[1:], variables)
        return self._bash(words)

    def beside(self, commands: list[tuple[str, dict[str, str]]]) -> list[tuple[int, str]]:
        """Each with its variables, all at the same time; they meet at a port that is free."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            here = f"127.0.0.1:{free.getsockname()[1]}"
        asked = [(shlex.split(words.replace(MEETING, here)), variables) for words, variables in commands]
        status, output, told = self.ask(Path(beside.__file__), asked)
        assert status == 0, output
        return [(status, text.replace(here, MEETING)) for status, text in json.loads(told)]

    def ask(self, program: Path, ask: Any) -> tuple[int, str, str]:
        """A script of ours, asked in one file and answering in another: its status, its output, its answer."""
        asked, answered = self._aside / "asked.json", self._aside / "answered.json"
        asked.write_text(json.dumps(ask), encoding="utf-8")
        answered.write_text("", encoding="utf-8")
        status, output = self._copy(str(program), [str(asked), str(answered)], {})
        return status, output, answered.read_text(encoding="utf-8")

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
    if OF_A_SHELL & set(words) or "\n" in words:
        return {}, None
    typed = shlex.split(words)
    variables = {}
    while typed and (found := re.fullmatch(r"([A-Z_][A-Z0-9_]*)=(.*)", typed[0])):
        variables[found[1]] = found[2]
        typed.pop(0)
    return variables, typed or None


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(NOT_HEARD)}
    here = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return kept | {"PATH": here, "PYTEST_ADDOPTS": NOT_THE_READERS}
