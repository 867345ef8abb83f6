"""The Lightning callback names the missing package, and ranks are read from the environment."""

from __future__ import annotations

import importlib
import sys

import pytest

from leakscope.profiler.loop import rank_and_world


def test_without_lightning_its_callback_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "leakscope.integrations.lightning", raising=False)
    with pytest.raises(ImportError, match="pip install lightning"):
        importlib.import_module("leakscope.integrations.lightning")


@pytest.mark.parametrize(
    ("variables", "rank"), [({}, (0, 1)), ({"RANK": "1", "WORLD_SIZE": "2"}, (1, 2)), ({"WORLD_SIZE": "2"}, (0, 2))]
)
def test_a_rank_is_what_a_launcher_said(
    variables: dict[str, str], rank: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert rank_and_world() == rank
