"""`draw` shows referrers as objgraph does, adds autograd references and leaves the process unchanged."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest
import torch

import leakscope
from leakscope.errors import LeakscopeError


class Recording:
    """Records every access."""

    asked: list[str]

    def __init__(self) -> None:
        object.__setattr__(self, "asked", [])

    def __repr__(self) -> str:
        self.asked.append("repr")
        return "told"

    def __getattribute__(self, name: str) -> object:
        object.__getattribute__(self, "asked").append(name)
        return object.__getattribute__(self, name)


def test_what_only_autograd_knows_is_drawn_in_its_colour() -> None:
    x = torch.ones(10, requires_grad=True)
    kept = [x.exp()]
    dot = str(leakscope.draw(kept[0]))
    assert '[label="[0]"]' in dot
    assert '[label="saved result",color="#b03060"' in dot
    assert '[label="local kept"]' in dot
    assert "ExpBackward0" in dot


def test_no_code_of_the_objects_runs_and_nothing_is_collected() -> None:
    recording = Recording()
    kept = [recording]
    seen: list[str] = []
    gc.collect()
    gc.disable()
    gc.callbacks.append(lambda phase, _info: seen.append(phase))
    try:
        dot = str(leakscope.draw(recording))
    finally:
        gc.callbacks.pop()
        gc.enable()
    assert object.__getattribute__(recording, "asked") == []
    assert not seen
    assert "Recording object" in dot
    assert kept
    assert "objgraph" not in sys.modules or sys.modules["objgraph"].gc is gc


@pytest.mark.process
def test_it_is_drawn_by_dot(tmp_path: Path) -> None:
    box = [torch.ones(3)]
    picture = leakscope.draw(box[0], tmp_path / "box.svg")
    assert (tmp_path / "box.svg").read_text().count("<g ") > 3
    svg = picture._repr_svg_()
    assert svg is not None
    assert svg.startswith("<svg")
    assert repr(picture) == f"Picture of {picture.objects} objects"
    with pytest.raises(LeakscopeError, match="unknown image format"):
        picture.draw(tmp_path / "box.xyz")
    paths = leakscope.holders(box[0])
    assert paths.draw(tmp_path / "ways.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in paths._repr_html_()


@pytest.mark.process  # looking for `dot` starts one
def test_without_dot_one_sentence_says_so_and_the_text_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    box = [torch.ones(3)]
    picture = leakscope.draw(box[0])
    assert picture._repr_svg_() is None
    assert repr(picture).startswith("Install Graphviz")
    assert "digraph" in repr(picture)
    assert picture.draw(tmp_path / "box.dot").read_text() == str(picture)
    with pytest.raises(LeakscopeError, match="install graphviz"):
        picture.draw(tmp_path / "box.svg")
    assert "<svg" not in leakscope.holders(box[0])._repr_html_()
