"""Registers the device `fake` with torch, which imports this by its entry point, as it does other makers' backends."""

from __future__ import annotations

import atexit
import time

import torch
from torch_fake import _C, device

__all__ = ["_C", "autoload"]


def autoload() -> None:
    """Called by `import torch` (torch/__init__.py, `_import_device_backends`)."""
    torch.utils.rename_privateuse1_backend("fake")
    torch._register_device_module("fake", device)
    torch.utils.generate_methods_for_privateuse1_backend()
    # Autograd's thread of a device lets go of its last node after backward has returned, and wants the GIL for it: if
    # Python has begun to end by then, that thread is unwound through a destructor, and torch aborts (at 4 of 65 ends).
    atexit.register(time.sleep, 0.2)
