"""Pipeline findings name the matching function of `leakscope.backward`, with lines that run."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from support import SAMPLES, examples
from support.comm_examples import row
from support.heap_text import heap_from
from support.judging import MIB, rank_of, run_of
from support.pipelining_heaps import STAGE
from support.recorded_rows import rows

from leakscope.findings.backward_hint import SEES, Fault, see
from leakscope.findings.judge import judge
from leakscope.findings.model import Finding, Hop
from leakscope.graph.model import CommUse, HeapGraph
from leakscope.run.model import Run
from leakscope.run.reader import read_run


@cache
def recorded(name: str) -> Run:
    return read_run(SAMPLES / "p2p_pipeline" / name)


def seen(run: Run) -> dict[str, str]:
    """What is pointed to, by what is to be cut."""
    return {f.cut.written: f.see.name for f in judge(run).findings if f.cut is not None and f.see is not None}


@pytest.mark.parametrize("fault", [fault for fault in Fault if fault != Fault.TORCH])
def test_the_lines_give_the_gradients_of_a_stage_and_keep_nothing(fault: Fault) -> None:
    torch.manual_seed(1)
    stage = torch.nn.Linear(4, 3)
    weights = list(stage.parameters())
    inputs, output_grads = [torch.randn(2, 4, requires_grad=True)], [torch.randn(2, 3)]
    expected = torch.autograd.grad([stage(inputs[0]).tanh()], [*inputs, *weights], output_grads)
    names: dict[str, Any] = {
        "inputs": [*inputs], "outputs": [stage(inputs[0]).tanh()], "output_grads": output_grads, "weights": weights
    }  # fmt: skip
    names["waiting"] = [(names["outputs"], names["inputs"])] if fault == Fault.PARKED else []
    exec("\n".join(SEES[fault].lines), names)
    (given,) = names["grads" if "grads" in names else "input_grads"]
    assert all(map(torch.equal, (given, *(weight.grad for weight in weights)), expected))  # type: ignore[arg-type]
    assert inputs[0].grad is None and not names["waiting"] and not names.get("groups")


@pytest.mark.parametrize(
    ("name", "pointed"),
    [
        ("stage-backward-cycle", {"closure collect over itself in stage_backward_with_cycle()": "stage_backward"}),
        ("kept-outputs", {"context.inputs in train()": "stage_backward", "context.outputs in train()": "output_edges"}),
    ],
)
def test_each_leak_of_the_sample_pipeline_is_pointed_to_its_own(name: str, pointed: dict[str, str]) -> None:
    run = recorded(name)
    assert seen(run) == pointed
    unsent = replace(run, ranks=tuple(replace(rank, operations=()) for rank in run.ranks))
    assert seen(unsent) == {}  # the same script without a send is no pipeline


def grown(line: str, crossed: str, *of_torch: str) -> Finding:
    """The one finding of a rank that sends: `line` comes at each step; its memory has `crossed`."""

    def heap(step: int) -> HeapGraph:
        graph = heap_from("\n".join(["module train -> .kept -> list kept", *(line.format(n=n) for n in range(step))]))
        use = CommUse(crossed, 1, 0, 1, 0, "train.py:9 go", True)
        uses = dict.fromkeys(graph.storages.tolist(), use) if crossed else {}
        return replace(graph, comm_uses=uses, strings=(*graph.strings, *of_torch))

    rank = rank_of(heap, last=10, **rows(wire=[row(1, "send", 1, 1)]))
    (found,) = judge(run_of(rank)).findings
    return found


PLAIN = f"list kept -> [{{n}}] -> tensor t{{n}}\ntensor t{{n}} -> storage -> storage s{{n}} {MIB}"
OUTPUT = f"{PLAIN}\ntensor t{{n}} -> .grad_fn -> node n{{n}}"
NODE = (
    "list kept -> [{n}] -> dict g{n}\ndict g{n} -> ['intermediates'] -> node n{n}\nnode n{n} -> saved self -> tensor "
    f"t{{n}}\ntensor t{{n}} -> storage -> storage s{{n}} {MIB}"
)


@pytest.mark.parametrize(
    ("line", "crossed", "name"),
    [
        (PLAIN, "", None),  # a list of losses in a script that sends
        (PLAIN, "send", None),  # sent, and no backward has to do with it
        (OUTPUT, "send", "output_edges"),
        (OUTPUT, "recv", "stage_backward"),
        (OUTPUT, "allreduce", None),
        (NODE, "", None),
        (NODE, "recv", "stage_backward_weight"),
    ],
)
def test_of_what_grows_only_what_crossed_and_is_of_a_graph_is_pointed_on(
    line: str, crossed: str, name: str | None
) -> None:
    found = grown(line, crossed)
    assert (found.see and found.see.name) == name
    assert grown(line, crossed, STAGE).see is None  # torch's schedules send, and no backward of the script's runs


@pytest.mark.parametrize(("reference", "name"), [(".fwd_cache", "install"), (".output_chunks", None)])
def test_what_torchs_stage_keeps_is_pointed_to_install_where_that_lets_go_of_it(
    reference: str, name: str | None
) -> None:
    kept = replace(examples.growth_finding(), trace=(Hop("stage", STAGE, "instance", "", "leaked", reference),))
    reported = see(kept, by_hand=False)
    assert (reported and reported.name) == name
