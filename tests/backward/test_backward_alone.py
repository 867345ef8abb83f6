"""`leakscope.backward` works as a standalone copy that needs only torch."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT

FOLDER = ROOT / "leakscope" / "backward"
NEEDLESS = ("numpy", "objgraph", "graphviz", "click", "rich", "matplotlib", "jinja2", "psutil")
"""What leakscope needs besides torch."""
PROGRAM = f"""
import sys
sys.modules.update(dict.fromkeys({NEEDLESS!r}))  # importing one of them fails
import torch
before = set(sys.modules)
import leakscope.backward
known = {"leakscope", *sys.stdlib_module_names}
print(sorted(name for name in set(sys.modules) - before if name.partition(".")[0] not in known))
print(sorted(name for name in sys.modules if name.startswith("leakscope.") and ".backward" not in name))

for name in [name for name in sys.modules if name.partition(".")[0] == "leakscope"]:
    sys.modules[name] = None
from mine.cure import droppable_saves, install, output_edges, stage_backward
from mine.cure import stage_backward_input, stage_backward_weight

stage, x = torch.nn.Linear(4, 8), torch.randn(2, 4, requires_grad=True)
edges = output_edges([stage(x).tanh()])
(whole,) = stage_backward(edges, [torch.ones(2, 8)], [x], boxed=True)
with droppable_saves():
    outputs = [stage(x).tanh()]
weights = list(stage.parameters())
(split,), groups = stage_backward_input(outputs, [torch.ones(2, 8)], [x], weights, park_grad=False)
stage_backward_weight(weights, groups)
print(torch.equal(whole, split))
with install():
    from torch.distributed.pipelining import stage
    print(stage.stage_backward is stage_backward)
"""


@pytest.mark.process
def test_it_needs_torch_alone_and_works_as_a_copy_in_another_project(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    shutil.copytree(FOLDER, tmp_path / "mine" / "cure", ignore=shutil.ignore_patterns("__pycache__"))
    code = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]\n{PROGRAM}"
    ran = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == ["[]", "['leakscope._version', 'leakscope.originals']", "True", "True"]
