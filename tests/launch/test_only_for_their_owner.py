"""Files of a run are readable by their owner only and contain no secret of the command line."""

from __future__ import annotations

import json
import stat
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

Command = Callable[..., "subprocess.CompletedProcess[str]"]
Write = Callable[..., Path]

SECRET = "hunter2"
SHORT = "s3c"
"""Too short to be looked for in messages: it is hidden in the command line alone."""
WORDS = ("--password", SHORT, f"--api-key={SECRET}", "--token", SECRET, f"--tracker=https://me:{SECRET}@host/x")
TRAIN = """
import json, os, pathlib, shutil, subprocess, sys
import torch

class Data(torch.utils.data.Dataset):
    seen = []
    def __len__(self): return 8
    def __getitem__(self, k):
        self.seen.append(bytes(10_000))
        return torch.ones(4)

model = torch.nn.Linear(4, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kept = []
for rows in torch.utils.data.DataLoader(Data(), num_workers=1):
    out = model(rows)
    out.sum().backward()
    optimizer.step()
    kept.append(out)
if "child" not in sys.argv:
    subprocess.run([sys.executable, __file__, "child", *sys.argv[1:]])
    run = pathlib.Path("run")
    for path in run.rglob("*"):  # while it goes on
        if path.is_file():
            (copy := pathlib.Path("copy") / path.relative_to(run)).parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    pathlib.Path("modes.json").write_text(json.dumps({str(path): path.lstat().st_mode for path in run.rglob("*")}))
raise ValueError(f"refused {sys.argv[-1]} and {sys.argv[-2]}")
"""


def wrong(modes: Mapping[str, int]) -> dict[str, str]:
    """What is open to others, or is closed to its owner."""
    allowed = {stat.S_IFDIR: 0o700, stat.S_IFREG: 0o600}
    kept = {path: mode for path, mode in modes.items() if stat.S_IFMT(mode) in allowed}
    return {path: oct(mode) for path, mode in kept.items() if stat.S_IMODE(mode) != allowed[stat.S_IFMT(mode)]}


def modes_below(folder: Path) -> dict[str, int]:
    return {str(path): path.lstat().st_mode for path in folder.rglob("*")}


def revealing(folder: Path) -> list[str]:
    """Files with the secret in them; what the script prints is its own."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.parent.name != "logs")
    return [str(path) for path in files if SECRET.encode() in path.read_bytes()]


def test_a_run_into_a_folder_that_others_may_enter(leakscope: Command, script: Write, tmp_path: Path) -> None:
    script(TRAIN)
    run = tmp_path / "run"
    run.mkdir()
    run.chmod(0o755)
    done = leakscope("run", "-o", "run", "--as", "sarif=run/run.sarif", "train.py", *WORDS)
    assert done.returncode == 1, done.stdout + done.stderr
    notes = [line for line in done.stderr.splitlines() if "0755" in line]
    assert len(notes) == 1 and stat.S_IMODE(run.stat().st_mode) == 0o755
    for words in (["report", "run"], ["compare", "run", "run", "--as", "html", "-o", "run/compare.html"]):
        done = leakscope(*words)
        assert done.returncode in (0, 23), done.stderr
        assert SECRET not in done.stdout
    during = json.loads((tmp_path / "modes.json").read_text())
    written = {Path(path).name for path in {*during, *modes_below(run)}}
    assert written >= {
        ".follow.json", "run.json", "run.sarif", "compare.html", "findings.json", "report.html", "who.json",
        "loader_workers.jsonl", "ended.json",
    }  # fmt: skip
    assert wrong(during) == wrong(modes_below(run)) == {}
    assert revealing(run) == revealing(tmp_path / "copy") == []
    assert SHORT not in (tmp_path / "copy" / ".follow.json").read_text()
    ends = [json.loads(path.read_text()) for path in sorted(run.glob("rank_*/ended.json"))]
    assert all("****" in end["error"] for end in ends) and len(ends) == 2
