"""The transformers callback finds what a training retains, and the Trainer logs it."""

from __future__ import annotations

import gc
import logging
import weakref
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("peft")
from integrations.small_llama import AddsAdapters, lora, train

from leakscope.integrations.transformers import LeakCallback
from leakscope.report.finding_text import advice

pytestmark = pytest.mark.integrations


def steps_of(reported: Any) -> int:
    [findings] = reported
    return len(findings.run.ranks[0].steps)


def findings_of(callback: LeakCallback) -> Any:
    assert callback.findings is not None
    return callback.findings


@pytest.mark.parametrize("what", ["loss", "past_key_values"])
def test_what_a_trainer_keeps_is_found_and_named_from_the_trainer(tmp_path: Path, what: str) -> None:
    callback = LeakCallback(budget=1.0, min_bytes="1 KiB")
    train(tmp_path, what, callback)
    assert findings_of(callback).verdict == "leaks", str(findings_of(callback))
    cuts = [finding.cut.written for finding in findings_of(callback).findings if finding.severity == "leak"]
    assert cuts == ["trainer.kept"], str(findings_of(callback))


def test_adapters_never_deleted_are_told_with_how_to_delete_them(tmp_path: Path) -> None:
    callback = LeakCallback(budget=1.0, min_bytes="1 KiB")
    train(tmp_path, "", callback, AddsAdapters(), wrap=lora, eval_strategy="steps", eval_steps=1)
    [finding] = [finding for finding in findings_of(callback).findings if finding.severity == "leak"]
    assert finding.cut.written.startswith("trainer.model.") and "lora_" in finding.cut.written
    assert "delete_adapter" in advice(finding)


def test_a_training_that_keeps_nothing_is_clean_and_its_trainer_is_let_go(tmp_path: Path) -> None:
    callback = LeakCallback(budget=1.0)
    trainer = train(tmp_path, "", callback, gradient_accumulation_steps=2)
    assert findings_of(callback).verdict == "clean", str(findings_of(callback))
    # a step of the optimizer is one, whatever the batches whose gradients it takes
    assert len(findings_of(callback).run.ranks[0].steps) == trainer.state.global_step == 12
    gone = weakref.ref(trainer), weakref.ref(trainer.model)
    del trainer
    gc.collect()
    assert [ref() for ref in gone] == [None, None]


def test_a_training_that_raises_is_told_when_the_next_begins(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    callback = LeakCallback(budget=1.0)
    with pytest.raises(ZeroDivisionError):
        train(tmp_path, "raises", callback)
    assert callback.findings is None
    with caplog.at_level(logging.INFO, "leakscope"):
        train(tmp_path, "", callback)
    assert [steps_of(record.args) for record in caplog.records] == [9, 12]


def test_an_error_of_ours_is_a_warning_and_the_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    callback = LeakCallback(tmp_path / "file" / "run")
    assert train(tmp_path, "", callback).state.global_step == 12
    assert callback.findings is None
    assert [record.levelname for record in caplog.records if record.name == "leakscope"] == ["WARNING"]
    assert "not recorded" in caplog.text


def test_wrong_options_are_said_before_a_training_starts() -> None:
    with pytest.raises(ValueError, match="lots"):
        LeakCallback(min_bytes="lots")
