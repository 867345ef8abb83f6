"""The findings of recorded runs as plain fields: `python -m golden_runs.judged` in tests/ records them anew.

Each archive is one run as `leakscope run` wrote it, with the script it ran in the `sources` of its run.json.
"""

from __future__ import annotations

import json
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from leakscope.findings.holders import live_memory, paths_to
from leakscope.findings.judge import judge
from leakscope.findings.model import Findings, by_kind
from leakscope.run.model import Ended, Rank, Run
from leakscope.run.reader import read_run
from leakscope.run.rows import EndKind, Occasion

HERE = Path(__file__).parent
EXPECTED = HERE / "expected.json"
NAMES = sorted(path.name.removesuffix(".tar.xz") for path in HERE.glob("*.tar.xz"))
SENTENCES = {("BackwardHint", "does"), ("BackwardHint", "lines")}
"""Fields that are text for a reader."""
INDEXES = {
    ("CutReference", "indexes"), ("CutReference", "key"), ("Hop", "index"), ("Hop", "references"),
    ("Finding", "storages"), ("Finding", "cut_in"), ("CycleReference", "holder_index"), ("CycleReference", "index"),
    ("CycleReference", "held_index"),
}  # fmt: skip
"""Fields that have a meaning beside the heap alone."""


def _until(run: Run, last: int) -> Run:
    """The run as if it had been killed after a step."""

    def cut_short(rank: Rank) -> Rank:
        steps = tuple(step for step in rank.steps if step.number <= last)
        snapshots = tuple(snapshot for snapshot in rank.heap_snapshots if snapshot.step <= last)
        return replace(rank, steps=steps, heap_snapshots=snapshots, ended=Ended(EndKind.KILLED, -9, last))

    return _of_ranks(run, cut_short)


def _of_ranks(run: Run, change: Callable[[Rank], Rank]) -> Run:
    return replace(run, ranks=tuple(map(change, run.ranks)))


def _uncounted(rank: Rank) -> Rank:
    return replace(
        rank, steps=tuple(replace(step, counted_bytes=None) for step in rank.steps),
        heap_snapshots=tuple(replace(snapshot, counted_bytes=None) for snapshot in rank.heap_snapshots),
    )  # fmt: skip


def _flat(rank: Rank) -> Rank:
    """What was counted rose to the middle of the run and no more, whatever the heap says."""
    middle = len(rank.steps) // 2
    most = [step.counted_bytes for step in rank.steps[: middle + 1]]
    return replace(rank, steps=tuple(
        step if n <= middle else replace(step, counted_bytes=most[-1]) for n, step in enumerate(rank.steps)
    ))  # fmt: skip


def _far_apart(rank: Rank) -> Rank:
    """Nineteen steps that nobody saw before each."""
    steps = tuple(replace(step, number=20 * step.number) for step in rank.steps)
    return replace(
        rank,
        steps=steps,
        heap_snapshots=tuple(replace(snapshot, step=20 * snapshot.step) for snapshot in rank.heap_snapshots),
    )


def _with_occasion(rank: Rank, occasion: Occasion, last: int = 0) -> Rank:
    """Its looks at steps, or the last of them, as if another occasion had brought them about."""
    judged = [snapshot for snapshot in rank.heap_snapshots if snapshot.occasion == Occasion.STEP][-last:]
    changed = tuple(
        replace(snapshot, occasion=occasion) if any(snapshot is one for one in judged) else snapshot
        for snapshot in rank.heap_snapshots
    )
    return replace(rank, heap_snapshots=changed)


VARIANTS: dict[str, Callable[[Run], Run]] = {
    "killed after step 5": lambda run: _until(run, 5),
    "killed after step 7": lambda run: _until(run, 7),
    "every second look": lambda run: _of_ranks(
        run, lambda rank: replace(rank, heap_snapshots=rank.heap_snapshots[::2])
    ),
    "the last look alone": lambda run: _of_ranks(
        run, lambda rank: replace(rank, heap_snapshots=rank.heap_snapshots[-1:])
    ),
    "nothing counted": lambda run: _of_ranks(run, _uncounted),
    "counted bytes that come to rest": lambda run: _of_ranks(run, _flat),
    "steps far apart": lambda run: _of_ranks(run, _far_apart),
    "looks for a peer": lambda run: _of_ranks(run, lambda rank: _with_occasion(rank, Occasion.PEER)),
    "the last look at the end": lambda run: _of_ranks(run, lambda rank: _with_occasion(rank, Occasion.END, 1)),
    "no threshold": lambda run: replace(run, min_bytes=0),
    "a high threshold": lambda run: replace(run, min_bytes=1 << 28),
    "a short horizon": lambda run: replace(run, horizon=20),
    "no warm-up": lambda run: replace(run, warmup=0),
    "no source": lambda run: replace(run, sources={}),
    "a second rank": lambda run: replace(
        run, expected_ranks=len(run.ranks) + 1, ranks=(*run.ranks, replace(run.ranks[0], number=len(run.ranks)))
    ),
    "a rank that is missing": lambda run: replace(run, expected_ranks=len(run.ranks) + 1),
}
"""The same run with something left out or another policy: other branches of the judging."""
VARIED = [
    "add_module_per_stage", "caller_frame_holds_batch_retention", "cls_token_bank", "deque_of_losses",
    "dist_autograd_contexts_left_open", "failed_batches_keep_exceptions", "fresh_model_each_trial", "history_of_floats",
    "hooks_registered_each_step", "identity_saved_tensor_hooks", "isend_handles_kept", "metric_list_state",
    "pipeline_1f1b", "pp_stage_backward_closure", "profiler_of_jvp", "report_strings", "sent_view_pseudo_free",
    "small_total_loss", "sparse_adjacency_cache", "spawned_children_leak", "tensor_hook_closes_over_tensor",
    "uneven_ranks",
]  # fmt: skip
"""One of each mechanism."""


