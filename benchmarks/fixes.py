"""How many leaks `leakscope fix` fixes, how many patches are wrong, and what a fix costs in plain runs of the script.

    python benchmarks/fixes.py [--out DIR] [--jobs N] SCRIPT...

Each script is run plainly, recorded, and fixed. A patch is wrong if the patched script, run again for 40 steps where
its `main` takes `steps`, still leaks what was fixed, or prints something else than the script. Scripts that call
`init_process_group` run on two ranks.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

LEAKSCOPE = (sys.executable, "-m", "leakscope")
LONG = 40
LIMIT_S = 900
DRIVER = "import {name}\n\n{name}.main({steps})\n"


@dataclass
class Result:
    name: str
    leaks: int = 0
    fixed: int = 0
    tries: int = 0
    plain_s: float = 0.0
    fix_s: float = 0.0
    wrong: str = ""
    why: list[str] = field(default_factory=list)


def timed(command: list[str], folder: Path) -> tuple[subprocess.CompletedProcess[str], float]:
    began = time.monotonic()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    return done, time.monotonic() - began


def ranks_of(script: Path) -> int:
    return 2 if "init_process_group" in script.read_text(encoding="utf-8") else 1


def plainly(script: str, ranks: int) -> list[str]:
    if ranks == 1:
        return [sys.executable, script]
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", script]


def measured(script: Path, out: Path) -> Result:
    result, ranks = Result(script.stem), ranks_of(script)
    folder = out / script.stem
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copy(script, folder)
    plain, result.plain_s = timed(plainly(script.name, ranks), folder)
    timed([*LEAKSCOPE, "run", "-q", "--ranks", str(ranks), "-o", "run", script.name], folder)
    done, result.fix_s = timed([*LEAKSCOPE, "fix", "run", "--json", "-q"], folder)
    try:
        found = json.loads(done.stdout)
        fix = found["fix"]
    except (ValueError, KeyError):
        result.why.append((done.stderr or done.stdout).strip().replace("\n", " ")[:160])
        return result
    if fix is None:
        result.why.append(f"no leak: {found['verdict']}")
        return result
    leaks = [one for one in found["findings"] if one["severity"] == "leak" and one["fix"] is not None]
    fixed = {one["fingerprint"] for one in leaks if one["fix"]["status"] == "verified"}
    result.leaks, result.tries, result.fixed = len(leaks), len(fix["tries"]), len(fixed)
    result.why = [f"{one['fingerprint']}: {one['fix']['why']}" for one in leaks if one["fix"]["why"]]
    if fixed:
        result.wrong = wrong(script, folder, plain, fixed)
    return result


def wrong(script: Path, folder: Path, plain: subprocess.CompletedProcess[str], fixed: set[str]) -> str:
    """Why a patch is wrong; "" if it is not."""
    patched, ranks = folder / "patched", ranks_of(script)
    patched.mkdir()
    shutil.copy(script, patched)
    subprocess.run(["git", "apply", "../run/fix.patch"], cwd=patched, check=True)
    now, _ = timed(plainly(script.name, ranks), patched)
    if now.returncode != plain.returncode or (ranks == 1 and now.stdout != plain.stdout):
        return f"status {now.returncode}, or another output"
    target = script.name
    if re.search(r"^def main\(steps\b", script.read_text(encoding="utf-8"), re.MULTILINE):
        target = "driver.py"
        (patched / target).write_text(DRIVER.format(name=script.stem, steps=LONG), encoding="utf-8")
    done, _ = timed([*LEAKSCOPE, "run", "-q", "--json", "--ranks", str(ranks), "-o", "run", target], patched)
    try:
        left = [one["fingerprint"] for one in json.loads(done.stdout)["findings"] if one["severity"] == "leak"]
    except (ValueError, KeyError):
        return "the patched script could not be recorded"
    return f"leaks after {LONG} steps" if fixed & set(left) or (left and len(left) >= len(fixed)) else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scripts", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    out = arguments.out or Path(tempfile.mkdtemp())
    with ThreadPoolExecutor(arguments.jobs) as pool:
        results = []
        for result in pool.map(lambda script: measured(script, out), arguments.scripts):
            results.append(result)
            share = f"{result.fix_s / result.plain_s:5.1f}" if result.plain_s else ""
            print(
                f"{result.name:40} {result.fixed} of {result.leaks}  {result.tries:2} tries  {result.fix_s:5.0f} s "
                f"= {share} plain runs  {'WRONG: ' + result.wrong if result.wrong else '; '.join(result.why)}",
                flush=True,
            )
    leaks, fixed = sum(one.leaks for one in results), sum(one.fixed for one in results)
    wrongs = sum(bool(one.wrong) for one in results)
    ratios = [one.fix_s / one.plain_s for one in results if one.fixed and one.plain_s]
    print(
        f"verified {fixed} of {leaks} leaks ({fixed / max(leaks, 1):.0%}), wrong {wrongs}, "
        f"median {median(ratios) if ratios else 0:.1f} plain runs"
    )


if __name__ == "__main__":
    main()
