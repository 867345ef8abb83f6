"""What a test must leave as it found it: everything of the process that other tests, or leakscope's users, share."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

THREADS_END_S = 2.0
"""How long threads that were told to end are waited for, in seconds."""
STAYING_CALLBACKS = {"hypothesis.internal.conjecture.junkdrawer"}
"""Modules whose gc callback is there for good once a test has used them."""
OWN_VARIABLES = ("LEAKSCOPE", "PYTHON", "OMP_")
"""How the names of the environment's variables begin that leakscope and its tests set; importing torch sets others."""
SIGNALS = sorted(signal.valid_signals())
_WAITPID = "asyncio-waitpid"
"""In the name of asyncio's thread that waits for the driver of a browser that an earlier file of tests has closed."""


def global_state() -> dict[str, Any]:
    """By name, so that a difference says what it is; torch's part only where torch is there."""
    state: dict[str, Any] = {
        "gc enabled": gc.isenabled(),
        "gc thresholds": gc.get_threshold(),
        "gc callbacks": [call for call in gc.callbacks if getattr(call, "__module__", "") not in STAYING_CALLBACKS],
        "gc debug flags": gc.get_debug(),
        "threads": sorted(thread.name for thread in threading.enumerate() if _WAITPID not in thread.name),
        "trace function": sys.gettrace(),
        "profile function": sys.getprofile(),
        "switch interval": sys.getswitchinterval(),
        "exception hooks": (sys.excepthook, sys.unraisablehook, threading.excepthook),
        "signal handlers": {int(number): _handler(number) for number in SIGNALS},
        "sys.meta_path": list(sys.meta_path),
        "sys.path_hooks": list(sys.path_hooks),
        "sys.path": list(sys.path),
        "working folder": os.getcwd(),
        "os.environ": {name: value for name, value in os.environ.items() if name.startswith(OWN_VARIABLES)},
    }
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "get_default_dtype"):
        state |= {
            "torch's default dtype": torch.get_default_dtype(),
            "torch's threads": torch.get_num_threads(),
            "torch's gradients": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
            "torch's dispatch modes": torch._C._len_torch_dispatch_stack(),
            "torch's function modes": torch._C._len_torch_function_stack(),
            "saved-tensor hooks": torch._C._autograd._top_saved_tensors_default_hooks(True) is not None,
        }
    return state


def changes(before: dict[str, Any], now: Callable[[], dict[str, Any]] = global_state) -> list[str]:
    """What is not as it was; threads that are ending get the time to."""
    deadline = time.monotonic() + THREADS_END_S
    after = now()
    while after["threads"] != before["threads"] and time.monotonic() < deadline:
        time.sleep(0.01)
        after = now()
    return [f"{name}: was {was}, is {after[name]}" for name, was in before.items() if after[name] != was]


def _handler(number: int) -> Any:
    try:
        return signal.getsignal(number)
    except ValueError:  # of the C library's own
        return None
