"""Exceptions that arrive where a signal handler of the script's could raise them."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

TICKS = 32
"""Pending calls that CPython makes at one check, of one that asks for itself again."""


class Interrupt(BaseException):
    """Raised in the middle of a call, as by a signal handler."""


def built(folder: Path) -> ModuleType:
    """The module that raises interrupts, compiled into the folder; skips where it cannot be."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    if sys.version_info >= (3, 13):
        pytest.skip("CPython 3.13 and newer make pending calls until there are none")
    made = folder / f"_interrupts{sysconfig.get_config_var('EXT_SUFFIX')}"
    source = Path(__file__).with_name("_interrupts.c")
    include = sysconfig.get_path("include")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", f"-I{include}", str(source), "-o", str(made)], check=True)
    spec = importlib.util.spec_from_file_location("_interrupts", made)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def interrupted(interrupts: ModuleType, call: Callable[[], object], most: int) -> Iterator[tuple[int, bool]]:
    """Call it again and again, each time interrupted at another check: (check, whether the interrupt came out).

    All checks of a call are met when there are no more than `most`, else half of that many from its beginning, and the
    others spread over all of it.
    """
    interrupts.arm(Interrupt, 1 << 40)
    call()
    checks = interrupts.disarm() // TICKS + 1
    places = range(checks + 1) if checks <= most else sorted({*range(most // 2), *_spread(checks, most // 2)})
    for check in places:
        came = False
        try:
            interrupts.arm(Interrupt, check * TICKS)
            call()
        except Interrupt:
            came = True
        finally:
            interrupts.disarm()
        yield check, came


def _spread(checks: int, count: int) -> Iterator[int]:
    return ((checks * k) // count for k in range(count + 1))
