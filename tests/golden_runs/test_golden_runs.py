"""The findings of recorded runs are as recorded, field by field; `make goldens` records them anew."""

from __future__ import annotations

import json

import numpy as np
import pytest

from golden_runs.judged import NAMES, differences, expected, judged, recorded
from leakscope.findings.facts import RuleName
from leakscope.findings.grouping import judged_snapshots
from leakscope.findings.judge import judge
from leakscope.graph.retained import freed_by_walk, freed_with_gc
from leakscope.graph.serialize import from_json, is_same, to_json


@pytest.mark.parametrize("name", NAMES)
def test_the_fields_of_a_recorded_run(name: str) -> None:
    assert list(differences(expected()[name], judged(name))) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_cut_frees_what_a_walk_over_the_heap_says(name: str) -> None:
    run = recorded(name)
    for finding in judge(run).leaks:
        if finding.cut is None or finding.noun != "tensor" or finding.counted_bytes or len(finding.ranks) > 1:
            continue
        if finding.rule == RuleName.DIST_AUTOGRAD_CONTEXT:
            continue  # what leaving a context frees is held by native code as well
        (rank,) = (rank for rank in run.ranks if rank.number in finding.ranks)
        graph = judged_snapshots(rank, run.warmup_of(rank))[-1].heap
        cut = np.asarray(sorted(index for _, index in finding.cut_in), dtype=np.int64)
        freed = freed_with_gc(graph, cut) if finding.cut.after_gc else freed_by_walk(graph, cut)
        storages = list(finding.storages[rank.number])
        assert int(graph.bytes[storages][freed[storages]].sum()) == finding.cut.frees_bytes


@pytest.mark.parametrize("name", NAMES[::8])
def test_a_heap_is_read_as_it_was_written(name: str) -> None:
    for snapshot in (snapshot for rank in recorded(name).ranks for snapshot in rank.heap_snapshots):
        assert is_same(from_json(json.loads(json.dumps(to_json(snapshot.heap)))), snapshot.heap)
