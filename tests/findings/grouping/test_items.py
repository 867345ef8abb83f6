"""Storages that the items of a container bring are one growth of that container."""

from __future__ import annotations

import pytest
from support.heap_text import heap_from

from leakscope.findings.judge import judge
from leakscope.findings.model import Findings
from leakscope.report.finding_text import freed_text
from leakscope.run.model import Ended, HeapSnapshot, Rank, Run, Step

STEPS = (3, 5, 7, 9)
TENSOR = 1 << 20
MIN_BYTES = 64 * 1024

CYCLE = "network m#{k} -> .hook -> method hook#{k}\nmethod hook#{k} -> .__self__ -> network m#{k}\n"
MODULE = (
    "{holder} -> [{k}] -> network m#{k}\n"
    "network m#{k} -> .weight -> parameter w{k}\nparameter w{k} -> storage -> storage w{k} {small}\n"
    "network m#{k} -> .train_inputs -> list inputs{k}\nlist inputs{k} -> [0] -> tensor x{k}\n"
    "tensor x{k} -> storage -> storage x{k} {large}\n"
)
OPTIMIZER = (
    "{holder} -> [{k}] -> object adam#{k}\nobject adam#{k} -> .step -> method step#{k}\n"
    "method step#{k} -> .__self__ -> object adam#{k}\nobject adam#{k} -> .state -> dict state{k}\n"
    "dict state{k} -> [0] -> dict entry{k}\n"
    "dict entry{k} -> ['exp_avg'] -> tensor a{k}\ntensor a{k} -> storage -> storage a{k} {large}\n"
    "object adam#{k} -> .last -> tensor b{k}\ntensor b{k} -> storage -> storage b{k} {small}\n"
)
RECORD = (
    "{holder} -> [{k}] -> dict record{k}\n"
    "dict record{k} -> ['logits'] -> tensor x{k}\ntensor x{k} -> storage -> storage x{k} {large}\n"
    "dict record{k} -> ['more'] -> list more{k}\nlist more{k} -> [0] -> tensor y{k}\n"
    "tensor y{k} -> storage -> storage y{k} {small}\n"
)


def judged(item: str, holder: str = "", large: int = TENSOR, small: int = TENSOR // 4) -> Findings:
    """What is said of a list `kept` that has one item more after each step; `holder` is what else the module has."""

    def heap(step: int) -> str:
        text = holder or "module train -> .kept -> list kept {items}\n"
        text = text.format(items=step)
        for k in range(step):
            text += item.format(holder="list kept", k=k, large=large, small=small)
        return text

    looks = tuple(HeapSnapshot(s, "step", heap_from(heap(s)), None, 0) for s in STEPS)
    steps = tuple(Step(n, 0.1, None, None) for n in range(1, 21))
    rank = Rank(0, steps, looks, Ended("finished", 0, 20))
    return judge(Run(("train.py",), (rank,), 1, "cpu", "2.13.0", "0", min_bytes=MIN_BYTES))


@pytest.mark.parametrize(
    ("item", "after_gc"),
    [(MODULE, False), (MODULE + CYCLE, True), (OPTIMIZER, True), (RECORD, False)],
    ids=["modules", "modules with hooks", "optimizers", "records"],
)
def test_all_that_the_items_bring_is_one_leak_of_the_container(item: str, after_gc: bool) -> None:
    (finding,) = judged(item).findings
    assert finding.cut is not None and finding.cut.written == "train.kept" and finding.cut.after_gc == after_gc
    assert finding.retained_bytes == finding.cut.frees_bytes == 9 * (TENSOR + TENSOR // 4)
    assert finding.bytes_per_step == TENSOR + TENSOR // 4
    assert ("and the next gc" in freed_text(finding)) == after_gc


def test_what_holds_the_container_and_what_must_stay_is_not_cut() -> None:
    holder = (
        "module train -> .trainer -> object trainer\nobject trainer -> .kept -> list kept {items}\n"
        "object trainer -> .net -> network net\nnetwork net -> .weight -> parameter p\n"
        f"parameter p -> storage -> storage p {100 * TENSOR}\n"
    )
    (finding,) = judged(MODULE + CYCLE, holder).findings
    assert finding.cut is not None and finding.cut.written == "train.trainer.kept"


def test_a_cycle_that_gc_does_not_see_is_not_said_to_go_free() -> None:
    hidden = "network m#{k} -> .seen -> tensor l{k}\ntensor l{k} -> .grad_fn -> node N{k}\nnode N{k} -> saved self -> "
    (finding, *_) = judged(MODULE + hidden + "network m#{k}\n").findings
    assert finding.cut is None or not finding.cut.after_gc


@pytest.mark.parametrize(("small", "severity"), [(20, "leak"), (4, "note")])
def test_small_storages_of_one_container_are_weighed_together(small: int, severity: str) -> None:
    (finding,) = judged(MODULE + CYCLE, large=50 * 1024, small=small * 1024).findings
    assert finding.severity == severity
    assert finding.bytes_per_step == (50 + small) * 1024


def test_what_a_bound_settles_stays_a_note_however_many_are_weighed() -> None:
    (finding,) = judged(RECORD, "module train -> .kept -> list kept {items} maxlen=20\n", 50 << 10, 20 << 10).findings
    assert finding.severity == "note" and finding.bytes_per_step == 70 << 10
