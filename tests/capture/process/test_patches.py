"""Everything that a recording patches into the process is removed at its end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from leakscope.process.patches import Patches

pytestmark = pytest.mark.process

RECORDED = """
import gc, json, multiprocessing.process, signal, subprocess, sys
from pathlib import Path
import torch
import torch.distributed as dist
import torch.distributed.autograd
import torch._dynamo.trace_rules
from torch._C import _distributed_c10d as c10d
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers

from leakscope.comm.patches import _COLLECTIVES
from leakscope.recorder.recorder import Recorder
from leakscope.options import Options

OWNERS = [kind for kind in vars(c10d).values() if isinstance(kind, type)] + [
    torch, torch.utils, torch.optim.Optimizer, torch.autograd.Variable,
    torch.Tensor, torch.UntypedStorage, torch._C.Future, torch.distributed.autograd.context,
    multiprocessing.process.BaseProcess, subprocess.Popen,
]

def survey():
    found = {f"{owner.__name__}.{name}": value for owner in OWNERS for name, value in list(vars(owner).items())}
    for namespace in (torch.ops._c10d_functional, torch.ops._c10d_functional_autograd):
        for name in dir(namespace):
            packet = getattr(namespace, name)
            if isinstance(packet, torch._ops.OpOverloadPacket):
                for operator in (packet, *(getattr(packet, overload) for overload in packet.overloads())):
                    found[f"{operator}._op"] = operator._op
    hooks = (modules._global_forward_hooks, modules._global_forward_pre_hooks,
             optimizers._global_optimizer_post_hooks, optimizers._global_optimizer_pre_hooks)
    found["lists"] = (list(gc.callbacks), list(sys.meta_path), [dict(each) for each in hooks],
                      torch._C._len_torch_dispatch_stack(), list(torch._dynamo.trace_rules.SKIP_DIRS),
                      [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)],
                      {key for key, name in torch.jit._builtins._get_builtin_table().items() if "_c10d" in name})
    return found

for name in (*_COLLECTIVES, "isend", "irecv", "batch_p2p_ops", "wait_tensor"):  # torch makes each when it is asked for
    getattr(torch.ops._c10d_functional, name)
for name in _COLLECTIVES:
    getattr(torch.ops._c10d_functional_autograd, name, None)
survey()
before = survey()
recorder = Recorder(Options(folder=Path(sys.argv[1]), rank=0, world=2, steps=None, warmup=0))
recorder.attach()
names, most = recorder.patches.names, []
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
weight = torch.ones(4, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(5):
    weight.sum().backward()
    dist.all_reduce(torch.ones(3))
    optimizer.step()
    most.append(recorder.patches.names)
from leakscope.run.rows import EndKind
from leakscope.run.model import Ended
recorder.finish(lambda steps: Ended(EndKind.FINISHED, 0, steps), with_snapshot=False)
after = survey()
changed = [name for name in before.keys() | after.keys() if name == "lists" and before[name] != after[name]
           or name != "lists" and before.get(name) is not after.get(name)]
print(json.dumps({"names": names, "most": max(most, key=len), "left": recorder.patches.names, "changed": changed}))
"""


def test_a_run_of_two_ranks_leaves_everything_as_found(tmp_path: Path) -> None:
    ran = subprocess.run([sys.executable, "-c", RECORDED, tmp_path], capture_output=True, text=True, check=True)
    seen = json.loads(ran.stdout)
    assert {"gc.callbacks", "ProcessGroup.send", "Work.wait", "_c10d_functional.all_reduce.default._op"} <= set(
        seen["names"]
    )
    assert {"dispatch mode", "Tensor.numpy"} <= set(seen["most"]) - set(seen["names"]), "in the watched steps alone"
    assert seen["left"] == [] and seen["changed"] == []


class Owner:
    """Something of the program's."""

    def call(self) -> str:
        return "own"


def test_a_later_wrapper_keeps_working() -> None:
    patches, heard = Patches(), []  # type: ignore[var-annotated]
    own = Owner.call
    patches.call_before(Owner, "call", heard.append)
    ours = Owner.call
    Owner.call = lambda owner: f"theirs, {ours(owner)}"  # type: ignore[method-assign]
    try:
        patches.take_out()
        assert Owner().call() == "theirs, own" and len(heard) == 1
    finally:
        Owner.call = own  # type: ignore[method-assign]


def test_a_part_is_removed_by_itself_and_what_remains_is_listed() -> None:
    patches, gone, ready = Patches(), [], []  # type: ignore[var-annotated]
    patches.add("first", lambda: gone.append("first"))
    part = patches.part()
    patches.add("last", lambda: gone.append("last"))
    part.add("waits", lambda: bool(ready))
    part.add("goes", lambda: gone.append("goes"))
    assert patches.names == ("first", "waits", "goes", "last")
    assert not part.take_out() and patches.names == ("first", "waits", "last")
    assert not patches.take_out() and patches.names == ("waits",) and gone == ["goes", "last", "first"]
    ready.append(True)
    assert part.take_out() and patches.names == ()
