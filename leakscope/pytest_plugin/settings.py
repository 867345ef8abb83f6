"""The options of the plugin and its marker, and the leaks that fail no test."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from leakscope.originals import Path, json

if TYPE_CHECKING:
    from leakscope.findings.model import Finding
    from leakscope.pytest_plugin.judging import Group
    from leakscope.run.suppression import Suppression


Ignored: TypeAlias = "str | Callable[[Finding], bool]"
"""A pattern as of `leakscope run --suppress`, or a function of a finding."""

SHOWN_BY = 3
"""Tests that a baseline names for each leak, chosen: they tell whether it was looked for again."""


class PredicateRaised(Exception):
    """A function that was to say what is ignored could not; the message is one sentence."""


@dataclass(frozen=True)
class BaselineLeak:
    """A leak that was there before."""

    fingerprint: str
    title: str
    """For people who read the file."""
    tests: int
    """Tests that showed it."""
    shown_by: tuple[str, ...]
    """The first of them."""


@dataclass(frozen=True)
class Baseline:
    """What a file says is known."""

    leaks: tuple[BaselineLeak, ...] = ()

    @property
    def fingerprints(self) -> frozenset[str]:
        """Those that fail no test."""
        return frozenset(leak.fingerprint for leak in self.leaks)


def patterns_in(lines: Iterable[str], source: str) -> tuple[Suppression, ...]:
    """`PATTERN [until 2027-01-31] [# reason]`, one a line, as in a file of suppressions.

    Raises ValueError with one sentence where a line cannot be taken.
    """
    text = "\n".join(lines)
    if not text:
        return ()
    from leakscope.errors import LeakscopeError
    from leakscope.run.suppression import suppressions_in

    try:
        return suppressions_in(text, source)
    except LeakscopeError as error:
        raise ValueError(str(error)) from None


def ignored_by(finding: Finding, ignore: Sequence[Ignored]) -> str:
    """What of `ignore` names this finding, as a person would write it; "" where nothing does.

    Raises PredicateRaised.
    """
    from leakscope.findings.suppressions import Known, suppression_of

    today = date.today().isoformat()
    patterns = _parsed(tuple(one for one in ignore if isinstance(one, str)))
    named = suppression_of(finding, Known(tuple(one for one in patterns if not one.has_expired(today))))
    if named is not None:
        return named.pattern
    for function in ignore:
        if not isinstance(function, str) and _says(function, finding):
            return f"{getattr(function, '__qualname__', type(function).__name__)}()"
    return ""


@lru_cache(maxsize=64)
def _parsed(patterns: tuple[str, ...]) -> tuple[Suppression, ...]:
    return patterns_in(patterns, "ignore")


def _says(function: Callable[[Finding], bool], finding: Finding) -> bool:
    try:
        return bool(function(finding))
    except Exception as error:  # noqa: BLE001 - whatever the user's own function raises
        name = getattr(function, "__qualname__", type(function).__name__)
        raise PredicateRaised(
            f"ignore={name} raised {type(error).__name__} for {finding.rule} [{finding.fingerprint}]: {error}; "
            "let it return True for a leak that may stay, and False for any other"
        ) from None


def read_baseline(path: Path) -> Baseline | None:
    """What a baseline file says; None where there is no such file. A `findings.json` is one, too.

    Raises ValueError with one sentence where it is something else.
    """
    if not path.exists():
        return None
    try:
        data = json.loads(path.read_bytes())
        return Baseline(tuple(_leak_of(leak) for leak in data["findings"] if leak.get("severity", "leak") == "leak"))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        raise ValueError(
            f"{path} is no baseline: give a file that --leakscope-baseline wrote, or one that is not there yet"
        ) from None


def _leak_of(data: Any) -> BaselineLeak:
    shown_by = tuple(data.get("shown_by", ()))
    if not all(isinstance(text, str) for text in (data["fingerprint"], *shown_by)):
        raise TypeError
    return BaselineLeak(data["fingerprint"], str(data.get("title", "")), int(data.get("tests", 0)), shown_by)


def baseline_text(baseline: Baseline) -> str:
    """The file: sorted, so that a change of it reads as what has changed."""
    leaks = [
        {
            "fingerprint": leak.fingerprint,
            "severity": "leak",
            "title": leak.title,
            "tests": leak.tests,
            "shown_by": list(leak.shown_by),
        }
        for leak in sorted(baseline.leaks, key=lambda leak: leak.fingerprint)
    ]
    return json.dumps({"format": 2, "findings": leaks}, indent=2) + "\n"


def baseline_after(before: Baseline | None, groups: Sequence[Group], ran: frozenset[str]) -> Baseline:
    """The baseline after a session: the leaks of its tests, and those of which no test that showed them ran."""
    now = [
        BaselineLeak(group.fingerprint, group.title, len(group.tests), group.tests[:SHOWN_BY])
        for group in groups
        if group.counts
    ]
    found = {leak.fingerprint for leak in now}
    kept = [] if before is None else [leak for leak in before.leaks if not ran.intersection(leak.shown_by)]
    return Baseline((*now, *(leak for leak in kept if leak.fingerprint not in found)))


def fixed(baseline: Baseline, groups: Sequence[Group], ran: frozenset[str]) -> tuple[BaselineLeak, ...]:
    """Leaks of the baseline that no test showed, though one that had shown them ran."""
    found = {group.fingerprint for group in groups}
    return tuple(leak for leak in baseline.leaks if leak.fingerprint not in found and ran.intersection(leak.shown_by))


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
