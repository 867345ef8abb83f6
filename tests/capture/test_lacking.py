"""Without a private name of torch the script runs unchanged and no verdict is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import pytest
from support import ROOT

import leakscope.process.torch_compat
from leakscope._version import __version__
from leakscope.findings import judge
from leakscope.findings.model import Findings
from leakscope.options import Options
from leakscope.process.torch_compat import TABLE, RecordingPart
from leakscope.report.text.page import render
from leakscope.run.model import Run
from leakscope.run.reader import read_run
from leakscope.run.writer import write_run
from leakscope.verdict import Verdict

pytestmark = pytest.mark.process

assert leakscope.process.torch_compat  # fills the table

LEAKING = """
import sys, torch
torch.manual_seed(0)
net, losses = torch.nn.Linear(64, 64), []
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(8):
    loss = net(torch.ones(256, 64)).relu().sum()
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    optimizer.step()
    losses.append(loss)
    print(loss.item())
raise ValueError("the end")
"""
EVERY_STEP = {"budget": 1.0, "lifetimes": False}
"""As many looks as there can be."""
UNSEEN = {"budget": 0.0, "warmup": 8}
"""None, as each takes half a second: all steps are of the warm-up."""
ONE_OF_EACH = [
    [private for private in privates if private is not None]
    for privates in zip_longest(
        *([p for p in TABLE if p.part is part] for part in RecordingPart if part is not RecordingPart.SNAPSHOTS)
    )
]
"""What is hidden together: one name of each part, but of looks, without which most else is left out too."""
HIDDEN = [*([private] for private in TABLE[::6] if private.part is RecordingPart.SNAPSHOTS), *ONE_OF_EACH]


class Recorded(NamedTuple):
    status: int
    stdout: str
    stderr: str
    run: Run
    findings: Findings


class Ranks:
    """One process, copied for each rank that is run."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._calls = folder, 0
        command = [sys.executable, str(ROOT / "tests" / "support" / "commands" / "lacking.py")]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def _ask(self, script: str, hidden: Sequence[str] = (), **options: object) -> tuple[int, Path]:
        self._calls += 1
        folder = self._folder / str(self._calls)
        folder.mkdir()
        path = folder / "script.py"
        path.write_text(script)
        words: list[str] = []
        if options:
            options_given = Options.of({"script": str(path), "folder": folder, "warmup": 1, **options})
            words = options_given.to_words()
            about = {"command": ["script.py"], "ranks": 1, "leakscope": __version__, "warmup": 1, "min_bytes": 65536}
            write_run(folder, about)
        ask = {"folder": str(folder), "script": str(path), "hidden": list(hidden), "words": words}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(ask) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline()), folder

    def plainly(self, script: str) -> tuple[int, str]:
        """(status, stdout) of Python alone."""
        status, folder = self._ask(script)
        return status, (folder / "stdout.txt").read_text()

    def run(self, script: str, hidden: Sequence[str], **options: object) -> Recorded:
        """A rank whose torch lacks what is hidden."""
        status, folder = self._ask(script, hidden, **options)
        run = read_run(folder)
        reported = [(folder / name).read_text() for name in ("stdout.txt", "stderr.txt")]
        return Recorded(status, *reported, run, judge(run))


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    ranks = Ranks(tmp_path_factory.mktemp("lacking"))
    yield ranks
    assert ranks.process.stdin is not None
    ranks.process.stdin.close()
    assert ranks.process.wait(60) == 0


@pytest.fixture(scope="module")
def plain(ranks: Ranks) -> tuple[int, str]:
    return ranks.plainly(LEAKING)


@pytest.mark.parametrize("number", range(len(HIDDEN)), ids=lambda n: HIDDEN[n][0].path.removeprefix("torch."))
def test_the_script_runs_unchanged_and_a_note_names_what_is_missing(
    ranks: Ranks, plain: tuple[int, str], number: int
) -> None:
    hidden = HIDDEN[number]
    recorded = ranks.run(LEAKING, [private.path for private in hidden], world=2, **UNSEEN)
    assert (recorded.status, recorded.stdout) == plain
    assert recorded.stderr.endswith("ValueError: the end\n")
    assert "leakscope: " not in recorded.stderr
    rank = recorded.run.ranks[0]
    notes = [note for note in rank.notes if note.startswith("this torch has no ")]
    assert len(rank.steps) == 8
    for private in hidden:
        assert len([note for note in notes if f"no {private.path}" in note]) == 1
    assert len(notes) == len({private.part for private in hidden})
    assert recorded.findings.verdict == Verdict.INCONCLUSIVE


def test_without_sight_of_cpp_no_figure_is_given(ranks: Ranks) -> None:
    hidden = [private.path for private in TABLE if private.part in (RecordingPart.NATIVE, RecordingPart.SPARSE)]
    recorded = ranks.run(LEAKING, hidden, **EVERY_STEP)
    assert recorded.findings.verdict in (Verdict.INCONCLUSIVE, Verdict.LEAKS)
    assert all(snapshot.hides for snapshot in recorded.run.ranks[0].heap_snapshots)
    cuts = [finding.cut for finding in recorded.findings.findings if finding.cut is not None]
    assert [cut.reported_bytes for cut in cuts] == [None] * len(cuts)
    text = render(recorded.run, recorded.findings)
    assert "would be freed" not in text
    assert "cutting this frees" not in text
