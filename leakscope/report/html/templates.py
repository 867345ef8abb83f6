"""Templates, compiled once: what jinja2 makes of them is kept where Python keeps what it makes of modules."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib.util import cache_from_source
from pathlib import Path
from pickle import UnpicklingError

from jinja2 import BytecodeCache, Environment, FileSystemLoader, StrictUndefined
from jinja2.bccache import Bucket


class _BesideTemplates(BytecodeCache):
    """In `__pycache__`, or wherever Python's own prefix for it says; jinja2 checks the source and both versions."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load_bytecode(self, bucket: Bucket) -> None:
        """Fill the bucket; what is not there, or of another version, stays to be compiled."""
        try:
            with self._path(bucket).open("rb") as stream:
                bucket.load_bytecode(stream)
        except (OSError, EOFError, ValueError, UnpicklingError):  # not there, or damaged
            bucket.reset()

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Keep what was compiled, whole or not at all, where Python would keep a module's."""
        if sys.dont_write_bytecode:
            return
        path = self._path(bucket)
        temporary = path.with_name(f"{path.name}.{os.getpid()}")
        with suppress(OSError):  # installed where this user may not write
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as stream:
                bucket.write_bytecode(stream)
            os.replace(temporary, path)

    def _path(self, bucket: Bucket) -> Path:
        return Path(cache_from_source(str(self._folder / f"{bucket.key}.py")))


def templates(folder: Path) -> Environment:
    """The templates of a folder; all that is filled in is escaped."""
    return Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        bytecode_cache=_BesideTemplates(folder),
    )
