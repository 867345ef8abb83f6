"""A run in a forked process behaves like a run in a new process."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

Command = Callable[..., "subprocess.CompletedProcess[str]"]
SCRIPT = """
    import gc, os, random, signal, sys, threading
    import torch

    def saw(*what):
        print("SAW", *what, flush=True)

    saw(__name__, sys.argv, os.getcwd(), sys.path[0], sorted(os.environ.items()))
    saw(gc.isenabled(), gc.get_threshold(), sys.gettrace(), threading.active_count(), os.getpgrp() == os.getpid())
    saw([signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)])
    saw(sys.stdout.line_buffering, sys.stderr.line_buffering, sys.stdin.read(), os.listdir("/proc/self/fd"))
    saw(torch.get_num_threads(), torch.is_grad_enabled(), torch._C._len_torch_dispatch_stack())
    saw(sys.stdout is sys.__stdout__, sys.exc_info(), sys.flags)
    raise ValueError("as it is")
"""


def test_a_copy_is_as_a_process(script: Callable[[str], Path], leakscope: Command, leakscope_process: Command) -> None:
    path = script(SCRIPT)
    real, copied = (run("run", "-q", "-f", "-o", "run", path, "-x") for run in (leakscope_process, leakscope))
    assert real.returncode == copied.returncode == 1, copied.stderr

    def of_the_script(told: subprocess.CompletedProcess[str]) -> list[str]:
        return [line for line in told.stdout.splitlines() if line.startswith("SAW")]

    assert of_the_script(copied) == of_the_script(real) and len(of_the_script(real)) == 6
    assert copied.stderr == real.stderr and "ValueError: as it is" in real.stderr
