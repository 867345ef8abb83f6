"""How a run was started, so that the same command can be run again."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from leakscope.errors import LeakscopeError
from leakscope.options import Options
from leakscope.originals import json
from leakscope.run.secrets import MASK, masked

_STORED = (
    "CUDA_", "PYTORCH_", "TORCH", "OMP_", "MKL_", "NCCL_", "GLOO_", "PYTHON", "CUBLAS_", "MALLOC_", "HF_DATASETS_",
    "TRANSFORMERS_", "TOKENIZERS_", "DATA_", "LC_",
)  # fmt: skip
"""Prefixes of variables whose values are stored with a run, unless they look secret; of all others only a digest, which
shows a change.
"""
_STORED_NAMES = frozenset({"PATH", "LD_LIBRARY_PATH", "HF_HOME", "LANG", "TZ", "SEED"})
"""Further variables whose values are stored."""
_VOLATILE = frozenset({"_", "SHLVL", "OLDPWD", "PWD", "COLUMNS", "LINES", "LS_COLORS", "PS1", "WINDOWID", "TMUX_PANE"})
"""Variables that differ between two shells and that no training depends on."""


@dataclass(frozen=True)
class LaunchRecord:
    """How a run was started."""

    folder: str
    """The working directory."""
    python: str
    """Path of the interpreter."""
    flags: tuple[str, ...]
    """Its options, such as `-O`."""
    options: Mapping[str, Any]
    """The options of the run, as in `Options`, without the command."""
    environment: Mapping[str, str]
    """Stored variables with their values."""
    digests: Mapping[str, str]
    """All other variables, each with a digest of its value."""
    by_launcher: bool = False
    """Whether torchrun, MPI or Slurm started the ranks."""

    @classmethod
    def of(cls, options: Options, flags: tuple[str, ...], by_launcher: bool) -> Self:
        """How this process starts a run.

        Args:
            options: The options of the run.
            flags: Options of the interpreter.
            by_launcher: Whether another launcher has started this process as a rank.

        """
        environment, digests = dict[str, str](), dict[str, str]()
        for name, value in os.environ.items():
            if name in _VOLATILE:
                continue
            if _is_stored(name) and MASK not in "".join(masked([f"{name}={value}"])):
                environment[name] = value
            else:
                digests[name] = _digest(name, value)
        return cls(
            folder=os.getcwd(),
            python=sys.executable,
            flags=flags,
            options=json.loads(options.to_words()[0]),
            environment=environment,
            digests=digests,
            by_launcher=by_launcher,
        )

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Read the record of `run.json`. Raises LeakscopeError if it has none, or a damaged one."""
        try:
            record = cls(**{**data, "flags": tuple(data["flags"])})
            words = (record.folder, record.python, *record.flags)
            tables = (record.options, record.environment, record.digests)
            if not all(isinstance(word, str) for word in words) or not all(isinstance(one, dict) for one in tables):
                raise TypeError
            return record
        except (TypeError, KeyError):
            raise LeakscopeError("the run has no record of how it was started; record it again") from None

    def to_json(self) -> dict[str, Any]:
        """The record as plain types."""
        return {**vars(self), "flags": list(self.flags)}

    def options_for(self, command: tuple[str, ...], folder: Path) -> Options:
        """The options to repeat the run in another folder.

        Args:
            command: The script or module with its arguments, as recorded.
            folder: The folder to record into.

        Raises:
            LeakscopeError: The command has a masked secret, or an option is of another version.

        """
        if any(MASK in word for word in command):
            raise LeakscopeError(
                "the recorded command has a secret, which was not stored; use `leakscope run --fix` with all of it"
            )
        try:
            options = Options.from_words([json.dumps(dict(self.options)), *command])
        except ValueError as error:
            raise LeakscopeError(f"the run cannot be repeated: {error}") from None
        ranks = options.world if self.by_launcher else options.ranks
        return replace(
            options, folder=folder, ranks=ranks, world=1, rank=0, launcher=0, force=True, quiet=True, formats=(),
            as_json=False, fix=False, baseline=None, suppress=None, process="", under_elastic=False,
        )  # fmt: skip

    def variables(self) -> tuple[dict[str, str], list[str]]:
        """The environment to repeat the run in: that of this process with the stored values.

        Returns:
            The environment, and the names of variables that are not as recorded.

        """
        environment = {**os.environ, **self.environment}
        for name in set(os.environ) - set(self.environment) - set(self.digests) - _VOLATILE:
            if _is_stored(name):
                del environment[name]
        differ = [name for name, digest in self.digests.items() if _digest(name, os.environ.get(name, "")) != digest]
        return environment, sorted(differ)


def _is_stored(name: str) -> bool:
    return name.startswith(_STORED) or name in _STORED_NAMES


def _digest(name: str, value: str) -> str:
    digest = hashlib.sha256(f"{name}={value}".encode(errors="surrogateescape")).hexdigest()
    return digest[:4]  # shows a change, and not the value
