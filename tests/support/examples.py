"""Small runs and findings, written by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from leakscope.findings.backward_hint import SEES, Fault
from leakscope.findings.facts import AliveAtEnd, StaticText
from leakscope.findings.model import (
    BackwardHint,
    Cut,
    CutReference,
    CycleReference,
    Finding,
    Findings,
    Hop,
    RankSummary,
    Sighting,
    Unjudged,
)
from leakscope.graph.model import build
from leakscope.run.fixes import Fix, LeakFix, Try
from leakscope.run.model import Collection, Ended, GcDiff, HeapSnapshot, Rank, Run, Step
from leakscope.run.rows import CommOperation

KIB = 1024
MIB = 1024 * 1024
HOSTILE = '</script><img src=x onerror="document.title=1">{{ 7*7 }}&$x_1$'
SOURCES = {
    "train.py": tuple(f"line {n}" for n in range(1, 12)) + ("    self.losses.append(loss)",) + ("",) * 40,
    "stage.py": ("",) * 39 + ("    def extract(node):", "        return [extract(n) for n in node.next_functions]"),
}


def steps(count: int, start: int, growth: int, peak: bool = False) -> tuple[Step, ...]:
    full = Collection(2, 0.011, 420, 3 * growth)
    return tuple(
        Step(
            number=n,
            seconds=0.057,
            counted_bytes=start + growth * n,
            peak_bytes=start + growth * n + 8 * MIB if peak else None,
            collections=(full,) if n == 8 else (),
        )
        for n in range(1, count + 1)
    )


def heap_snapshot(step: int, explained: int, counted: int, unjudged: tuple[str, ...] = ()) -> HeapSnapshot:
    return HeapSnapshot(
        step=step, occasion="step", heap=build([], []), counted_bytes=counted, explained_bytes=explained, objects=139,
        stopped_seconds=0.21, seconds=0.24, unjudged=unjudged,
    )  # fmt: skip


def rank(
    number: int,
    count: int = 12,
    growth: int = 256 * KIB,
    ended: Ended | None = None,
    operations: tuple[CommOperation, ...] = (),
    notes: tuple[str, ...] = (),
) -> Rank:
    snapshots = tuple(
        heap_snapshot(s, 4 * MIB + growth * s, 200 * MIB + growth * s) for s in (3, 5, 9, 11) if s <= count
    )
    diff = GcDiff((0, 64 * KIB, 704 * KIB, 0), 2, (0.0001, 0.002, 0.03, 0.03), 768 * KIB)
    return Rank(
        number=number,
        steps=steps(count, 200 * MIB, growth),
        heap_snapshots=snapshots,
        ended=ended or Ended("stopped", 0, count, log=f"logs/rank_{number}.log"),
        gc_diff=diff if count >= 12 and growth else None,
        notes=notes,
        operations=operations,
    )


def run(*ranks: Rank, **changes: Any) -> Run:
    values: dict[str, Any] = {
        "command": ("train.py", "--leak", "stage-backward-cycle"),
        "ranks": ranks,
        "expected_ranks": len(ranks),
        "device": "cpu",
        "torch": "2.13.0",
        "leakscope": "0.1.0",
        "sources": SOURCES,
    }
    return Run(**{**values, **changes})


def cycle_finding() -> Finding:
    """Its trace goes once around the cycle, then from the cell down to the storage."""
    size = 768 * KIB
    alone, held = "unreachable: kept alive by the cycle", "referenced by the cycle"
    function = "function extract", "function", "function", "stage.py:40", "leaked"
    cell = "cell extract", "cell", "cell", "stage.py:40", "leaked"
    items = "tuple, 2 items", "tuple", "container", "", "leaked"
    tensor = "Tensor float32[128, 256]", "torch.Tensor", "tensor", "", "leaked"
    return Finding(
        rule="tensor-cycle",
        facts=StaticText(
            title="closure `extract` in stage_backward_weight holds itself and every intermediate of the step",
            advice="Make `extract` a module-level function, "
            "or walk the graph with a list of nodes instead of recursion.",
        ),
        fingerprint="b41c07e2",
        severity="leak",
        freed_by="gc",
        retained_bytes=1536 * KIB,
        bytes_per_step=128.0 * KIB,
        trace=(
            Hop(*function, "closure extract", alone, size, 0, (10,)),
            Hop(*items, "[i]", alone, size, 1, (11,)),
            Hop(*cell, "contents", alone, size, 2, (12,)),
            Hop(*function, "", alone, index=0),
            Hop(*cell, "contents", held, index=2, references=(12,)),
            Hop(*function, "closure intermediates", held, None, 0, (13,)),
            Hop("list, 4 items", "list", "container", "stage.py:38", "leaked", "[i]", held, 512 * KIB, 3, (14,)),
            Hop(*tensor, ".untyped_storage()", held, None, 4, (15,)),
            Hop("storage, 128.00 KiB", "torch.UntypedStorage", "storage", "", "leaked", "", held, index=5),
        ),
        cycle=(
            CycleReference("function extract", "closure extract", "tuple, 2 items", 0, 10, 1),
            CycleReference("tuple, 2 items", "[i]", "cell extract", 1, 11, 2),
            CycleReference("cell extract", "contents", "function extract", 2, 12, 0),
        ),
        cut=Cut((CutReference("closure extract", "stage.py:41", indexes=(10,), trace=0),), 768 * KIB, 768 * KIB),
        collections=2,
        made_at=("stage.py:41 forward (aten::addmm)", "stage.py:41 forward (aten::mul)", "stage.py:40 f (aten::mm)"),
        sightings=tuple(Sighting(r, s, 128 * KIB * s) for r in (0, 1) for s in (3, 5, 9, 11)),
        see=SEES[Fault.INTERMEDIATES],
        count=6,
    )


def growth_finding(name: str = ".losses") -> Finding:
    return Finding(
        rule="step-growth",
        facts=StaticText(
            title=f"`trainer{name}` gains 2 tensors each step",
            advice="Append `loss.item()`, or clear the list at the end of each step.",
        ),
        fingerprint="0f3a9c11",
        severity="leak",
        freed_by="program",
        retained_bytes=24 * 64 * KIB,
        bytes_per_step=128.0 * KIB,
        trace=(
            Hop("module __main__", "module", "namespace", "train.py:1", "expected", ".trainer", "the running script"),
            Hop("Trainer", "__main__.Trainer", "instance", "train.py:8", "unknown", name, "", 24 * 64 * KIB),
            Hop("list, 24 items", "list", "container", "train.py:12", "leaked", "[i]", "gained 2 items at every look"),
            Hop("Tensor float32[128, 128]", "torch.Tensor", "tensor", "", "leaked", ".untyped_storage()", ""),
            Hop("storage, 64.00 KiB", "torch.UntypedStorage", "storage", "", "leaked", ""),
        ),
        cut=Cut(
            (CutReference(name, "train.py:12", trace=1),),
            24 * 64 * KIB,
            None,
            "the container's owner defines __del__",
        ),
        made_at=("train.py:41 forward (aten::mul)",),
        sightings=tuple(Sighting(0, s, 128 * KIB * s) for s in (3, 5, 9, 11)),
        count=24,
    )


def library_finding() -> Finding:
    return Finding(
        rule="hook-pileup",
        facts=StaticText(
            title="torch.distributed.pipelining keeps hooks on its receive buffers",
            advice="Known upstream as pytorch issue 185331; nothing to do in your code.",
        ),
        fingerprint="77aa01ff",
        severity="note",
        freed_by="program",
        retained_bytes=32 * KIB,
        bytes_per_step=0.0,
        trace=(Hop("PipelineStage", "torch.distributed.pipelining.PipelineStage", "instance", "", "unknown", ""),),
        cut=None,
        origin="library",
        sightings=(Sighting(1, 11, 32 * KIB),),
    )


def note_finding() -> Finding:
    return Finding(
        rule="step-growth",
        facts=StaticText(
            title="`history` gains one detached scalar each step", advice="Nothing to do below --min-bytes."
        ),
        fingerprint="12345678",
        severity="note",
        freed_by="program",
        retained_bytes=48,
        bytes_per_step=4.0,
        trace=(
            Hop("module __main__", "module", "namespace", "train.py:1", "expected", ".history"),
            Hop("storage, 4 B", "torch.UntypedStorage", "storage", "", "unknown", ""),
        ),
        cut=Cut((CutReference(".history", "train.py:4", trace=0),), 48),
        sightings=(Sighting(0, 11, 48),),
    )


def summary(number: int, leaked: int) -> RankSummary:
    steady = {"parameter": 2 * MIB, "gradient": 2 * MIB, "optimizer state": 4 * MIB, "activation": MIB}
    by_step = tuple((s, {**steady, "leaked": leaked * s // 11}) for s in (3, 5, 9, 11))
    return RankSummary(
        freed_by_gc_bytes=768 * KIB,
        gc_seconds=0.062,
        explained_bytes=9 * MIB + leaked,
        counted_bytes=212 * MIB + number * MIB,
        categories=by_step[-1][1],
        categories_by_step=by_step,
    )


def comm_operations(step_count: int = 4, microbatches: int = 4, late: bool = True) -> tuple[CommOperation, ...]:
    operations: list[CommOperation] = []
    for step in range(1, step_count + 1):
        for microbatch in range(microbatches):
            for direction, offset in (("recv", 0.0), ("send", 0.004)):
                issued = step * 0.1 + microbatch * 0.012 + offset
                operation = CommOperation(
                    id=len(operations) + 1, nth=len(operations) + 1, buffers=1, direction=direction, peer=1,
                    tag=microbatch, group="default", bytes=64 * KIB, dtype="float32", shape=(128, 128), step=step,
                    microbatch=microbatch, issued_at="train.py:88 forward_step", issued=issued, waited=issued + 0.002,
                    completed=issued + 0.003, tensor_died=issued + 0.006,
                    storage_died=None if late and direction == "send" else issued + 0.02,
                )  # fmt: skip
                operations.append(operation)
    return tuple(operations)


def leaking() -> tuple[Run, Findings]:
    """Two ranks, a tensor cycle on both, a list that grows on rank 0, a library leak and a note."""
    reported = (cycle_finding(), growth_finding(), library_finding(), note_finding())
    return run(rank(0, operations=comm_operations()), rank(1)), Findings(
        verdict="leaks",
        why="2 distinct leaks hold 3.00 MiB and grow by 256.00 KiB a step.",
        exit_status=23,
        findings=reported,
        unjudged=(Unjudged("late-release", 0, "lifetimes were not recorded (--no-lifetimes)"),),
        ranks={0: summary(0, 3 * MIB), 1: summary(1, MIB)},
    )


DIFF = """diff --git a/train.py b/train.py
--- a/train.py
+++ b/train.py
@@ -9,6 +9,6 @@
 line 9
 line 10
 line 11
