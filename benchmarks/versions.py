"""Runs the tests on several versions of Python and torch and prints a table."""

from __future__ import annotations

import argparse
import datetime
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("3.11:2.10.0", "3.12:2.14.1", "3.13:2.15.0")
LONGEST_S = 2400
"""Seconds that one run of the tests may take, chosen."""
TESTS = {
    "unit lane": ["-m", "unit", "--ignore", "tests/corpus", "--ignore", "tests/backward", "tests"],
    "leak corpus": ["tests/corpus"],
    "backward": ["tests/backward"],
}
"""Column of the table to what pytest is asked to run."""
WORKERS = ["-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"]
TORCHS_FILES = ("test_backward.py", "test_schedule.py")
"""Those of torch's own tests that are run, where they are there: the others want several ranks."""
TORCHS_NEED = ("expecttest", "hypothesis")
"""What torch's own tests import beside torch."""
RUNNERS = {
    "torch's": "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))",
    "ours": "import sys, pytest, leakscope.backward as b; b.install(); sys.exit(pytest.main(sys.argv[1:]))",
    "ours and outputs released": (
        "import sys, pytest, leakscope.backward as b; "
        "b.install(release_outputs=True); sys.exit(pytest.main(sys.argv[1:]))"
    ),
}
"""Whose backward it is to what Python runs."""
TORCHS = "torch's own tests"
PIPELINE = "sample pipeline"
COUNT = re.compile(r"(\d+) (passed|failed|skipped|errors?)\b")


def interpreter(version: str) -> str | None:
    """The Python of this version, on the path or among pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for found in (shutil.which(f"python{version}"), *map(str, sorted(pyenv.glob(f"versions/{version}.*/bin/python")))):
        if found and subprocess.run([found, "-c", "pass"], capture_output=True, check=False).returncode == 0:
            return found
    return None


def environment(folder: Path, version: str, torch: str) -> Path | str:
    """The Python of an environment with this torch and leakscope as it stands here; or why there is none."""
    place = folder / f"py{version}-torch{torch}"
    python = place / "bin" / "python"
    if not python.exists():
        made_by = interpreter(version)
        if made_by is None:
            return f"there is no Python {version} here: left out"
        subprocess.run([made_by, "-m", "venv", str(place)], check=True)
    install = [str(python), "-m", "pip", "install", "--quiet"]
    for wanted in ([f"torch=={torch}"], ["--upgrade", "setuptools>=68", "wheel"]):
        if subprocess.run([*install, *wanted], check=False).returncode:
            return f"pip could not install {wanted[-1] if 'torch' not in wanted[0] else wanted[0]}: left out"
    done = subprocess.run([*install, "--no-build-isolation", "--editable", ".[test]"], cwd=ROOT, check=False)
    return python if done.returncode == 0 else "leakscope could not be installed: left out"


def counted(output: str) -> str:
    """`2900 passed, 1 failed, 40 skipped`, of pytest's last lines."""
    last = next((line for line in reversed(output.splitlines()) if COUNT.search(line)), "")
    counts = {word.rstrip("s") if word.startswith("error") else word: int(n) for n, word in COUNT.findall(last)}
    return ", ".join(f"{counts[word]:,} {word}" for word in ("passed", "failed", "error", "skipped") if word in counts)


def tested(python: Path, arguments: list[str], log: Path) -> str:
    """What came of one run of the tests; its output goes to a file."""
    command = [str(python), "-m", "pytest", "-p", "no:cacheprovider", "-rfEs", *WORKERS, *arguments]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LONGEST_S, check=False)
    except subprocess.TimeoutExpired:
        return f"not over after {LONGEST_S} s"
    log.write_text(done.stdout + done.stderr, encoding="utf-8")
    return counted(done.stdout) or f"ended with status {done.returncode}"


