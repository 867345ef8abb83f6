"""Unmatched operations, dropped Work, open contexts, deadlocks and first failures are reported."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from support.comm_examples import rank_with, row, run_of

from leakscope.findings.comm import comm_states, deadlock_cycle, first_to_blame, first_to_fail, missing_ranks, unmatched
from leakscope.findings.rules.dist_autograd_context import context_findings
from leakscope.findings.rules.p2p_buffer import dropped_work_findings
from leakscope.run.model import Ended, Rank
from leakscope.run.rows import Direction, EndKind, OperationState

KILLED = Ended("killed", 137, 2, error="killed by SIGKILL")


def test_later_lines_complete_earlier_ones() -> None:
    lines = [row(1, "send", 1, 1), {"id": 1, "waited": 1.5, "storage_died": 2.0}, row(2, "send", 1, 2)]
    first, second = rank_with(0, wire=lines).operations
    assert (first.id, first.waited, first.direction, second.id) == (1, 1.5, Direction.SEND, 2)


def test_of_each_rank_the_latest_steps_are_told() -> None:
    ranks = [
        rank_with(n, wire=[row(s, "send", 1, s, dropped=True, issued_at="train.py:9 go") for s in range(1, 31)])
        for n in range(3)
    ]
    (finding,) = dropped_work_findings(run_of(*ranks))
    assert finding.ranks == (0, 1, 2) and finding.count == 90
    assert {(r, max(s.step for s in finding.sightings if s.rank == r)) for r in finding.ranks} == {
        (0, 30),
        (1, 30),
        (2, 30),
    }
    assert len(finding.sightings) == 60


def test_a_send_without_its_receive_is_named_with_the_peers_last_operation() -> None:
    sends = [row(1, "send", 1, 1), row(2, "send", 1, 2)]
    last = {**row(5, "recv", 0, 1), "state": "waited"}
    run = run_of(
        rank_with(0, KILLED, wire=sends, wire_last=[{**sends[-1], "state": "waits "}]),
        rank_with(1, wire=[row(1, "recv", 0, 1)], wire_last=[last]),
    )
    (lost,) = unmatched(run)
    assert (lost.rank, lost.direction, lost.peer, lost.missing) == (0, "send", 1, 1) and lost.first.id == 2
    state = comm_states(run)[0]
    assert state.last is not None and (state.last.state, state.unmatched) == (OperationState.WAITS, (lost,))
    assert first_to_blame(run) == 1


def test_a_collective_that_a_rank_never_came_to_is_named() -> None:
    waits = {**row(9, "allreduce", None, 3), "tag": None, "state": "waits "}
    done = {**row(8, "allreduce", None, 2), "tag": None, "state": "waited", "newest": True}
    hung = Ended("raised", 124, 2, error="hung")
    run = run_of(
        rank_with(0, hung, wire_last=[waits]),
        rank_with(1, hung, wire_last=[done]),
        rank_with(2, hung, wire_last=[waits]),
    )
    assert {number: (stuck.operation, stuck.ranks) for number, stuck in missing_ranks(run).items()} == {
        number: (run.ranks[number].final_operation, (1,)) for number in (0, 2)
    }
    assert run.ranks[0].final_operation is not None and run.ranks[0].final_operation.state == OperationState.WAITS
    assert (missing := comm_states(run)[0].missing) is not None and missing.ranks == (1,)
    assert first_to_blame(run) == 1 and first_to_fail(run) is run.ranks[1]


def _alternating(peer: int, first: str, microbatches: int) -> list[dict[str, Any]]:
    """Sends and receives with a peer in turn, as a stage of a pipeline has them."""
    second = "recv" if first == "send" else "send"
    return [
        row(2 * n - (direction == first), direction, peer, n)
        for n in range(1, microbatches + 1)
        for direction in (first, second)
    ]


def test_what_a_log_does_not_reach_is_unknown_and_not_missing() -> None:
    """Rank 1 was killed before its fourth receive, then rank 0 in its send; both logs end with the first microbatch."""
    sender, receiver = _alternating(1, "send", 4), _alternating(0, "recv", 3)
    killed = rank_with(1, KILLED, wire=receiver[:2], wire_last=[{**receiver[5], "state": "waited", "newest": True}])
    failed = {**sender[6], "state": "failed", "newest": True}
    run = run_of(rank_with(0, KILLED, wire=sender[:2], wire_last=[failed]), killed)
    assert [(u.rank, u.direction, u.first.nth, u.missing) for u in unmatched(run)] == [(0, "send", 4, 1)]


def test_operations_after_one_that_was_waited_for_late_are_unknown() -> None:
    """A killed rank's file tells of its second operation, which it went back to: it may have received again by then."""
    sends = [row(n, "send", 1, n) for n in (1, 2)]
    waits = rank_with(0, Ended("raised", 124, 1), wire=sends, wire_last=[{**sends[-1], "state": "waits"}])
    log = [row(1, "recv", 0, 1), *(row(n, "send", 2, n - 1) for n in (2, 3, 4))]
    late, newest = ({**log[place], "state": "waited", "newest": place == 3} for place in (1, 3))
    assert unmatched(run_of(waits, rank_with(1, KILLED, wire=log, wire_last=[late]))) == ()
    (lost,) = unmatched(run_of(waits, rank_with(1, KILLED, wire=log, wire_last=[newest])))
    assert (lost.first.nth, lost.missing) == (2, 1)


