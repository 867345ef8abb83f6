"""The devices that tests of a whole run meet: CUDA where there is one, and a fake device of our own in host memory."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from torch.utils import cpp_extension

SOURCES = Path(__file__).parent / "torch_fake"
"""Named like the packages of devices that torch does not ship: leakscope asks `torch_<kind>._C`, as of torch_npu."""
_ENTRY = "[torch.backends]\nfake = torch_fake:autoload\n"
_METADATA = "Metadata-Version: 2.1\nName: torch-fake\nVersion: 1.0\n"


@dataclass(frozen=True)
class Kind:
    """One kind of device, as the scripts of the tests write it."""

    name: str
    recording: str
    """An expression: whether memory history is on."""
    without_history: Mapping[str, str]
    """The environment in which its allocator keeps none."""
    env: Mapping[str, str] = field(default_factory=dict)
    """What a process needs to have it."""


CUDA = Kind("cuda", "torch._C._cuda_isHistoryEnabled()", {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"})


def fake(folder: Path, cache: Path) -> Kind:
    """Lays the fake device into `folder` as if installed; skips where it is not built and cannot be."""
    package = folder / "torch_fake"
    shutil.copytree(SOURCES, package, ignore=shutil.ignore_patterns("*.cpp", "__pycache__"))
    shutil.copy(_built(SOURCES / "backend.cpp", cache), package / "_C.so")
    information = folder / "torch_fake-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(_METADATA)
    (information / "entry_points.txt").write_text(_ENTRY)
    return Kind(
        "fake",
        "torch.fake.memory._C._fake_isHistoryEnabled()",
        {"PYTORCH_FAKE_ALLOC_CONF": "backend:plain"},
        {"PYTHONPATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))},
    )


def _built(source: Path, cache: Path) -> Path:
    """Compiles the source for this torch and Python (half a minute) unless the cache has it."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    headers = Path(sysconfig.get_paths()["include"])
    built_for = (source.read_text(encoding="utf-8"), torch.__version__, torch.__file__, sys.version, str(compiler))
    made = cache / f"{hashlib.sha256(repr(built_for).encode()).hexdigest()[:16]}.so"
    if made.exists():
        return made
    if compiler is None or not (headers / "Python.h").exists():
        pytest.skip("no C++ compiler, or no headers of Python, to build a device with")
    includes = [f"-isystem{path}" for path in [*cpp_extension.include_paths(), str(headers)]]
    libraries = [flag for path in cpp_extension.library_paths() for flag in (f"-L{path}", f"-Wl,-rpath,{path}")]
    partial = made.with_suffix(f".{os.getpid()}")
    command = [
        compiler, "-shared", "-fPIC", "-std=c++20", "-O0", "-DTORCH_EXTENSION_NAME=_C",
        "-DTORCH_API_INCLUDE_EXTENSION_H",
        *includes, str(source), "-o", str(partial),
        *libraries, "-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python",
    ]  # fmt: skip
    built = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert built.returncode == 0, built.stderr[-4000:]
    return partial.replace(made)


def cuda() -> Kind:
    """The first CUDA device; skips without one."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    return CUDA