-    self.losses.append(loss)
+    self.losses.append(loss.item())
 
 
@@ -20,2 +20,3 @@
 
 
+# the end
"""


def fix(diff: str = DIFF, subject: str = "trainer.losses", title: str = "`.item()` at train.py:12") -> Fix:
    """Of the leaks of `leaking`, the list is fixed and the cycle is not."""
    return Fix(
        leaks=(
            LeakFix("b41c07e2", "extract", "", "", "2 edits were tried and refused"),
            LeakFix("0f3a9c11", subject, title, diff, ""),
        ),
        tries=(
            Try("`del extract` at stage.py:41", ("b41c07e2",), "stage.py:41", "NameError at stage.py:41", 7.0),
            Try(title, ("0f3a9c11",), "train.py:12", "", 6.6),
        ),
        patch=diff,
        is_deterministic=True,
        steps=42,
        compared_steps=84,
        notes=("environment variables are not as recorded: DATA",),
        before=((3, 4 * MIB), (5, 5 * MIB), (9, 7 * MIB)),
        after=((3, 4 * MIB), (5, 4 * MIB), (9, 4 * MIB)),
    )


def fixed() -> tuple[Run, Findings]:
    """`leaking` after `leakscope fix`."""
    found, findings = leaking()
    return replace(found, fix=fix(), folder="leakscope_runs/train"), findings


def clean() -> tuple[Run, Findings]:
    return run(rank(0, growth=0), rank(1, growth=0)), Findings(
        verdict="clean",
        why="Nothing grew at 4 looks over 12 steps, and a collection would free no tensor.",
        exit_status=0,
        ranks={0: summary(0, 0), 1: summary(1, 0)},
    )


def inconclusive() -> tuple[Run, Findings]:
    return run(rank(0, count=4, ended=Ended("finished", 0, 4))), Findings(
        verdict="inconclusive",
        why="Only 1 look was taken after warm-up; growth needs 3.",
        exit_status=0,
        unjudged=(Unjudged("step-growth", 0, "1 look after warm-up, growth needs 3"),),
        ranks={0: summary(0, 0)},
    )


def killed() -> tuple[Run, Findings]:
    """Rank 1 was killed; rank 0 raised because its peer was gone; rank 2 never wrote a word."""
    error = "RuntimeError: Connection closed by peer [127.0.0.1]:29500"
    stack = ("train.py:90 main", "train.py:61 forward_step")
    first = Ended("raised", 1, 5, error=error, stack=stack, log="logs/rank_0.log")
    second = Ended("killed", 137, 5, log="logs/rank_1.log")
    lost = Rank(2, (), (), Ended("lost", 1, 0), notes=("nothing was recorded for this rank",))
    cut_off = ("the last line of steps.jsonl was cut off when the rank died and was skipped",)
    return run(rank(0, 5, ended=first), rank(1, 5, ended=second, notes=cut_off), lost), Findings(
        verdict="inconclusive",
        why="Rank 1 was killed at step 5, before growth could be judged.",
        exit_status=137,
        ranks={0: RankSummary(), 1: RankSummary(explained_bytes=4 * MIB)},
    )


def failed_as(ended: Ended) -> tuple[Run, Findings]:
    """One rank that ended so."""
    return run(rank(0, ended.steps, ended=ended)), Findings(
        verdict="inconclusive", why="It ended early.", exit_status=ended.status
    )


def no_step() -> tuple[Run, Findings]:
    only = Rank(0, (), (heap_snapshot(0, 2 * MIB, 90 * MIB),), Ended("finished", 0, 0), notes=("no step was seen",))
    return run(only), Findings(
        verdict="inconclusive",
        why="No step was seen: no optimizer of torch stepped.",
        exit_status=0,
        ranks={0: RankSummary(explained_bytes=2 * MIB, counted_bytes=90 * MIB, categories={"parameter": 2 * MIB})},
        listed=(AliveAtEnd(0, {"parameter": 2 * MIB}),),
    )


def hostile(bad: str = HOSTILE) -> tuple[Run, Findings]:
    """Every string that a run can bring with it, written by someone who means harm."""
    hop = Hop(bad, bad, "instance", f"{bad}.py:3", "unknown", bad, bad + "\x1b[31m\u202e", 5)
    finding = Finding(
        rule="step-growth",
        facts=StaticText(title=bad, advice=bad),
        fingerprint="deadbeef",
        severity="leak",
        freed_by="program",
        retained_bytes=5 * MIB,
        bytes_per_step=1.5,
        trace=tuple(replace(hop, index=place, references=(10 + place,)) for place in range(3)),
        cut=Cut((CutReference(bad, f"{bad}.py:3", indexes=(12,), trace=2),), 5, None, bad),
        made_at=(bad,),
        sightings=(Sighting(0, 3, 5),),
        see=BackwardHint(bad, (bad,), bad),
        cycle=(CycleReference(bad, bad, "b", 0, 10, 1), CycleReference("b", bad, bad, 1, 12, 0)),
    )
    words: dict[str, Any] = dict.fromkeys(("issued_at", "group", "dtype", "direction", "tag"), bad + "\x1b\u202e")
    operations = tuple(replace(operation, **words) for operation in comm_operations(2, 2))
    only = Rank(
        0,
        steps(12, MIB, KIB),
        (heap_snapshot(3, MIB, MIB, (bad,)),),
        Ended("raised", 1, 12, error=bad + "\x00\x1b[2J", stack=(bad,), log=bad),
        notes=(bad,),
        operations=operations,
    )
    categories = {bad: MIB, "leaked": KIB}
    reported = Findings(
        verdict="leaks",
        why=bad,
        exit_status=1,
        findings=(finding,),
        suppressed=(finding,),
        unjudged=(Unjudged("allocator", 0, bad),),
        listed=(AliveAtEnd(0, {bad: MIB}),),
        ranks={0: RankSummary(categories=categories, categories_by_step=((3, categories), (5, categories)))},
    )
    changed = DIFF.replace("train.py", f"{bad}.py").replace("loss.item()", f"{bad}\x1b\u202e\udce9")
    proved = fix(changed, bad, bad)
    proved = replace(
        proved, leaks=(replace(proved.leaks[1], fingerprint="deadbeef"), replace(proved.leaks[0], why=bad))
    )
    proved = replace(proved, notes=(bad,), tries=(Try(bad, ("deadbeef",), bad, bad, 1.0),))
    sources = {f"{bad}.py": ("", "", bad)}
    return run(only, command=(bad,), device=bad, torch=bad, folder=bad, sources=sources, fix=proved), reported


ALL = {
    "leaking": leaking,
    "fixed": fixed,
    "clean": clean,
    "inconclusive": inconclusive,
    "killed": killed,
    "no_step": no_step,
    "hostile": hostile,
}
