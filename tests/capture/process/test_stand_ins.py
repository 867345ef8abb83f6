"""A replaced function passes for the original under all its names, in pickles and copies."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from leakscope.stand_ins import ImportHook

pytestmark = pytest.mark.process

EVERYTHING = """
import copy, functools, inspect, json, os, pickle, sys, types, typing, weakref
from pathlib import Path
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
import multiprocessing, posix, subprocess, _posixsubprocess
user = types.ModuleType("user")
sys.modules["user"] = user
exec("from torch.distributed import init_process_group as join, send\\nfrom os import execv as become", vars(user))

NAMES = [(title, name) for title, module in list(sys.modules.items()) for name in list(vars(module))
         if title.split(".")[0] in ("torch", "os", "posix", "subprocess", "_posixsubprocess", "user")]
def standing():
    return {(title, name): vars(sys.modules[title]).get(name) for title, name in NAMES}
before = standing()

from leakscope.comm.monitor import CommMonitor
from leakscope.process.children import RankDiscovery
from leakscope.process.children import follow_children
from leakscope.process.children import current_process
from leakscope.process.patches import Patches
from leakscope.recorder.recorder import Recorder
from leakscope.options import Options
from leakscope.run.rows import EndKind
from leakscope.run.model import Ended

folder = Path(sys.argv[1])
options = Options(folder=folder, rank=0, world=1, process="process_0000")
patches = Patches()
recorder = Recorder(options, patches)
recorder.attach()
follow_children(options, patches)
(folder / "process_0000").mkdir(exist_ok=True)
RankDiscovery(folder, "process_0000", current_process(), lambda *_: None).install(patches)
dist.init_process_group("gloo", init_method=f"file://{folder / 'meet'}", rank=0, world_size=1)
comm = CommMonitor(recorder._folder, patches)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(2, 4)).sum().backward()
    dist.all_reduce(model.weight.grad)
    optimizer.step()
assert not patches.guard.lost, patches.guard.why

def answer(ask, *given):
    try:
        return ask(*given)
    except Exception as error:
        return type(error).__name__

MARKS = ("__name__", "__qualname__", "__module__", "__doc__", "__defaults__", "__kwdefaults__", "__annotations__")
def binds(function):
    return hasattr(type(function), "__get__")
QUESTIONS = {
    "marks": lambda f: [repr(getattr(f, mark, None)) for mark in MARKS],
    "signature": lambda f: str(answer(inspect.signature, f)).partition(" at 0x")[0],
    "source": lambda f: answer(inspect.getsource, f),
    "hints": lambda f: repr(answer(typing.get_type_hints, f)),
    "kinds": lambda f: [ask(f) for ask in (callable, inspect.isbuiltin, inspect.iscoroutinefunction,
                                          inspect.isgeneratorfunction, inspect.isclass)],
    "binds": binds,
    "pickle": lambda f: answer(lambda: pickle.loads(pickle.dumps(f)) == f),
    "copy": lambda f: [copy.copy(f) is f, copy.deepcopy([f])[0] is f],
    "weak": lambda f: weakref.ref(f)() is f,
    "wraps": lambda f: functools.wraps(f)(lambda *_: None).__name__,
    "partial": lambda f: functools.partial(f).func is f,
    "set": lambda f: f in {f} and f == f,
}
# a method in C becomes a function in Python: its kind changes, and it is found where it stands
differ, seen = [], []
unwrapped = {}
for owner, name, was in patches.replaced():
    is_module, there = isinstance(owner, types.ModuleType), getattr(owner, name)
    times = sum(1 for other, its, _ in patches.replaced() if other is owner and its == name)
    original = functools.reduce(lambda f, _: getattr(f, "__wrapped__", f), range(times), there)
    if not callable(there) or was is None or original is there:
        continue
    seen.append(f"{owner.__name__}.{name}")
    if not is_module and not isinstance(original, types.FunctionType):
        asked = set(QUESTIONS) - {"kinds", "binds", "marks", "copy", "weak", "set"}
    else:
        asked = set(QUESTIONS)
    if is_module:
        unwrapped[id(original)] = there
    for question in sorted(asked):
        mine, theirs = answer(QUESTIONS[question], there), answer(QUESTIONS[question], original)
        if question == "pickle":  # of the original that has been replaced
            theirs = True if is_module or isinstance(original, types.FunctionType) else mine
        refused = question == "hints" and theirs == repr("TypeError")  # as of no function at all
        if mine != theirs and not refused:
            differ.append([seen[-1], question, repr(mine)[:200], repr(theirs)[:200]])

now = standing()
left = [f"{title}.{name}" for (title, name), value in before.items()
        if id(value) in unwrapped and now[title, name] is not unwrapped[id(value)]]
same = {
    "init_process_group": dist.init_process_group is c10d.init_process_group is user.join,
    "execv": os.execv is posix.execv is user.become,
    "fork_exec": subprocess._fork_exec is _posixsubprocess.fork_exec,
    "supports_fd": os.execve in os.supports_fd,
}
class Holder:
    become = os.execv
same["a builtin does not bind"] = Holder().become == os.execv
(folder / "pickled").write_bytes(pickle.dumps([dist.init_process_group, os.execv, subprocess._fork_exec]))
exec("from torch.distributed import destroy_process_group, init_process_group as later", vars(user))
originals = dict(before)
dist.init_process_group = (lambda *_: None)  # the user's own, under one name
before["torch.distributed", "init_process_group"] = dist.init_process_group
execv = os.execv
recorder.finish(lambda steps: Ended(EndKind.FINISHED, 0, steps), with_snapshot=False)
assert patches.take_out()
after = standing()
json.dump({
    "seen": seen, "differ": differ, "left": left, "same": same,
    "still": [f"{title}.{name}" for (title, name), value in after.items()
              if id(originals.get((title, name))) in unwrapped and value is not before[title, name]],
    "later": user.later is c10d.init_process_group is before["user", "join"],
    "kept": pickle.loads(pickle.dumps(execv)) is os.execv,
}, sys.stdout)
"""


def python(*words: object) -> str:
    command = [sys.executable, "-c", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


READ = """
import pickle, sys, os, _posixsubprocess
with open(sys.argv[1], 'rb') as file: join, become, fork = pickle.load(file)
import torch.distributed as dist
assert join is dist.init_process_group and become is os.execv and fork is _posixsubprocess.fork_exec
assert 'leakscope' not in sys.modules
"""


def test_stand_ins_pass_for_the_originals_until_these_are_back(tmp_path: Path) -> None:
    found = json.loads(python(EVERYTHING, tmp_path).splitlines()[-1])
    assert len(found["seen"]) > 40 and found["differ"] == []
    assert found["left"] == [] and set(found["same"].values()) == {True}, "all names of one function have one stand-in"
    assert found["still"] == [] and found["later"] is True and found["kept"] is True
    python(READ, tmp_path / "pickled")


def test_two_hooks_wait_for_one_module() -> None:
    calls: list[str] = []
    hooks = [ImportHook("this", lambda name=name: calls.append(name), lambda: True) for name in ("first", "second")]
    with redirect_stdout(StringIO()):  # the module prints
        try:
            for hook in hooks:
                hook.install()
            sys.modules.pop("this", None)
            importlib.import_module("this")
        finally:
            for hook in hooks:
                hook.remove()
    assert sorted(calls) == ["first", "second"]
