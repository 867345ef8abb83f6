"""Which cell of a notebook is this? IPython's own names for the code that its user has typed."""

from __future__ import annotations

import sys
from typing import Any

MAIN = "__main__"


def session() -> dict[str, Any]:
    """The attributes of the IPython shell that runs in this process, {} without one.

    Its class keeps it (traitlets/config/configurable.py, SingletonConfigurable); no code of IPython's runs.
    """
    module = sys.modules.get("IPython.core.interactiveshell")
    shell = vars(module).get("InteractiveShell") if module is not None else None
    instance = vars(shell).get("_instance") if isinstance(shell, type) else None
    return {} if instance is None else object.__getattribute__(instance, "__dict__")


def cells() -> dict[str, int]:
    """File name of each cell's code to the number of its last run (IPython/core/compilerop.py, CachingCompiler)."""
    compiler = session().get("compile")
    named = getattr(compiler, "__dict__", {}).get("_filename_map")
    return named if type(named) is dict else {}


def cell_name(filename: str) -> str:
    """`In[5]`; "" where the file is no cell's."""
    number = cells().get(filename)
    return "" if type(number) is not int else f"In[{number}]"


def is_of_session(namespace: dict[str, Any]) -> bool:
    """Whether these are the names that the cells share."""
    return namespace.get("__name__") == MAIN and "__file__" not in namespace and bool(cells())


def newest_first() -> list[str]:
    """File names of the cells, that which ran last first."""
    return sorted(cells(), key=cells().__getitem__, reverse=True)
