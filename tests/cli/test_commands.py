"""The command line: options of leakscope and of the script, one line for bad input, and the exit statuses."""

from __future__ import annotations

import json
import os
import subprocess
import zipfile
from collections.abc import Callable, Iterable
from importlib.util import MAGIC_NUMBER
from pathlib import Path

import click
import pytest
from leakscope_cli.recorded import baseline_of
from leakscope_cli.run import run

from leakscope.findings import Findings, Policy
from leakscope.findings.judge import JudgedRank
from leakscope.run.model import Run

Command = Callable[..., "subprocess.CompletedProcess[str]"]
Write = Callable[..., Path]


@pytest.mark.parametrize(
    ("line", "ranks", "steps", "module", "words"),
    [
        ("train.py", None, None, None, "train.py"),
        ("train.py --ranks 2", 2, None, None, "train.py"),
        ("-n 2 train.py --steps 5 -o x", 2, None, None, "train.py --steps 5 -o x"),
        ("train.py --ranks=2 --steps 5", 2, None, None, "train.py --steps 5"),
        ("train.py --ranks 2 --steps 9 -- --leak none", 2, 9, None, "train.py --leak none"),
        ("--steps 3 train.py -- --ranks 4", None, 3, None, "train.py --ranks 4"),
        ("train.py a -- b", None, None, None, "train.py a -- b"),
        ("-n 2 -m pack.train --steps 5", 2, None, "pack.train", "--steps 5"),
        ("-m pack.train --ranks 2 -q x", 2, None, "pack.train", "-q x"),
    ],
)
def test_options_before_the_script_are_leakscopes(
    line: str, ranks: int | None, steps: int | None, module: str | None, words: str
) -> None:
    context = run.make_context("run", line.split())
    reported = context.params
    assert (reported["ranks"], reported["steps"], reported["module"], reported["words"]) == (
        ranks,
        steps,
        module,
        tuple(words.split()),
    )


def test_an_unknown_option_before_the_script_is_refused() -> None:
    with pytest.raises(click.UsageError):
        run.make_context("run", ["--stepz", "3", "train.py"])


BAD = """
run missing.py
run notes.txt
run train.bin
run .
run
run -
run pipe
run /dev/null
run empty
run empty.zip
run old.pyc
run --step-function train_step compiled.pyc
run odd.py
run nul.py
run deep.py
run -m
run -m train.py
run -m a..b
run -m no_such_module
run --ranks 0 train.py
run --steps 0 train.py
run -o taken train.py
demo -o taken
run -f -o taken train.py
run -o /proc/nowhere train.py
run --nnodes 2 train.py
run --prove train.py
run --step-function train-step train.py
run --hang-timeout -5 train.py
run --hang-timeout nan train.py
run --hang-timeout inf train.py
run --leak-exit-code 999 train.py
run --leak-exit-code -1 train.py
report --leak-exit-code 256 taken
run --budget nan train.py
run --budget 2 train.py
run --budget 200% train.py
run --min-bytes -1 train.py
run --warmup -1 train.py
run --node-rank 1 train.py
run --fail-on-avoidable lots train.py
run --stepz 3 train.py
run --as pdf train.py
run --as sarif=gone/leaks.sarif train.py
run --json --as html train.py
report --as pdf taken
report --fail-on-avoidable -1 taken
run --baseline notes.txt train.py
run --suppress missing.txt train.py
run --suppress empty train.py
run --baseline missing train.py
run --suppress known.txt train.py
report --suppress known.txt newer
report --baseline notes.txt newer
report taken
report newer
compare taken newer
merge taken newer -o out
merge taken
"""


def test_bad_input_gets_status_2_and_one_line_that_names_it(
    leakscope_process: Command, script: Write, tmp_path: Path
) -> None:
    from click.testing import CliRunner
    from leakscope_cli import main

    script("print('hello')\n")
    script("this is no python\n", "notes.txt")
    script("step-growth  # known\nview-hold until next year\n", "known.txt")
    (tmp_path / "train.bin").write_bytes(b"\x00\xff\xfe")
    (tmp_path / "old.pyc").write_bytes(b"\x00" * 16)
    (tmp_path / "compiled.pyc").write_bytes(MAGIC_NUMBER)
    (tmp_path / "odd.py").write_bytes(b"# coding: nonsense")
    (tmp_path / "nul.py").write_bytes(b"print()\0")
    (tmp_path / "deep.py").write_text("-" * 200_000 + "1")
    (tmp_path / "empty").mkdir()
    zipfile.ZipFile(tmp_path / "empty.zip", "w").close()
    os.mkfifo(tmp_path / "pipe")
    for folder, text in (("taken", "{}"), ("newer", '{"format": 99}')):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / ("run.json" if folder == "newer" else "other.json")).write_text(text)
    runner = CliRunner()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        for line in BAD.strip().splitlines():
            words = ["Missing option"] * ("merge" in line)
            words += [part for word in line.split()[1:] for part in (word, word.partition("=")[2] or word)]
            result = runner.invoke(main, line.split())
            assert result.exit_code == 2, (line, result.output)
            assert not words or any(word in result.stderr for word in words), (line, result.stderr)
            assert result.stderr.startswith("leakscope: ") and result.stderr.count("\n") == 1, (line, result.stderr)
            assert result.stdout == ""
    assert leakscope_process("run", "missing.py").returncode == 2


