"""A repetition with edits is accepted only if nothing but the leak has changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support import examples

from leakscope.findings.model import Finding, Findings
from leakscope.fix.proof import Aspect, Proof
from leakscope.fix.rerun import Evidence
from leakscope.run.model import Ended, Rank
from leakscope.run.rows import TrainingState
from leakscope.verdict import Verdict

KIB, MIB = examples.KIB, examples.MIB
ROWS = tuple(TrainingState(n, parameters=100 + n, gradients=n, losses=(1.0 / n,), tensors=2) for n in range(1, 13))
OUTPUT = ("start 0x7f01 at 12:00:01", "step 1 loss 0.5000 (12.1 it/s)", "step 2 loss 0.2500 (11.8 it/s)")


def leak(growth: int = 256 * KIB, **changes: Any) -> Finding:
    found = replace(examples.growth_finding(), fingerprint="aaaa", bytes_per_step=growth, retained_bytes=8 * growth)
    return replace(found, counted_bytes=0, **changes)


def evidence(*leaks: Finding, growth: int = 0, output: tuple[str, ...] = OUTPUT, **changes: Any) -> Evidence:
    rank = replace(examples.rank(0, growth=growth), **{"training": ROWS, **changes})
    verdict = Verdict.LEAKS if leaks else Verdict.CLEAN
    found = Findings(verdict, "", 23 if leaks else 0, leaks)
    return Evidence(examples.run(rank), found, rank.ended.status, (output,), 5.0)


BASE = evidence(leak(), growth=256 * KIB)


def aspects(tried: Evidence, again: Evidence | None = None, leaks: tuple[Finding, ...] = (leak(),)) -> list[Aspect]:
    return [refusal.aspect for refusal in Proof(BASE, again).refusals(tried, leaks)]


def test_the_same_training_without_the_leak_is_a_proof() -> None:
    assert aspects(evidence()) == []
    times = ("start 0x7f99 at 12:05:31", "step 1 loss 0.5000 (3.9 it/s)", "step 2 loss 0.2500 (4.2 it/s)")
    assert aspects(evidence(output=times)) == []


@given(st.integers(0, 11), st.sampled_from(["parameters", "gradients", "losses"]))
def test_any_changed_value_of_any_step_is_refused(place: int, name: str) -> None:
    value = (2.0,) if name == "losses" else 7_000
    rows = (*ROWS[:place], replace(ROWS[place], **{name: value}), *ROWS[place + 1 :])
    refusals = Proof(BASE).refusals(evidence(training=rows), [leak()])
    assert [refusal.aspect for refusal in refusals] == [Aspect.TRAINING]
    assert refusals[0].text.endswith(f"at step {place + 1}")


def test_losses_that_are_not_numbers_are_equal() -> None:
    rows = tuple(replace(row, losses=(float("nan"),)) for row in ROWS)
    base = evidence(leak(), growth=256 * KIB, training=rows)
    assert Proof(base).refusals(evidence(training=rows), [leak()]) == []


def test_a_changed_output_or_end_is_refused() -> None:
    assert aspects(evidence(output=OUTPUT[:2])) == [Aspect.OUTPUT]
    assert aspects(evidence(output=(*OUTPUT[:2], "step 2 loss 0.2501 (11.8 it/s)"))) == [Aspect.OUTPUT]
    raised = Ended("raised", 1, 4, error="AttributeError: 'float' object has no attribute 'mean'", at="train.py:22")
    refusals = Proof(BASE).refusals(evidence(ended=raised), [leak()])
    assert [refusal.aspect for refusal in refusals] == [Aspect.EXIT]
    assert "train.py:22" in refusals[0].text


def test_the_leak_in_another_place_is_refused() -> None:
    assert aspects(evidence(leak(), growth=256 * KIB)) == [Aspect.LEAK_STAYS]
    assert aspects(evidence(replace(leak(), fingerprint="bbbb"))) == [Aspect.NEW_LEAK]
    # no finding names it, but the tensors grow as before, or half as fast
    assert aspects(evidence(growth=256 * KIB)) == [Aspect.LEAK_STAYS]
    assert aspects(evidence(growth=128 * KIB)) == [Aspect.LEAK_STAYS]


def test_other_leaks_may_stay() -> None:
    other = replace(leak(64 * KIB), fingerprint="bbbb")
    base = evidence(leak(), other, growth=320 * KIB)
    assert Proof(base).refusals(evidence(other, growth=64 * KIB), [leak()]) == []
    assert Proof(base).refusals(evidence(growth=0), [leak(), other]) == []


def test_a_higher_peak_is_refused() -> None:
    def with_counted(rank: Rank, more: int) -> tuple[Any, ...]:
        return tuple(replace(step, counted_bytes=(step.counted_bytes or 0) + more) for step in rank.steps)

    clean = evidence()
    rank = clean.run.ranks[0]
    assert aspects(evidence(steps=with_counted(rank, 40 * MIB))) == [Aspect.PEAK]
    assert aspects(evidence(steps=with_counted(rank, -40 * MIB))) == []


def test_slower_steps_are_refused_beyond_noise() -> None:
    def paced(factor: float) -> Evidence:
        rank = evidence().run.ranks[0]
        steps = [replace(step, seconds=factor * (0.05 + 0.001 * (step.number % 3))) for step in rank.steps]
        return evidence(steps=tuple(steps))

    proof = Proof(paced(1.0))
    assert proof.slower([paced(1.03)]) is None
    assert proof.slower([paced(1.5)]) is not None
    assert proof.slower([paced(1.5), paced(1.0)]) is None  # the first was disturbed


def test_a_script_that_differs_from_itself_is_compared_by_distribution() -> None:
    def noisy(seed: int, factor: float = 1.0) -> Evidence:
        rows = tuple(
            replace(row, parameters=seed * row.step, losses=(factor * (1 + ((7 * row.step + seed) % 11) / 100),))
            for row in ROWS
        )
        output = (f"loss {factor + seed / 100:.4f}", "done")
        return evidence(
            *([leak()] if seed < 2 else []), growth=256 * KIB if seed < 2 else 0, training=rows, output=output
        )

    proof = Proof(noisy(0))
    assert proof.needs_another(noisy(2))
    proof.again = noisy(1)
    assert not proof.is_deterministic
    assert proof.refusals(noisy(2), [leak()]) == []
    assert [refusal.aspect for refusal in proof.refusals(noisy(2, 3.0), [leak()])][:1] == [Aspect.TRAINING]
    assert not Proof(BASE).needs_another(evidence())


def test_figures_of_memory_may_differ_where_the_training_was_compared() -> None:
    base = evidence(leak(), growth=256 * KIB, output=("loss 0.50, allocated 12.5 MiB, 24 storages alive",))
    assert Proof(base).refusals(evidence(output=("loss 0.50, allocated 3 MiB, 0 storages alive",)), [leak()]) == []
    other = evidence(output=("loss 0.50, 3 MiB, accuracy 0.9",))
    assert [refusal.aspect for refusal in Proof(base).refusals(other, [leak()])] == [Aspect.OUTPUT]
    untrained = evidence(leak(), growth=256 * KIB, output=base.output[0], training=())
    tried = evidence(output=("loss 0.50, allocated 3 MiB, 0 storages alive",), training=())
    assert [refusal.aspect for refusal in Proof(untrained).refusals(tried, [leak()])] == [Aspect.OUTPUT]