def test_a_collective_that_a_rank_may_have_come_to_is_not_told_as_missed() -> None:
    waits = {**row(9, "allreduce", None, 3), "tag": None, "state": "waits", "newest": True}
    later = {**row(12, "send", 0, 1), "state": "waited", "newest": True}
    log = [{**row(n, "allreduce", None, n), "tag": None} for n in (1, 2)]
    assert (
        missing_ranks(
            run_of(rank_with(0, KILLED, wire_last=[waits]), rank_with(1, KILLED, wire=log, wire_last=[later]))
        )
        == {}
    )


HUNG = Ended(EndKind.HUNG, 124, 7, error="no communication for 8 s; last recv", log="logs/rank.log")


def waiting(number: int, direction: str, peer: int | None, nth: int, ended: Ended = HUNG) -> Rank:
    last = {**row(9, direction, peer, nth), "tag": None if peer is None else 0, "state": "waits ", "newest": True}
    return rank_with(number, ended, wire_last=[last])


def test_ranks_that_wait_for_each_other_are_named_and_not_who_waits_for_one_of_them() -> None:
    """The launcher may end one of them with SIGTERM before it says by itself that it hung."""
    for ended in (HUNG, Ended("killed", 143, 7, error="killed by SIGTERM")):
        run = run_of(waiting(0, "recv", 1, 9), waiting(1, "recv", 2, 9, ended), waiting(2, "recv", 1, 9))
        assert deadlock_cycle(run) == (1, 2) and first_to_blame(run) == 1 and first_to_fail(run) is run.ranks[1]


def test_a_rank_in_a_collective_waits_for_those_that_are_not_in_it() -> None:
    """And not for good for one of them that receives from anybody."""
    used = ({**row(1, "allreduce", None, 1), "tag": None},)
    stuck = [
        replace(r, operations=rank_with(0, wire=used).operations)
        for r in (waiting(1, "recv", 2, 9), waiting(3, "recv", None, 9))
    ]
    run = run_of(waiting(0, "allreduce", None, 3), stuck[0], waiting(2, "allreduce", None, 3), stuck[1])
    assert deadlock_cycle(run) == (1, 2)


def test_who_waits_for_a_rank_that_does_something_else_is_in_no_circle() -> None:
    done = rank_with(2, HUNG, wire_last=[{**row(9, "recv", 1, 8), "state": "waited", "newest": True}])
    run = run_of(waiting(0, "recv", 1, 9), waiting(1, "recv", 2, 9), done)
    assert deadlock_cycle(run) == () and first_to_blame(run) == 2


def test_a_rank_that_ran_out_of_memory_is_told_before_its_peers() -> None:
    """The collective that failed on its peer may be one of C++ that nobody saw, as those of DistributedDataParallel."""
    ran_out = rank_with(
        1, Ended("raised", 1, 2), out_of_memory=[{"step": 2, "error": "DefaultCPUAllocator: can't allocate memory"}]
    )
    run = run_of(rank_with(0, Ended("raised", 1, 2)), ran_out)
    assert first_to_fail(run) is run.ranks[1]


def test_a_rank_that_failed_of_itself_is_told_before_the_one_waited_for() -> None:
    waits = {**row(9, "allreduce", None, 3), "tag": None, "state": "waits "}
    done = {**row(8, "allreduce", None, 2), "tag": None, "state": "waited"}
    run = run_of(
        rank_with(0, Ended("raised", 1, 2), wire_last=[waits]), rank_with(1, Ended("raised", 124, 2), wire_last=[done])
    )
    assert first_to_fail(run) is run.ranks[0]


def test_a_receive_from_any_rank_leaves_its_channel_unjudged() -> None:
    run = run_of(rank_with(0, KILLED, wire=[row(1, "send", 1, 1)]), rank_with(1, wire=[row(1, "recv", None, 1)]))
    assert unmatched(run) == ()


def test_backward_passes_left_running_are_told() -> None:
    rows = [{"step": s, "open": 0, "backward_passes": 1, "bytes": 0, "contexts": []} for s in (1, 2)]
    (finding,) = context_findings(run_of(rank_with(0, contexts=rows)))
    assert finding.rule == "dist-autograd-context"
    assert context_findings(run_of(rank_with(0, contexts=rows[:1]))) == []


def test_contexts_without_gradients_are_told_when_they_pile_up() -> None:
    context = {"id": 1, "opened_at": "train.py:7 run", "step": 1, "workers": [1], "gradients": 0, "bytes": 0}
    rows = [{"step": s, "open": s, "backward_passes": 0, "bytes": 0, "contexts": [context]} for s in (1, 2, 3)]
    assert len(context_findings(run_of(rank_with(0, contexts=rows)))) == 1
    level = [{**r, "open": 2} for r in rows]
    assert context_findings(run_of(rank_with(0, contexts=level))) == []