def whole(run: Run) -> Any:
    """The fields of the findings, with the growth of the run by category."""
    findings = judge(run)
    return plain(findings) | {"growth": growth(findings)}


def varied(run: Run) -> Any:
    """An outline of what is found in each variant."""
    return {"variants": {variant: outline(judge(change(run))) for variant, change in VARIANTS.items()}}


def held(run: Run) -> Any:
    """What holds the memory of the last heap, and the paths to its largest tensor."""
    graph = max(run.ranks[0].heap_snapshots, key=lambda snapshot: snapshot.step).heap
    tensors = [r.holder for s in graph.storages.tolist() for r in map(graph.reference, graph.into(s).tolist())]
    if not tensors:
        return {}
    largest = max(tensors, key=lambda tensor: graph.bytes[graph.held[graph.out_of(tensor)]].max())
    return {"holders": plain(live_memory(graph, 8)), "paths": plain(paths_to(graph, largest, 5))}


PARTS = {whole: NAMES, varied: VARIED, held: VARIED}
"""What is recorded of which runs, the quickest first."""


def judged(name: str) -> Any:
    """All that is recorded of one run."""
    run = recorded(name)
    return {key: value for part, names in PARTS.items() if name in names for key, value in part(run).items()}


def growth(found: Findings) -> dict[str, int]:
    """Bytes of growth by category."""
    lines = [line for intervals in found.ledgers.values() for interval in intervals for line in interval.lines]
    return {str(kind): size for kind, size in by_kind(lines).items() if size}


def outline(found: Findings) -> Any:
    """What is found, in short: the verdict with its reason, and of each finding what it is and what to cut."""
    return {
        "verdict": found.verdict,
        "why": plain(found.why),
        "growth": growth(found),
        "unjudged": plain(found.unjudged),
        "findings": [
            " | ".join(map(str, (
                one.rule, one.severity, one.freed_by, one.fingerprint, one.subject, one.retained_bytes, one.count,
                round(one.bytes_per_step, 1), one.ranks, type(one.settled_by).__name__,
                one.cut and [cut.written for cut in one.cut.references], one.cut and one.cut.frees_bytes,
            )))
            for one in found.findings
        ],
    }  # fmt: skip


def recorded(name: str) -> Run:
    """A run out of its archive."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(HERE / f"{name}.tar.xz") as archive:
            archive.extractall(folder, filter="data")
        return read_run(Path(folder), snapshots=True)


def plain(value: Any) -> Any:
    """JSON of a value: of a dataclass the fields that differ from their defaults."""
    if is_dataclass(value) and not isinstance(value, type):
        return dict(_fields(value))
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(plain(item) for item in value)
    if isinstance(value, float):
        return round(value, 6)
    return str(value) if isinstance(value, str) else value


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    kind = type(value).__name__
    if not isinstance(value, Findings):
        yield "is", kind
    for field in fields(value):
        item = getattr(value, field.name)
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        if item != default and item is not None and (kind, field.name) not in SENTENCES | INDEXES:
            yield field.name, plain(item)


DEPTH = 4
"""Of what is written on lines of its own: run, findings, finding, field."""


def differences(expected: Any, found: Any, where: str = "") -> Iterator[str]:
    """Each field that differs, by its path."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in sorted({*expected, *found}):
            yield from differences(expected.get(key), found.get(key), f"{where}.{key}" if where else key)
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for place, pair in enumerate(zip(expected, found, strict=True)):
            yield from differences(*pair, f"{where}[{place}]")
    elif expected != found:
        yield f"{where}: {expected!r} -> {found!r}"


@cache
def expected() -> dict[str, Any]:
    """What was recorded of each run."""
    recorded: dict[str, Any] = json.loads(EXPECTED.read_text(encoding="utf-8"))
    return recorded


def written(value: Any, depth: int = 0) -> str:
    """JSON with a line for each field of a finding, and for each object of its trace."""
    if depth == DEPTH or not value or not isinstance(value, (dict, list)):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        items = [f"{json.dumps(key)}: {written(item, depth + 1)}" for key, item in value.items()]
    else:
        items = [written(item, depth + 1) for item in value]
    begin, end = "{}" if isinstance(value, dict) else "[]"
    return f"{begin}\n" + ",\n".join(" " * (depth + 1) + item for item in items) + f"\n{' ' * depth}{end}"


def main() -> None:
    """Record the fields of every run; with --check, end with 1 at the first run that differs."""
    if "--check" not in sys.argv:
        text = written({name: judged(name) for name in NAMES})
        EXPECTED.write_text(text + "\n", encoding="utf-8")
        return
    for part, names in PARTS.items():
        for name in names:
            found = part(recorded(name))
            different = list(differences({key: expected()[name][key] for key in found}, found))
            if different:
                sys.exit(f"{name}: {different[0]}")


if __name__ == "__main__":
    main()
