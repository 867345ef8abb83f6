"""An internal error at any place ends the recording and leaves the script unaffected."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import ROOT
from support.commands.recorded_runs import Runs
from support.faults import scripts

from leakscope.findings import judge
from leakscope.findings.model import Reason, Why
from leakscope.run.reader import read_run
from leakscope.run.rows import EndKind, Occasion
from leakscope.run.writer import write_run
from leakscope.verdict import Verdict

pytestmark = pytest.mark.process

STATUS = 3
OWN_LINE = "the script's own word"
SCRIPTS: tuple[tuple[str, dict[str, Any]], ...] = (
    (scripts.TRAINING, {"rank": 0, "world": 2, "warmup": 1, "checksums": True}),
    (scripts.STEP_FUNCTION, {"step_function": "train_step"}),
)


def test_an_internal_error_ends_the_recording_and_not_the_script(tmp_path: Path, runs: Runs) -> None:
    plain, recorded = {}, []
    for place, (text, options) in enumerate(SCRIPTS):
        script = tmp_path / f"script_{place}.py"
        script.write_text(text)
        recorded.append((str(script), options))
        ran = runs.plain(text)
        assert ran.returncode == STATUS, ran.stderr
        plain[str(script)] = ran.stdout
    command = [sys.executable, "-m", "support.faults.planted", str(tmp_path), json.dumps(recorded)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests"), "OMP_NUM_THREADS": "1"}
    subprocess.run(command, env=environment, check=True, timeout=280)
    runs = json.loads((tmp_path / "told.json").read_text())
    assert len(runs) > 6
    wrong = {each.get("name", ""): list(what_is_wrong(plain[each["script"]], **each)) for each in runs}
    assert {name: problems for name, problems in wrong.items() if problems} == {}


def what_is_wrong(plain: str, script: str, folder: str, status: int, name: str = "", error: str = "") -> Iterator[Any]:
    """What the run of a script shows of the error that was planted in it, besides one sentence."""
    run = Path(folder)
    if (status, (run / "stdout").read_text()) != (STATUS, plain):
        yield status, (run / "stdout").read_text()
    lines = (run / "stderr").read_text().splitlines()
    ours = [line for line in lines if line.startswith("leakscope: ")]
    if [line for line in lines if line not in ours] != [OWN_LINE]:
        yield lines
    write_run(run / "run", {"command": ["train.py"], "ranks": 1, "warmup": 1})
    recorded = read_run(run / "run")
    (rank,) = recorded.ranks
    if (rank.ended.how, rank.ended.status) != (EndKind.EXITED, STATUS):
        yield rank.ended
    if [f"leakscope: {each.why}; the script runs on" for each in rank.recording_ended] != ours:
        yield rank.recording_ended, ours
    if not name:
        if ours or not rank.steps:
            yield ours, rank.steps
        return
    # what is called around a function goes by the function's own name
    words = [f"{error}: planted (in {place}); the script runs on" for place in (name, name.partition(" of ")[2])]
    if len(ours) != 1 or not ours[0].endswith(tuple(words)):
        yield ours
    findings = judge(recorded)
    has_last = any(snapshot.occasion == Occasion.END for snapshot in rank.heap_snapshots)
    reason = findings.why.reason if isinstance(findings.why, Why) else None
    if not has_last and (findings.verdict, reason) != (Verdict.INCONCLUSIVE, Reason.RECORDING_ENDED):
        yield findings.why
