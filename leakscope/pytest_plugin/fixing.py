"""`--leakscope-fix`: edits that make failing tests pass, each proved by running these tests with edited copies."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from leakscope.originals import Path, os, tempfile

if TYPE_CHECKING:
    from leakscope.findings.model import Finding
    from leakscope.fix.files import SourceFiles
    from leakscope.fix.model import Candidate

OVERLAY = "LEAKSCOPE_OVERLAY"
"""Environment variable with the folder of the copies, for the pytest that proves an edit."""
_TRIES = 12
"""Maximum edits of one leak. Heuristic: each costs a start of pytest and the tests."""
_LIMIT_S = 300.0
"""Seconds that the tests of one leak may take. Heuristic."""
_FLAG = "--leakscope-fix"


@dataclass
class LeakToFix:
    """One leak and the tests that fail because of it."""

    finding: Finding
    tests: list[str] = field(default_factory=list)


TO_FIX = pytest.StashKey[dict[str, LeakToFix]]()
"""Leaks of failing tests, by fingerprint."""


def note_leak(item: pytest.Item, finding: Finding) -> None:
    """Record a leak that fails a test."""
    leaks = item.config.stash.setdefault(TO_FIX, {})
    leak = leaks.setdefault(finding.fingerprint, LeakToFix(finding))
    if item.nodeid not in leak.tests:
        leak.tests.append(item.nodeid)


def fix_leaks(config: pytest.Config, into: Path) -> Iterator[str]:
    """Search an edit for each leak, write the proved ones as patches, and yield a line on each.

    Args:
        config: The configuration of the session.
        into: The folder of the patches.

    """
    leaks = config.stash.get(TO_FIX, {})
    if not leaks:
        return
    from leakscope.findings.source.index import Sources
    from leakscope.findings.source.lines import with_lines
    from leakscope.fix.candidates import candidates
    from leakscope.fix.files import SourceFiles
    from leakscope.process.user_code import paths_of_sources, users_sources
    from leakscope.run.model import Run

    kept = users_sources()
    run = Run((), (), 1, "cpu", "", "", sources=kept, source_paths=paths_of_sources())
    files = SourceFiles.of(run, Path.cwd())
    sources = Sources({name: text.removesuffix("\n").split("\n") for name, text in files.texts.items()})
    for fingerprint, leak in leaks.items():
        found = with_lines(leak.finding, sources)
        yield f"[{fingerprint}] {_fixed(config, leak, candidates(found, sources)[:_TRIES], files, into)}"


def _fixed(config: pytest.Config, leak: LeakToFix, tries: Sequence[Candidate], files: SourceFiles, into: Path) -> str:
    """The result for one leak."""
    from leakscope.fix.model import applied

    if not tries:
        return "no edit is known for it"
    if _pass(config, leak.tests, {}, files):
        return "its tests pass the second time; nothing can be proved"
    for candidate in tries:
        texts = applied([candidate], files.texts)
        if _pass(config, leak.tests, texts, files):
            into.mkdir(parents=True, exist_ok=True)
            patch = into / f"{leak.finding.fingerprint}.patch"
            patch.write_bytes(files.patch(texts))
            return f"verified: {candidate.title}; apply it with `git apply {os.path.relpath(patch)}`"
    return f"{len(tries)} edits were tried, and the tests fail with each"


def _pass(config: pytest.Config, tests: Sequence[str], texts: dict[str, str], files: SourceFiles) -> bool:
    """Whether tests pass in a pytest of their own with copies of some files."""
    from leakscope.overlay import write_overlay

    with tempfile.TemporaryDirectory() as folder:
        write_overlay(folder, files.write_copies(texts, Path(folder)))
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *_options(config), *tests]
        try:
            done = subprocess.run(
                command, cwd=config.rootpath, env={**os.environ, OVERLAY: folder, "PYTHONDONTWRITEBYTECODE": "1"},
                stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return False
    return done.returncode == 0


def _options(config: pytest.Config) -> list[str]:
    """The options of this session, without its files and what would end or repeat it."""
    words = [word for word in config.invocation_params.args if word not in config.args and word != _FLAG]
    return [str(word) for word in words]


def use_copies() -> None:
    """Import edited copies in this process, if it was started to prove an edit; also of test modules.

    pytest reads these itself to rewrite their assertions (_pytest/assertion/rewrite.py, _rewrite_test).
    """
    folder = os.environ.get(OVERLAY)
    if not folder:
        return
    from leakscope.overlay import copies_in, install_overlay

    copies = copies_in(folder)
    if not copies or not install_overlay(folder):
        return
    import ast

    from _pytest.assertion import rewrite

    rewrites, reads = rewrite._rewrite_test, rewrite._read_pyc

    def rewrite_copy(file: Any, config: Any) -> Any:
        copy = copies.get(os.path.realpath(file))
        if copy is None:
            return rewrites(file, config)
        source = Path(copy).read_bytes()
        tree = ast.parse(source, filename=str(file))
        rewrite.rewrite_asserts(tree, source, str(file), config)
        return os.stat(file), compile(tree, str(file), "exec", dont_inherit=True)

    def read_pyc(source: Any, *others: Any, **named: Any) -> Any:
        return None if os.path.realpath(source) in copies else reads(source, *others, **named)

    vars(rewrite).update(_rewrite_test=rewrite_copy, _read_pyc=read_pyc)
