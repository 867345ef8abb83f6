"""Known library leaks match the attribute names of every supported version."""

from __future__ import annotations

import pytest

from leakscope.findings.facts import HopStatus
from leakscope.findings.known_leaks import known_leak
from leakscope.findings.model import Hop
from leakscope.graph.model import ObjectKind

STAGE = "torch.distributed.pipelining.stage."


def trace(*hops: tuple[str, str]) -> list[Hop]:
    return [Hop("", kind, ObjectKind.INSTANCE, "", HopStatus.EXPECTED, reference) for kind, reference in hops]


@pytest.mark.parametrize(
    ("hops", "holder"),
    [
        ([(STAGE + "PipelineStage", ".fwd_cache[i]"), ("tuple", "[0]")], "PipelineStage.fwd_cache"),
        (
            [
                (STAGE + "PipelineStage", "._forward_chunk_states"),
                ("dict", "[i]"),
                (STAGE + "_ForwardChunkState", ".live_outputs"),
            ],
            "PipelineStage._forward_chunk_states[i].live_outputs",
        ),
        (
            [
                (STAGE + "PipelineStage", "._forward_chunk_states"),
                ("dict", "[i]"),
                (STAGE + "_ForwardChunkState", ".input_values"),
            ],
            "PipelineStage._forward_chunk_states",
        ),
    ],
    ids=["2.13", "2.15, an output", "2.15, an input"],
)
def test_what_a_stage_keeps_of_a_microbatch_is_known(hops: list[tuple[str, str]], holder: str) -> None:
    found = known_leak(trace(*hops))
    assert found is not None and found.holder == holder


def test_a_scripts_own_stage_is_the_scripts() -> None:
    assert known_leak(trace(("train.PipelineStage", "._forward_chunk_states"))) is None
