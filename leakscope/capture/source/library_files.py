"""Which files are a library's: those installed, and those that one of them wrote?"""

from __future__ import annotations

import site
import sys
import sysconfig
from functools import lru_cache
from types import ModuleType
from typing import Any

from leakscope.originals import Path, os, tempfile

ROOTS = tuple(
    os.path.realpath(path) + os.sep
    for path in {sysconfig.get_paths()["stdlib"], sysconfig.get_paths()["platstdlib"], *site.getsitepackages()}
)
"""Folders of the standard library and of installed packages."""
SITE_PACKAGES = f"{os.sep}site-packages{os.sep}"
# the default of torch/_inductor/runtime/cache_dir_utils.py
_INDUCTOR = os.path.join(os.path.realpath(tempfile.gettempdir()), "torchinductor_")


def is_installed(path: str) -> bool:
    """Whether a real path lies where libraries are installed."""
    return path.startswith(ROOTS) or SITE_PACKAGES in path


@lru_cache(maxsize=4096)
def writer_of(path: str) -> str:
    """`torch_geometric` for the real path of a module that this installed package wrote and imported; "" for others.

    Its name begins with the package's, and it lies where nobody would import that name from.
    """
    if path.startswith(_INDUCTOR):
        return "torch"
    for name in modules_by_file(len(sys.modules)).get(os.path.basename(path), ()):
        package = name.partition(".")[0]
        above = _file_of(sys.modules.get(package))
        if os.path.realpath(_file_of(sys.modules.get(name))) != path or not above:
            continue
        if is_installed(os.path.realpath(above)) and not _is_at_its_place(path, name):
            return package
    return ""


@lru_cache(maxsize=1)
def modules_by_file(_count: int) -> dict[str, list[str]]:
    """Names of the modules within packages by the last part of their file's path, while as many are loaded."""
    found: dict[str, list[str]] = {}
    for name, module in list(sys.modules.items()):
        if "." in name and (file := _file_of(module)):
            found.setdefault(os.path.basename(file), []).append(name)
    return found


def _file_of(module: Any) -> str:
    """The file of a module by its dict: a module may define `__getattr__`, and an entry need be no module."""
    if not issubclass(type(module), ModuleType):
        return ""
    file = object.__getattribute__(module, "__dict__").get("__file__")
    return file if type(file) is str else ""


def _is_at_its_place(path: str, name: str) -> bool:
    """Whether a module of this name would be imported from there, as a part of a package that a user adds to."""
    place = Path(path)
    parts = place.parent.parts if place.stem == "__init__" else (*place.parent.parts, place.stem)
    wanted = tuple(name.split("."))
    return parts[-len(wanted) :] == wanted
