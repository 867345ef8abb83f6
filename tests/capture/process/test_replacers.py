"""Scripts under libraries that replace functions of Python train as they do without leakscope, and are recorded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from leakscope.run.reader import read_run

pytestmark = pytest.mark.process

STEPS = 9
AT_MOST_S = 60
"""Seconds for a script that takes one; a recording that waits for a greenlet waits for ever."""
TRAIN = """
import torch
torch.set_num_threads(1)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def train(steps, then=lambda: None):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(8, 64)).sum().backward()
        optimizer.step()
        then()
"""
SCRIPTS = {
    "gevent": """
from gevent import monkey
monkey.patch_all()
TRAIN
import threading, time, gevent
seen = []
def other():
    for turn in range(3):
        gevent.sleep(0.001)
        seen.append(turn)
thread = threading.Thread(target=other)
thread.start()
train(3, lambda: time.sleep(0.01))
thread.join()
print(seen, threading.current_thread().name)
turns = []
def some(name):
    train(3, lambda: (turns.append(name), gevent.sleep(0)))
gevent.joinall([gevent.spawn(some, name) for name in "ab"])
print("".join(turns))
""",
    "pyfakefs": """
TRAIN
import os, pathlib
from pyfakefs.fake_filesystem_unittest import Patcher
train(2)
with Patcher() as patcher:
    patcher.fs.create_file("/data/x.txt", contents="fake")
    train(5)
    print(sorted(os.listdir("/")), pathlib.Path("/data/x.txt").read_text())
    open("/data/y.txt", "w").close()
train(2)
print(os.path.exists("/data"))
""",
    "what tests use": """
TRAIN
import datetime, select, signal, socket, time, pytest_socket, time_machine
from unittest.mock import patch
from freezegun import freeze_time
with freeze_time("2020-01-01"):
    train(2)
    print(datetime.datetime.now(), time.time(), time.monotonic() == time.monotonic())
with time_machine.travel(0, tick=False):
    train(2)
    print(datetime.datetime.now(datetime.timezone.utc))
names = ["os.open", "os.write", "os.replace", "os.fork", "builtins.open", "io.open", "time.time", "time.monotonic"]
names += ["time.perf_counter", "time.sleep", "json.dumps", "threading.Thread", "_thread.start_new_thread"]
names += ["pathlib.Path.open", "pathlib.Path.mkdir", "select.select", "signal.signal", "json.loads"]
names += ["gc.get_objects", "gc.get_referents", "gc.collect", "gc.disable", "gc.get_count", "gc.is_tracked"]
patches = [patch(name, side_effect=AssertionError(name)) for name in names]
for each in patches:
    each.start()
train(3)
for each in patches:
    each.stop()
pytest_socket.disable_socket()
train(2)
try:
    socket.socket()
except pytest_socket.SocketBlockedError as error:
    print(error)
""",
}
PLAIN = """
import json, os, sys, torch, torch._dynamo, types  # an optimizer imports the latter
scripts = json.load(sys.stdin)
ended = {}
for name, text in scripts.items():
    taken, given = os.pipe()
    pid = os.fork()
    if not pid:
        os.dup2(given, 1)
        status = 0
        try:
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(text, name, "exec"), vars(main))
        except BaseException as error:
            print(repr(error))
            status = 1
        sys.stdout.flush()
        os._exit(status)
    os.close(given)
    with open(taken) as stream:
        text = stream.read()
    ended[name] = (os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), text)
print(json.dumps(ended))
"""
"""Runs each script in a forked copy of a process that has imported torch, without leakscope."""


def lines_of(name: str) -> str:
    return SCRIPTS[name].replace("TRAIN", TRAIN)


@pytest.fixture(scope="module")
def plain(starts_processes: None) -> dict[str, tuple[int, str]]:
    """(exit status, output) of each script without leakscope."""
    scripts = {name: lines_of(name) for name in SCRIPTS}
    done = subprocess.run(
        [sys.executable, "-c", PLAIN],
        input=json.dumps(scripts),
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return {name: (status, text) for name, (status, text) in json.loads(done.stdout).items()}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_that_replaces_functions_is_recorded(
    name: str,
    request: pytest.FixtureRequest,
    plain: dict[str, tuple[int, str]],
    tmp_path: Path,
) -> None:
    # a process that has imported torch begins to record ahead of the script; here functions are replaced before that
    leakscope = request.getfixturevalue("leakscope_process" if name == "gevent" else "leakscope")
    (tmp_path / "train.py").write_text(lines_of(name))
    done = leakscope("run", "--no-lifetimes", "--gc-diff", "never", "-o", "run", "train.py", timeout=AT_MOST_S)
    status, text = plain[name]
    assert (done.returncode, status) == (0, 0), done.stderr
    assert done.stdout.startswith(text), done.stdout
    assert "recording ended" not in done.stderr
    (rank,) = read_run(tmp_path / "run").ranks
    assert len(rank.steps) == STEPS and len(rank.heap_snapshots) >= 3
    assert not [note for note in rank.notes if "failed" in note]