@pytest.mark.parametrize(
    ("reported", "typed", "judged"),
    [
        ({}, "", (False, None)),
        ({}, "--ignore-library --fail-on-avoidable 64KiB", (True, 64 * 1024)),
        ({"ignore_library": True, "fail_on_avoidable": 4096}, "", (True, 4096)),
        ({"ignore_library": False, "fail_on_avoidable": 4096}, "--fail-on-avoidable 0", (False, 0)),
        ({"ignore_library": "yes", "fail_on_avoidable": True}, "", (False, None)),
    ],
    ids=str,
)
def test_a_run_is_judged_again_with_its_own_options_or_those_given(
    reported: dict[str, object], typed: str, judged: tuple[bool, int | None], tmp_path: Path
) -> None:
    from click.testing import CliRunner
    from leakscope_cli import main

    import leakscope.findings
    from leakscope.run.writer import write_run

    write_run(tmp_path / "seen", {"command": ["train.py"], "ranks": 1, "options": reported})
    calls: list[tuple[object, object]] = []

    def judge(run: Run, ranks: Iterable[JudgedRank], policy: Policy) -> Findings:
        calls.append((policy.ignore_library, policy.fail_on_avoidable))
        return judged_as_it_is(run, ranks, policy)

    judged_as_it_is = leakscope.findings.judge_together
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leakscope.findings, "judge_together", judge)
        assert CliRunner().invoke(main, ["report", *typed.split(), str(tmp_path / "seen")]).exit_code == 0
    assert calls == [judged]


LEAKY = """
import torch
torch.set_num_threads(1)
net = torch.nn.Linear(256, 1024)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
losses = []
for _ in range(30):
    out = net(torch.ones(256, 256))
    losses.append(out)
    out.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    print("loss", flush=True)
"""


def test_a_leaking_run_end_to_end(
    leakscope_process: Command, leakscope: Command, script: Write, tmp_path: Path
) -> None:
    script(LEAKY)
    script(LEAKY.replace("losses.append(out)", "pass"), "clean.py")
    leaky = leakscope_process("run", "--json", "-q", "--steps", "6", "-o", "leaky", "train.py")
    assert leaky.returncode == 23, leaky.stderr
    data = json.loads(leaky.stdout)
    assert data["verdict"] == "leaks" and data["exit_status"] == 23 and data["run"]["steps"] == 6
    assert leaky.stderr == "loss\n" * 5, "the rank's stdout goes to stderr, the stop is not shown"
    finding = data["findings"][0]
    assert finding["rule"] == "step-growth" and "losses" in json.dumps(finding["trace"])
    assert abs(finding["bytes_per_step"] - (1 << 20)) < 0.1 * (1 << 20)
    assert json.loads((tmp_path / "leaky" / "findings.json").read_text()) == data
    assert "losses" in (tmp_path / "leaky" / "report.html").read_text()

    clean = leakscope("run", "--steps", "6", "-o", "clean", "clean.py")
    assert clean.returncode == 0 and "CLEAN" in clean.stdout
    assert "\nPage       clean/report.html, or as text" in clean.stdout
    assert [known.pattern for known in baseline_of(tmp_path / "leaky")] == [f["fingerprint"] for f in data["findings"]]

    text = leakscope("report", "leaky")
    assert text.returncode == 0 and "losses" in text.stdout
    assert leakscope("report", "leaky", "--leak-exit-code", "9").returncode == 9
    changed = leakscope("compare", "clean", "leaky")
    assert changed.returncode == 23 and "leaks: 1 new (exit status 23)" in changed.stdout
    assert leakscope("compare", "leaky", "clean").returncode == 0


def test_the_status_of_a_failed_script_is_written_and_reported(
    leakscope: Command, script: Write, tmp_path: Path
) -> None:
    script("import torch\nraise SystemExit(7)\n", "fails.py")
    done = leakscope("run", "-o", "failed", "fails.py")
    assert done.returncode == 7, done.stderr
    assert "(exit status 7)" in done.stdout
    assert json.loads((tmp_path / "failed" / "findings.json").read_text())["exit_status"] == 7


def test_the_demo_finds_its_planted_leak(leakscope: Command, tmp_path: Path) -> None:
    done = leakscope("demo", "-o", "shown")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "shown" / "findings.json").read_text())
    assert found["verdict"] == "leaks" and "closure collect" in json.dumps(found["findings"][0]["cut"])
    assert (tmp_path / "shown" / "report.html").exists()
