"""Settings from the command line, the ini file and markers."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from leakscope.originals import Path
from leakscope.pytest_plugin.known import patterns_in

if TYPE_CHECKING:
    from leakscope.findings.model import Finding

MARKER = "no_tensor_leaks"
ALLOWANCE = "64 KiB"
"""What a test may leave behind under `--leakscope`: less than that is a fixture's or a framework's small change."""

_FLAGS = {
    "": "judge every test: it fails when it leaves tensor memory unreachable and unfreed",
    "fixtures": "judge what the set-up and the tear-down of each test's fixtures leave, too",
    "strict": "leaks that a library closes, and errors inside leakscope, fail a test",
    "fail-on-inconclusive": "the session fails where no test could be judged",
    "baseline-update": "write the file of --leakscope-baseline anew",
}
_VALUES = {
    "allowance": ("SIZE", f"what each test may leave behind under --leakscope, like 4096 or 1 MB ({ALLOWANCE})"),
    "baseline": ("FILE", "leaks listed in FILE fail no test; written where it is not there"),
    "report": ("DIR", "write the findings of the whole session into DIR"),
}
_LISTS = {
    "ignore": ("PATTERN", "a fingerprint, library, rule, holder or place, with *, that fails no test (again and again)")
}


@dataclass(frozen=True)
class Settings:
    """What is asked of a session, or of one test."""

    everywhere: bool = False
    """Every test is judged, with a marker or without."""
    allowance: int = 0
    """Bytes that a test may leave behind, and that its repeats may grow by in all."""
    repeats: int | None = None
    """Calls after the first whose growth is judged, three or more; None where growth is not asked for."""
    warmups: int = 0
    """Calls between the first and those."""
    fixtures: bool = False
    """What fixtures leave is judged, too."""
    strict: bool = False
    """Leaks that a library closes fail a test, too."""
    fail_on_inconclusive: bool = False
    """A session that has judged no test fails."""
    ignore: tuple[str | Callable[[Finding], bool], ...] = ()
    """What fails no test."""
    baseline: Path | None = None
    """File with the leaks that are known."""
    update_baseline: bool = False
    """Write that file anew."""
    report: Path | None = None
    """Folder for the findings of the session."""


_SESSION = pytest.StashKey[Settings]()


def add_options(parser: pytest.Parser) -> None:
    """Each option, and the key of the ini file that says the same."""
    group = parser.getgroup("leakscope", "tensor memory leaks")
    for name, told in _FLAGS.items():
        group.addoption(_option(name), action="store_true", default=None, help=told)
        parser.addini(_key(name), told, type="bool", default=False)
    for name, (metavar, told) in _VALUES.items():
        group.addoption(_option(name), default=None, metavar=metavar, help=told)
        parser.addini(_key(name), told, type="string", default="")
    for name, (metavar, told) in _LISTS.items():
        group.addoption(_option(name), action="append", default=None, metavar=metavar, help=told)
        parser.addini(_key(name), told, type="linelist", default=[])


def _option(name: str) -> str:
    return f"--leakscope-{name}" if name else "--leakscope"


def _key(name: str) -> str:
    return _option(name).removeprefix("--").replace("-", "_")


def _given(config: pytest.Config, name: str) -> Any:
    """What the command line says, else the ini file."""
    said = config.getoption(_key(name))
    return config.getini(_key(name)) if said is None else said


def read_settings(config: pytest.Config) -> Settings:
    """The session's settings, kept with it. Raises pytest.UsageError with one sentence on a wrong value."""
    from leakscope.units import parse_bytes

    try:
        allowance = parse_bytes(_given(config, "allowance") or ALLOWANCE)
    except ValueError as error:
        raise pytest.UsageError(f"{_option('allowance')}: {error}") from None
    try:
        written = tuple(config.getini(_key("ignore")))
        said = tuple(config.getoption(_key("ignore")) or ())
        patterns_in(written, _key("ignore"))
        patterns_in(said, _option("ignore"))
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    baseline, report = (_path(config, name) for name in ("baseline", "report"))
    update = bool(_given(config, "baseline-update"))
    if update and baseline is None:
        raise pytest.UsageError(f"{_option('baseline-update')} needs {_option('baseline')} FILE")
    settings = Settings(
        everywhere=bool(_given(config, "")),
        allowance=allowance,
        fixtures=bool(_given(config, "fixtures")),
        strict=bool(_given(config, "strict")),
        fail_on_inconclusive=bool(_given(config, "fail-on-inconclusive")),
        ignore=(*written, *said),
        baseline=baseline,
        update_baseline=update,
        report=report,
    )
    config.stash[_SESSION] = settings
    return settings


def _path(config: pytest.Config, name: str) -> Path | None:
    """A path as on the command line, or from the ini file's folder."""
    if said := config.getoption(_key(name)):
        return Path(config.invocation_params.dir, said)
    written = config.getini(_key(name))
    return Path(config.inipath.parent if config.inipath else config.rootpath, written) if written else None


def settings_of(config: pytest.Config) -> Settings:
    """The session's settings."""
    return config.stash[_SESSION]


def settings_of_test(item: pytest.Item) -> Settings | None:
    """What is asked of this test; None where nothing is.

    Raises TypeError or ValueError where its marker is wrong.
    """
    session, marker = settings_of(item.config), item.get_closest_marker(MARKER)
    if marker is not None:
        return _marked(session, *marker.args, **marker.kwargs)
    return session if session.everywhere else None


def _marked(
    session: Settings,
    allowance: str | int = 0,
    repeats: int | None = None,
    warmups: int = 0,
    ignore: str | Callable[[Finding], bool] | Collection[str | Callable[[Finding], bool]] = (),
    strict: bool | None = None,
) -> Settings:
    """The session's settings, with what a marker says of one test."""
    from leakscope.profiler.repeats import require_repeats
    from leakscope.units import parse_bytes

    if repeats is not None:
        require_repeats(repeats)
    if not isinstance(warmups, int) or warmups < 0:
        raise ValueError(f"warmups={warmups!r} is no count of calls")
    if warmups and repeats is None:
        raise ValueError("warmups are calls before repeats; give repeats, too")
    patterns = tuple(ignore) if isinstance(ignore, (list, tuple, set, frozenset)) else (ignore,)
    for pattern in patterns:
        if not (isinstance(pattern, str) or callable(pattern)):
            raise TypeError(f"ignore takes patterns and functions of a finding; {pattern!r} is neither")
    patterns_in((pattern for pattern in patterns if isinstance(pattern, str)), "ignore")
    if strict is not None and not isinstance(strict, bool):
        raise TypeError(f"strict={strict!r} is neither True nor False")
    return replace(
        session,
        allowance=parse_bytes(allowance),
        repeats=repeats,
        warmups=warmups,
        ignore=(*session.ignore, *patterns),
        strict=session.strict if strict is None else strict,
    )
