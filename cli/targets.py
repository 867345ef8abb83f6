"""Is there such a script or module, and may the run's folder be written?"""

from __future__ import annotations

import os
import sys
import tokenize
from collections.abc import Sequence
from importlib.machinery import PathFinder

from leakscope.errors import LeakscopeError
from leakscope.options import Options


def check_script(path: str) -> None:
    """Raises LeakscopeError unless the file is there and is Python."""
    try:
        with tokenize.open(path) as stream:
            compile(stream.read(), path, "exec", dont_inherit=True)
    except FileNotFoundError:
        raise LeakscopeError(f"there is no script {path}") from None
    except OSError as error:
        raise LeakscopeError(f"cannot read the script {path}: {error.strerror}") from None
    except SyntaxError as error:
        place = f", line {error.lineno}" if error.lineno else ""
        raise LeakscopeError(f"{path} is not a Python script: {error.msg}{place}") from None
    except ValueError as error:
        raise LeakscopeError(f"{path} is not a Python script: {error}") from None


def check_module(name: str) -> None:
    """Raises LeakscopeError unless the module can be found; imports nothing."""
    places: Sequence[str] | None = [os.getcwd(), *sys.path]
    for part in range(1, name.count(".") + 2):
        spec = PathFinder.find_spec(".".join(name.split(".")[:part]), places)
        if spec is None:
            raise LeakscopeError(f"there is no module {name}")
        places = spec.submodule_search_locations
    if places is not None and PathFinder.find_spec(f"{name}.__main__", places) is None:
        raise LeakscopeError(f"{name} is a package without __main__; name the module to run")


def join_folder(options: Options) -> None:
    """Make the folder that several launchers share. Raises LeakscopeError where it holds something else than a run."""
    folder = options.folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LeakscopeError(f"cannot write to {folder}: {error.strerror}; give another --output") from None
    if any(folder.iterdir()) and not ((folder / "run.json").exists() or options.rank_state.exists()):
        raise LeakscopeError(f"{folder} exists and holds no leakscope run; give another --output")
