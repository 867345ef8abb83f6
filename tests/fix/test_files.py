"""The user's files are read with their encoding and line ends, and a patch of them is one that git applies."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from leakscope.errors import LeakscopeError
from leakscope.fix.files import SourceFiles
from leakscope.run.model import Run

FORMS = {
    "plain": ("a = 1\nb = 2\nc = 3\n", "utf-8"),
    "no_newline_at_end": ("a = 1\nb = 2\nc = 3", "utf-8"),
    "crlf": ("a = 1\r\nb = 2\r\nc = 3\r\n", "utf-8"),
    "tabs": ("if a:\n\tb = 2\n\tc = 3\n", "utf-8"),
    "umlaut": ("# ü\na = 'ä'\nb = 2\n", "utf-8"),
    "latin": ("# -*- coding: latin-1 -*-\na = 'ä'\nb = 2\n", "latin-1"),
    "bom": ("a = 1\nb = 2\n", "utf-8-sig"),
    "empty_lines": ("\n\na = 1\n\n\nb = 2\n\n", "utf-8"),
}


def run_of(folder: Path, files: dict[str, bytes], lines: dict[str, list[str]]) -> Run:
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return Run((), (), 1, "cpu", "2", "1", sources={name: tuple(each) for name, each in lines.items()})


def files_of(folder: Path, text: str, encoding: str) -> SourceFiles:
    lines = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
    return SourceFiles.of(run_of(folder, {"train.py": text.encode(encoding)}, {"train.py": lines}), folder)


@pytest.mark.process
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("change", [("b = 2", "b = 2  # ok\nd = 4"), ("b = 2", ""), ("a", "A")])
def test_git_applies_a_patch_to_the_same_bytes(tmp_path: Path, form: str, change: tuple[str, str]) -> None:
    files = files_of(tmp_path, *FORMS[form])
    after = {"train.py": files.texts["train.py"].replace(*change)}
    (tmp_path / "fix.patch").write_bytes(files.patch(after))
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    # a run of git's own would use the configuration of whoever runs the tests
    subprocess.run(["git", "-c", "core.autocrlf=false", "apply", "fix.patch"], cwd=tmp_path, check=True)
    assert (tmp_path / "train.py").read_bytes() == files.files["train.py"].encoded(after["train.py"])


def test_a_file_keeps_its_bytes_where_nothing_changes(tmp_path: Path) -> None:
    for text, encoding in FORMS.values():
        file = files_of(tmp_path, text, encoding).files["train.py"]
        assert file.encoded(file.text) == text.encode(encoding)


def test_what_cannot_be_edited_has_a_reason(tmp_path: Path) -> None:
    files = {"changed.py": b"a = 2\n", "mixed.py": b"a = 1\nb = 2\r\n", "binary.py": b"# \xff\n"}
    lines = {name: ["a = 1"] for name in (*files, "gone.py", "In[3]")}
    found = SourceFiles.of(run_of(tmp_path, files, lines), tmp_path)
    assert not found.files
    assert found.problems.keys() == lines.keys()


@pytest.mark.process
def test_uncommitted_changes_are_not_overwritten(tmp_path: Path) -> None:
    files = files_of(tmp_path, "a = 1\n", "utf-8")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@localhost"]
    subprocess.run([*git, "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run([*git, "add", "."], cwd=tmp_path, check=True)
    with pytest.raises(LeakscopeError):
        files.apply({"train.py": "a = 2\n"})
    assert (tmp_path / "train.py").read_text() == "a = 1\n"
    subprocess.run([*git, "commit", "-q", "-m", "first"], cwd=tmp_path, check=True)
    files.apply({"train.py": "a = 2\n"})
    assert (tmp_path / "train.py").read_text() == "a = 2\n"
    with pytest.raises(LeakscopeError):  # it is not as it was proved
        files.apply({"train.py": "a = 3\n"})