def of_its_own(python: Path, file: Path, runner: str, log: Path) -> tuple[int, int] | str:
    """How many of the tests in this file of torch's pass, and how many ran; or what came in the way."""
    command = [str(python), "-c", runner, "-p", "no:cacheprovider", "-p", "no:xdist", "-rfEs", str(file)]
    there = os.environ | {"PYTHONPATH": str(file.parent), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command, cwd=file.parent, env=there, capture_output=True, text=True, timeout=LONGEST_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"not over after {LONGEST_S} s"
    log.write_text(done.stdout + done.stderr, encoding="utf-8")
    last = next((line for line in reversed(done.stdout.splitlines()) if COUNT.search(line)), "")
    counts = {word.rstrip("s"): int(n) for n, word in COUNT.findall(last)}
    if not counts:
        return f"ended with status {done.returncode}"
    passed = counts.get("passed", 0)
    return passed, passed + counts.get("failed", 0) + counts.get("error", 0)


def torchs_own(python: Path, folder: Path | None) -> str:
    """What came of torch's own tests of this version, with torch's backward and with ours in its place."""
    files = [] if folder is None else [folder / name for name in TORCHS_FILES if (folder / name).is_file()]
    if not files:
        return "not there"
    wanted = [str(python), "-m", "pip", "install", "--quiet", *TORCHS_NEED]
    if subprocess.run(wanted, check=False).returncode:
        return f"pip could not install {' and '.join(TORCHS_NEED)}: not run"
    cells = []
    for file in files:
        logs = python.parents[1]
        ran = {
            runner_name: of_its_own(python, file.resolve(), runner, logs / f"{file.stem} with {runner_name}.txt")
            for runner_name, runner in RUNNERS.items()
        }
        results = ", ".join(
            f"{came if isinstance(came, str) else f'{came[0]} of {came[1]}'} with {runner_name}"
            for runner_name, came in ran.items()
        )
        theirs, *ours = ran.values()
        least = 0 if isinstance(theirs, str) else theirs[0]
        worse = any(isinstance(came, str) or came[0] < least for came in ours)
        cells.append(f"{file.stem} {results}{' (fewer)' if worse else ''}")
    return "; ".join(cells)


def versions_text(python: Path, folder: Path) -> str:
    """Whether the demo finds the leak that is planted in the sample pipeline."""
    done = subprocess.run(
        [str(python), "-m", "leakscope", "demo"], cwd=folder, capture_output=True, timeout=LONGEST_S, check=False
    )
    return "leak found" if done.returncode == 0 else f"ended with status {done.returncode}"


def row(folder: Path, version: str, torch: str, torchs: Path | None) -> str:
    """A line of the table."""
    python = environment(folder, version, torch)
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    if isinstance(python, str):
        print(f"Python {version} with torch {torch}: {python}", flush=True)
        return f"| {version} | {torch} | {python} | | | | | {today} |"
    ran = [tested(python, arguments, python.parents[1] / f"{name}.txt") for name, arguments in TESTS.items()]
    ran.append(torchs_own(python, torchs and torchs / torch))
    exact = subprocess.run([str(python), "-V"], capture_output=True, text=True, check=True).stdout.split()[-1]
    return f"| {exact} | {torch} | {' | '.join(ran)} | {versions_text(python, python.parents[1])} | {today} |"


def main() -> None:
    """Print the table and write it beside the environments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=ROOT / ".versions")
    parser.add_argument("--torch-tests", type=Path, metavar="DIR")
    parser.add_argument("versions", nargs="*", default=list(VERSIONS), metavar="PYTHON:TORCH")
    options = parser.parse_args()
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    names = ["Python", "torch", *TESTS, TORCHS, PIPELINE, "date"]
    table = ["| " + " | ".join(names) + " |", "|-" * len(names) + "|"]
    for pair in options.versions:
        version, _, torch = pair.partition(":")
        table.append(row(folder, version, torch, options.torch_tests))
        print(table[-1], flush=True)
        (folder / "table.md").write_text("\n".join(table) + "\n", encoding="utf-8")
    print("\n".join(table))
    sys.exit(any(re.search(r"\d failed|\d error|status|not over|fewer", line) is not None for line in table))


if __name__ == "__main__":
    main()
