"""What did these do before the script put its own in their place, as tests do? Imported ahead of the script."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import gc
else:
    import gc as _gc

    # under its own name, so that what is written with it reads as ever
    gc = ModuleType("gc", _gc.__doc__)
    vars(gc).update(vars(_gc))

open_file = open

__all__ = ["gc", "open_file"]
