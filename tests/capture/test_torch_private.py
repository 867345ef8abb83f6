"""Private names of torch are used in one module only, and the installed torch has all of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from leakscope.process import torch_compat
from leakscope.process.torch_compat import NEEDS, TABLE, Private, RecordingPart, lacking, lacks, sentences
from leakscope.verdict import Verdict

AT_MOST_MS = 20
"""Milliseconds that finding out may take here: it takes less than one on a machine with nothing else to do."""


def test_this_torch_has_all_of_it_and_the_check_changes_nothing() -> None:
    assert lacking() == sentences() == ()
    random, grad = torch.get_rng_state(), torch.is_grad_enabled()
    modes = torch_compat.modes_running()
    began = time.thread_time()
    missing = lacking.__wrapped__()
    spent = time.thread_time() - began
    assert missing == lacking()
    assert spent * 1000 < AT_MOST_MS
    assert torch.equal(random, torch.get_rng_state())
    assert (torch.is_grad_enabled(), torch_compat.modes_running()) == (grad, modes)


@pytest.fixture
def no_answers_kept() -> Iterator[None]:
    """`lacking` finds out anew, and again after the test."""
    lacking.cache_clear()
    yield
    lacking.cache_clear()


@pytest.mark.usefixtures("no_answers_kept")
@pytest.mark.parametrize("part", list(NEEDS))
def test_what_builds_on_a_part_goes_with_it(part: RecordingPart, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_compat, "TABLE", [Private("torch._nothing_there", NEEDS[part])])
    assert lacks(part)
    assert len(sentences()) == 1


@pytest.mark.usefixtures("no_answers_kept")
def test_a_name_that_does_something_else_is_lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    uses = next(private for private in TABLE if private.path.endswith("._use_count"))
    assert uses.is_there()
    assert not replace(uses, path="torch._C.TensorBase.numel").is_there()
    assert not replace(uses, path="torch.Tensor.no_such_method").is_there()


def test_what_a_torch_was_built_without_is_not_lacking() -> None:
    optional = Private("torch._C._no_such_module.Work", RecordingPart.COMM, optional=True)
    assert optional.is_there()
    assert not replace(optional, path="torch._C._no_such_function").is_there()


@pytest.mark.usefixtures("no_answers_kept")
def test_a_block_that_cannot_be_inspected_is_not_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_compat, "TABLE", [Private("torch._C._no_such_count", RecordingPart.SNAPSHOTS)])
    import leakscope  # at the top it would put the whole file among those that inspect their process

    with pytest.warns(UserWarning, match="not inspected"), leakscope.watch(fail=True) as block:
        kept = torch.ones(3)
    assert kept.sum() == 3
    assert block.findings.verdict == Verdict.INCONCLUSIVE
    with pytest.raises(leakscope.LeakscopeError, match="no_such_count"):
        leakscope.check(lambda: None)
