"""Callbacks and patches enter the process only through the guard."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from support import ROOT

PACKAGE = ROOT / "leakscope"
RECORDING = ("comm", "dataloader", "heap", "process", "recorder")
WAYS_PAST = {
    r"setattr": "Patches.replace",
    r"start_new_thread|Thread": "Guard.thread",
    r"finalize": "Guard.callback",
    r"callbacks\.append|meta_path\.(insert|append)": "Patches.listen",
    r"register_(optimizer|module)_\w*hook": "Patches.hook",
    r"register_at_fork|atexit\.register|signal\.signal|settrace|setprofile": "Guard and Patches",
}
"""Calls that put something of ours where the script, torch or Python calls it, and what to take instead."""
MAY = {
    "process/patches.py": "is the way",
    "process/guard.py": "is the way",
    "recorder/children.py": "is called by Python at the end of the process, through the guard",
    "process/site/leakscope_following.py": "knows nothing of the guard until the process trains",
    "recorder/verify_cut.py": "makes a cut, in a process that ends with it",
}
SEE_TO_THEMSELVES = {"comm/patches.py", "recorder/lifetimes/storage_table.py"}
"""What they wrap is called so often that they see to errors by themselves; `Patches.wrap` is for them alone."""
REPLACE = {
    "recorder/steps/detector.py",
    "recorder/steps/step_function.py",
    "comm/patches.py",
    "process/children.py",
}
"""What they put in another's place calls what is guarded; `Patches.replace` is for them alone."""
CALLED_AT_DEATH = {"self._died", "self._note", "note"}
"""What a weak reference may call: what `Guard.callback` gave, and functions of C."""


def files() -> list[str]:
    return sorted(path.relative_to(PACKAGE).as_posix() for name in RECORDING for path in (PACKAGE / name).rglob("*.py"))


def ways_past(tree: ast.AST, name: str) -> list[str]:
    """The calls in a file's tree that put something in past the guard."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        found += [f"{called}: take {way}" for call, way in WAYS_PAST.items() if re.search(rf"(^|\.)({call})$", called)]
        if called.endswith("atches.wrap") and name not in SEE_TO_THEMSELVES:
            found.append(f"{called}: take Patches.call_before or call_after")
        if called.endswith("atches.replace") and name not in REPLACE:
            found.append(f"{called}: take Patches.call_before or call_after")
        if re.search(r"(^|\.)(ref|\w+Ref|_Met)$", called) and len(node.args) > 1:
            at_death = ast.unparse(node.args[1])
            if at_death not in CALLED_AT_DEATH:
                found.append(f"{called}(..., {at_death}): take Guard.callback")
    return found


def test_nothing_is_put_into_the_process_past_the_guard() -> None:
    found = {name: ways_past(ast.parse((PACKAGE / name).read_text(encoding="utf-8")), name) for name in files()}
    assert {name: ways for name, ways in found.items() if ways and name not in MAY} == {}


@pytest.mark.parametrize(
    "line",
    [
        "setattr(owner, name, value)",
        "_thread.start_new_thread(run, ())",
        "threading.Thread(target=run)",
        "weakref.finalize(obj, gone)",
        "gc.callbacks.append(self)",
        "hooks.register_module_forward_hook(self._after)",
        "patches.wrap(owner, name, make)",
        "self._patches.replace(owner, name, value)",
        "weakref.ref(storage, gone)",
        "StorageRef(storage, self._gone)",
    ],
)
def test_a_way_past_it_is_seen(line: str) -> None:
    assert ways_past(ast.parse(line), "recorder/steps/new.py")


def test_the_exceptions_are_there() -> None:
    assert all(Path(PACKAGE, name).is_file() for name in {*MAY, *SEE_TO_THEMSELVES, *REPLACE})
