"""A notebook that runs in a real kernel, cell by cell."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from nbclient import NotebookClient

SECONDS = 60
"""The longest that a cell may take."""


class _ThisPython(KernelSpecManager):
    """Knows one kernel: the Python that runs the tests."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        """The same for every name."""
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=argv, language="python", display_name=kernel_name)


@dataclass
class Notebook:
    """Cells that have run, and their outputs."""

    client: NotebookClient

    def run(self, source: str) -> str:
        """Run one more cell; gives what it has printed, or `Error: its text` where it has failed."""
        cell = nbformat.v4.new_code_cell(source.strip())
        self.client.nb.cells.append(cell)
        self.client.execute_cell(cell, len(self.client.nb.cells) - 1)
        return "".join(_text(output) for output in cell.outputs)

    def shown(self) -> dict[str, str]:
        """By mime type what the last cell has shown as its result."""
        results = [output for output in self.client.nb.cells[-1].outputs if output.output_type == "execute_result"]
        return dict(results[-1].data) if results else {}

    def save(self, path: Path) -> None:
        """Write the notebook."""
        nbformat.write(self.client.nb, path)


def _text(output: Any) -> str:
    if output.output_type == "stream":
        return str(output.text) if output.name == "stdout" else ""
    return f"{output.ename}: {output.evalue}" if output.output_type == "error" else ""


@contextmanager
def notebook(folder: Path) -> Iterator[Notebook]:
    """A notebook whose kernel runs in this folder, until the block ends."""
    manager = AsyncKernelManager(kernel_name="python3", kernel_spec_manager=_ThisPython())
    client = NotebookClient(nbformat.v4.new_notebook(), km=manager, timeout=SECONDS, allow_errors=True)
    client.resources = {"metadata": {"path": str(folder)}}
    home = {
        name: str(folder) for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR")
    }
    with client.setup_kernel(cleanup_kc=True, env={**os.environ, **home, "OMP_NUM_THREADS": "1"}):
        yield Notebook(client)
