"""Memory that torch's pipelining retains is attributed to torch, once for each holder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from support.judging import rank_of, run_of
from support.pipelining_heaps import KIB, SCHEDULES, Heap, peak_rank, storages, with_receive_buffers

from leakscope.findings.judge import Policy, judge
from leakscope.findings.library import holders_of
from leakscope.findings.model import Finding, LineKind, by_kind, totals
from leakscope.findings.rules.late_release import late_release_findings
from leakscope.graph.model import HeapGraph
from leakscope.graph.ownership import users_side

STEPS = (3, 5, 9, 10)


def judged(*heaps: HeapGraph, occasion: str = "step") -> list[Finding]:
    at = STEPS[: len(heaps)]
    rank = rank_of(lambda step: heaps[at.index(step)], at=at, last=10)
    rank = replace(rank, heap_snapshots=tuple(replace(snapshot, occasion=occasion) for snapshot in rank.heap_snapshots))
    return list(judge(run_of(rank)).findings)


def test_receive_buffers_kept_for_ever_are_a_note_with_their_issue() -> None:
    (finding,) = judged(*[with_receive_buffers(8).graph()] * 4)
    assert (finding.rule, finding.origin, finding.severity, finding.freed_by) == (
        "p2p-buffer",
        "library",
        "note",
        "program",
    )
    assert (finding.retained_bytes, finding.count, finding.bytes_per_step) == (1024 * KIB, 8, 0.0)
    assert finding.cut is not None and finding.cut.reference == "PipelineStage.args_recv_info[i][i].buffer"
    assert finding.cut.frees_bytes == 1024 * KIB
    assert [s.bytes for s in finding.sightings] == [1024 * KIB] * 4
    assert [hop.frees_bytes for hop in finding.trace if hop.frees_bytes] == [1024 * KIB]
    assert [hop.reference for hop in finding.trace] == [
        "local stage",
        ".args_recv_info",
        "[i]",
        "[i]",
        ".buffer",
        "storage",
        "",
    ]


def test_what_a_library_leaks_decides_nothing_where_that_is_asked_for() -> None:
    run = run_of(rank_of(lambda step: with_receive_buffers(8 * step).graph(), at=STEPS, last=10))
    found = judge(run, Policy(ignore_library=True))
    assert (found.verdict, found.exit_status, [f.severity for f in found.findings]) == ("clean", 0, ["note"])
    assert by_kind(totals(found.ledgers[0]))[LineKind.LIBRARY] == 7 * 1024 * KIB


def test_buffers_that_no_receive_has_used_are_aliases_of_the_stage_before() -> None:
    found = {f.cut.reference for f in judged(*[with_receive_buffers(8, crossed=False).graph()] * 3) if f.cut}
    assert found == {"PipelineStage.args_recv_info[i][i].buffer (set_local_fwd_input)"}


def test_a_scripts_own_copy_of_a_stage_is_the_scripts() -> None:
    own = with_receive_buffers(8, type="train.PipelineStage", info="train._RecvInfo").graph()
    assert judged(own, own, own) == []


def test_small_things_and_blocks_of_code_are_not_told() -> None:
    small = Heap()
    small.stage()
    small.by_microbatch("output_chunks", [small.tensor("chunk", 4 * KIB)])
    assert judged(*[small.graph()] * 3) == []
    assert judged(with_receive_buffers(8).graph(), occasion="block") == []


def test_gradients_in_receive_buffers_are_told_apart_from_the_buffers() -> None:
    heap = with_receive_buffers(2)
    for k in range(2):
        heap.refer(f"buffer {k}", ".grad", heap.tensor(f"gradient {k}", 64 * KIB))
    heap.refer("train", "local seen", "buffer 0", "local")
    found = {f.cut.reference: f for f in judged(*[heap.graph()] * 3) if f.cut}
    gradients = found["PipelineStage.args_recv_info[i][i].buffer.grad"]
    assert gradients.retained_bytes == 128 * KIB and gradients.rule == "late-release"
    assert gradients.cut is not None and gradients.cut.frees_bytes == 128 * KIB, "whoever else has the buffer"
    assert found["PipelineStage.args_recv_info[i][i].buffer"].retained_bytes == 256 * KIB


# at the peak of a step


def sent_outputs(count: int) -> Heap:
    heap = Heap()
    heap.stage()
    heap.by_microbatch("fwd_cache", [heap.tensor(f"output {k}") for k in range(count)])
    return heap


def with_sends(heap: Heap, outputs: Sequence[str], frame: str = SCHEDULES) -> Heap:
    name = "frame of PipelineScheduleMulti._step_microbatches" if frame else "frame of exchange"
    heap.add("running", "frame", label=name, root="frame", where=frame or "train.py:30")
    heap.add("send_ops", "container", "list")
    heap.refer("running", "local send_ops", "send_ops", "local")
    for number, output in enumerate(outputs):
        work = heap.add(f"work {number}", "work")
        heap.refer("send_ops", f"[{number}]", work, "item")
        heap.refer(work, "send buffer", output, "wire")
    return heap


def test_outputs_whose_sends_torch_keeps_too_say_so_and_no_single_cut_frees_them() -> None:
    heap = with_sends(sent_outputs(2), ["output 0", "output 1"])
    heap.tensor("gradient")
    work = heap.add("work of gradient", "work")
    heap.refer("send_ops", "[7]", work, "item")
    heap.refer(work, "send buffer", "gradient", "wire")
    found = late_release_findings(peak_rank(heap.graph(), storages(heap, "output 0", "output 1", "gradient")), 1)
    cached, sent = sorted(found, key=lambda f: -f.retained_bytes)
    assert cached.cut is None
    assert sent.retained_bytes == 128 * KIB
    assert sent.cut is not None and sent.cut.frees_bytes == 128 * KIB


def test_what_has_a_finding_of_its_own_is_not_told_again() -> None:
    heap = sent_outputs(2)
    rank = peak_rank(heap.graph(), storages(heap, "output 0", "output 1"))
    assert late_release_findings(rank, 1, {"PipelineStage.fwd_cache"}) == []


def test_work_handles_of_the_scripts_own_are_no_library() -> None:
    heap = Heap()
    heap.tensor("output", 1024 * KIB)
    with_sends(heap, ["output"], frame="")
    graph = heap.graph()
    holders = holders_of(graph, storages(heap, "output")[0], users_side(graph))
    assert holders.work and not holders.library
    (finding,) = late_release_findings(peak_rank(graph, storages(heap, "output")), 1)
    assert finding.origin == "application"


@pytest.mark.parametrize("owner", ["train.Cache", "torch.utils.data.dataset.TensorDataset"])
def test_a_dict_of_the_scripts_own_object_stays_the_users_to_empty(owner: str) -> None:
    heap = Heap()
    heap.stage(owner)
    heap.by_microbatch("fwd_cache", [heap.tensor("output", 2048 * KIB)])
    graph = heap.graph()
    holders = holders_of(graph, storages(heap, "output")[0], users_side(graph))
    assert holders.users and not holders.library
    (finding,) = late_release_findings(peak_rank(graph, storages(heap, "output")), 1)
    assert (finding.origin, finding.severity) == ("application", "avoidable")


# the table
