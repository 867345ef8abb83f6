"""What must not change a finding: another leak beside it, its own size where it is unintended, the order of ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from support.judging import STEPS, rank_of, run_of

from leakscope.findings.judge import judge
from leakscope.findings.model import Finding, Findings
from leakscope.run.model import Rank
from leakscope.run.rows import MemoryThere

MEMORY = 24 << 30
UNINTENDED = ("graphs", "cycles", "hooks")
PLAIN = ("tensors", "values")


@dataclass(frozen=True)
class Leak:
    """One thing of a kind that is kept at each step, of so many bytes."""

    kind: str
    name: str
    size: int

    def text(self, step: int) -> str:
        return "".join(self._item(k) for k in range(step))

    def _item(self, k: int) -> str:
        name, size = self.name, self.size
        tensor, memory = f"{name}_{k}", f"storage {name}_{k} {size}"
        kept = f"module train -> .{name} -> list {name}\nlist {name} -> [{k}] -> tensor {tensor}\n"
        if self.kind == "tensors":
            return f"{kept}tensor {tensor} -> storage -> {memory}\n"
        if self.kind == "values":
            return (
                f"module train -> .{name} -> dict {name}\ndict {name} -> [{k}] -> tensor {tensor}\n"
                f"tensor {tensor} -> storage -> {memory}\n"
            )
        if self.kind == "graphs":
            return f"{kept}tensor {tensor} -> .grad_fn -> node {tensor}\nnode {tensor} -> saved self -> {memory}\n"
        if self.kind == "hooks":
            return (
                f"module train -> .{name} -> object {name}\nobject {name} -> ._forward_hooks -> dict {name}\n"
                f"dict {name} -> [{k}] -> function {name}#{k}\nfunction {name}#{k} -> closure out -> tensor {tensor}\n"
                f"tensor {tensor} -> storage -> {memory}\n"
            )
        return (
            f"object {name}#{k} freed=1 -> .me -> object {name}#{k}\n"
            f"object {name}#{k} -> .kept -> tensor {tensor} freed=1\n"
            f"tensor {tensor} -> storage -> {memory} freed=1\n"
        )


def rank_with(leaks: Sequence[Leak], number: int = 0) -> Rank:
    memory = (MemoryThere("the host's memory", MEMORY),)
    return rank_of(lambda step: "".join(leak.text(step) for leak in leaks), number, last=9, host_memory=memory)


def judged(*ranks: Rank) -> Findings:
    return judge(run_of(*ranks))


def reported(findings: Findings) -> Mapping[str, tuple[object, ...]]:
    """What is said of each leak, by its fingerprint."""
    return {f.fingerprint: _of(f) for f in findings.findings if f.severity == "leak"}


def _of(f: Finding) -> tuple[object, ...]:
    cut = None if f.cut is None else (f.cut.written, f.cut.also, f.cut.frees_bytes)
    return f.rule, f.subject, cut, f.retained_bytes, round(f.bytes_per_step), f.count


def leaks(kinds: Sequence[str], least: int) -> st.SearchStrategy[list[Leak]]:
    """One to three leaks of different names and sizes."""
    one = st.tuples(st.sampled_from(kinds), st.integers(least, 50 * least))
    several = st.lists(one, min_size=1, max_size=3)
    return several.map(lambda some: [Leak(kind, f"own{k}", size) for k, (kind, size) in enumerate(some)])


@settings(max_examples=10, deadline=None)
@given(leaks((*UNINTENDED, *PLAIN), 64 << 10), st.sampled_from((*UNINTENDED, *PLAIN)))
def test_a_leak_ten_times_as_large_beside_it_hides_none(some: list[Leak], kind: str) -> None:
    alone = reported(judged(rank_with(some)))
    largest = max(leak.size for leak in some)
    beside = reported(judged(rank_with([*some, Leak(kind, "beside", 10 * largest)])))
    assert alone and all(beside.get(name) == what for name, what in alone.items())
    assert len(beside) == len(alone) + 1


@settings(max_examples=6, deadline=None)
@given(leaks((*UNINTENDED, *PLAIN), 64 << 10), leaks((*UNINTENDED, *PLAIN), 64 << 10))
def test_the_order_of_ranks_changes_nothing(some: list[Leak], others: list[Leak]) -> None:
    one = judged(rank_with(some, 0), rank_with(others, 1))
    other = judged(rank_with(others, 0), rank_with(some, 1))
    assert reported(one) == reported(other)
    assert [one.ranks[k].verdict for k in (0, 1)] == [other.ranks[k].verdict for k in (1, 0)]


@settings(max_examples=6, deadline=None)
@given(leaks((*UNINTENDED, *PLAIN), 64 << 10))
def test_a_leak_on_two_ranks_is_one_finding_of_twice_the_bytes(some: list[Leak]) -> None:
    one, two = reported(judged(rank_with(some))), reported(judged(rank_with(some, 0), rank_with(some, 1)))
    assert one.keys() == two.keys()
    assert all(two[name][3] == 2 * one[name][3] for name in one)  # type: ignore[operator]


def _hooked(step: int, way: str) -> str:
    """A module of two layers with a hook more on each at each step; the variable `m` has the second layer, or another
    module of the same class.
    """
    hooks = "".join(
        f"network Linear#{layer} -> ._forward_hooks -> dict h{layer}\n"
        f"dict h{layer} -> [{k}] -> function hook#{layer}.{k}\n"
        f"function hook#{layer}.{k} -> closure out -> tensor t{layer}.{k}\n"
        f"tensor t{layer}.{k} -> storage -> storage t{layer}.{k} 100000\n"
        for layer in (0, 1)
        for k in range(step)
    )
    return f"module train -> .net -> network Net\nnetwork Net -> [0] -> network Linear#0\n{way}{hooks}"


OF_NET = "network Net -> [1] -> network Linear#1\n"
BY_VARIABLE = "module train -> .m -> network Linear#1\n"


def _of_hooks(way: str) -> list[tuple[str, int]]:
    findings = judged(rank_of(lambda step: _hooked(step, way), last=9)).findings
    return [(f.cut.written, f.cut.frees_bytes) for f in findings if f.cut is not None]


def test_the_variable_of_a_loop_over_modules_makes_no_leak_of_its_own() -> None:
    in_all = 2 * STEPS[-1] * 100_000
    assert _of_hooks(OF_NET) == [("train.net", in_all)]
    assert _of_hooks(OF_NET + BY_VARIABLE) == [("train.net[i]", in_all)]
    assert _of_hooks(BY_VARIABLE) == [("train.m", in_all // 2), ("train.net[0]", in_all // 2)]
