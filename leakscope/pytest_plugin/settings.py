"""The options of the plugin, the arguments of its markers, and the leaks that fail no test."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields, replace
from datetime import date
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import pytest

from leakscope.options import Option
from leakscope.originals import Path

if TYPE_CHECKING:
    from leakscope.findings.model import Finding
    from leakscope.run.suppression import Suppression

LEAKS_MARKER = "no_tensor_leaks"
PEAK_MARKER = "limit_tensor_peak"

Ignored: TypeAlias = "str | Callable[[Finding], bool]"
"""A pattern as of `leakscope run --suppress`, or a predicate over findings."""


class PredicateRaised(Exception):
    """A predicate given as `ignore=` raised; the message is one sentence."""


@dataclass(frozen=True)
class Settings:
    """The settings of a session, or of one test. Those with an `Option` are options and keys of the ini file."""

    everywhere: Annotated[
        bool, Option("Fail every test that leaves tensor memory unreachable and unfreed.", ("--leakscope",))
    ] = False
    allowance: Annotated[
        int,
        Option("Bytes a test may leave behind under --leakscope, like 4096 or 1 MB [default: 64 KiB].", metavar="SIZE"),
    ] = 64 * 1024
    """Heuristic: fixtures and frameworks leave less than that behind. Also the growth allowed over all repeats."""
    fixtures: Annotated[bool, Option("Also judge the setup and teardown of fixtures.")] = False
    ignore: Annotated[
        tuple[Ignored, ...],
        Option("Ignore leaks that match a fingerprint, library, rule, reference or place; repeatable.", (), "PATTERN"),
    ] = ()
    strict: Annotated[bool, Option("Also fail on leaks in libraries and on errors inside leakscope.")] = False
    fail_on_inconclusive: Annotated[bool, Option("Fail the session if no test could be judged.")] = False
    baseline: Annotated[
        Path | None, Option("Ignore leaks listed in this findings.json; written if it does not exist.", (), "FILE")
    ] = None
    baseline_update: Annotated[bool, Option("Rewrite the file of --leakscope-baseline.")] = False
    report: Annotated[
        Path | None, Option("Write findings.json, and a page for each leak, into this folder.", (), "DIR")
    ] = None

    fix: Annotated[
        bool,
        Option("Search edits that make failing tests pass, prove them by running these, and write patches."),
    ] = False

    repeats: int | None = None
    """Judged calls after the first, 3 or more; None to judge the first call only."""
    warmups: int = 0
    """Calls between the first and those."""


OPTIONS = {field.name: field.type.__metadata__[0] for field in fields(Settings) if hasattr(field.type, "__metadata__")}
_LINES: Literal["linelist"] = "linelist"
_TEXT: Literal["string"] = "string"
_SESSION = pytest.StashKey[Settings]()


def _flag(name: str) -> str:
    flags: tuple[str, ...] = OPTIONS[name].flags
    return flags[0] if flags else f"--leakscope-{name.replace('_', '-')}"


def _key(name: str) -> str:
    """The key of the ini file, which is also pytest's name of the option."""
    return _flag(name).removeprefix("--").replace("-", "_")


def add_options(parser: pytest.Parser) -> None:
    """Declare each option, on the command line and in the ini file."""
    group = parser.getgroup("leakscope", "tensor memory leaks")
    for name, option in OPTIONS.items():
        default = getattr(Settings, name)
        if isinstance(default, bool):
            group.addoption(_flag(name), action="store_true", default=None, help=option.help)
            parser.addini(_key(name), option.help, type="bool", default=False)
        else:
            several = isinstance(default, tuple)
            action, kind = ("append", _LINES) if several else ("store", _TEXT)
            group.addoption(_flag(name), action=action, default=None, metavar=option.metavar, help=option.help)
            parser.addini(_key(name), option.help, type=kind, default=None)


def read_settings(config: pytest.Config) -> Settings:
    """Read the settings of the session and keep them with it.

    Raises:
        pytest.UsageError: A value is invalid.

    """
    settings = Settings(**{name: _read(config, name) for name in OPTIONS})
    if settings.baseline_update and settings.baseline is None:
        raise pytest.UsageError(f"{_flag('baseline_update')} needs {_flag('baseline')} FILE")
    if settings.fix and getattr(config.option, "numprocesses", None):
        raise pytest.UsageError(f"{_flag('fix')} runs tests again one after the other; use it without -n")
    config.stash[_SESSION] = settings
    return settings


def _read(config: pytest.Config, name: str) -> Any:
    """The value on the command line, else in the ini file, else the default; patterns of both add up."""
    default, typed, written = getattr(Settings, name), config.getoption(_key(name)), config.getini(_key(name))
    try:
        if name == "ignore":
            for source, patterns in ((_key(name), written), (_flag(name), typed)):
                _suppressions(tuple(patterns or ()), source)
            return (*(written or ()), *(typed or ()))
        if isinstance(default, bool):
            return bool(written if typed is None else typed)
        if name == "allowance":
            from leakscope.units import parse_bytes

            return parse_bytes(typed or written or default)
    except ValueError as error:
        raise pytest.UsageError(str(error) if name == "ignore" else f"{_flag(name)}: {error}") from None
    if typed:
        return Path(config.invocation_params.dir, typed)
    return Path(config.inipath.parent if config.inipath else config.rootpath, written) if written else None


def settings_of(config: pytest.Config) -> Settings:
    """The settings of the session."""
    return config.stash[_SESSION]


def settings_of_test(item: pytest.Item) -> Settings | None:
    """The settings of this test; None if it is not judged.

    Raises:
        TypeError, ValueError: The arguments of its marker are invalid.

    """
    session, marker = settings_of(item.config), item.get_closest_marker(LEAKS_MARKER)
    if marker is not None:
        return _with_marker(session, *marker.args, **marker.kwargs)
    return session if session.everywhere else None


def _with_marker(
    session: Settings,
    allowance: str | int = 0,
    repeats: int | None = None,
    warmups: int = 0,
    ignore: "Ignored | Collection[Ignored]" = (),
    strict: bool | None = None,
) -> Settings:
    from leakscope.profiler.repeats import require_repeats
    from leakscope.units import parse_bytes

    if repeats is not None:
        require_repeats(repeats)
    if not isinstance(warmups, int) or warmups < 0:
        raise ValueError(f"warmups={warmups!r} must be a number >= 0")
    if warmups and repeats is None:
        raise ValueError("warmups requires repeats")
    patterns: tuple[Any, ...] = tuple(ignore) if isinstance(ignore, (list, tuple, set, frozenset)) else (ignore,)
    for pattern in patterns:
        if not (isinstance(pattern, str) or callable(pattern)):
            raise TypeError(f"ignore={pattern!r} is neither a pattern nor a function of a finding")
    _suppressions(tuple(pattern for pattern in patterns if isinstance(pattern, str)))
    if strict is not None and not isinstance(strict, bool):
        raise TypeError(f"strict={strict!r} must be True or False")
    return replace(
        session,
        allowance=parse_bytes(allowance),
        repeats=repeats,
        warmups=warmups,
        ignore=(*session.ignore, *patterns),
        strict=session.strict if strict is None else strict,
    )


def peak_limit_of(item: pytest.Item) -> int | None:
    """Bytes by which tensor memory may rise in this test; None without a limit.

    Raises:
        TypeError, ValueError: The arguments of its marker are invalid.

    """
    marker = item.get_closest_marker(PEAK_MARKER)
    return None if marker is None else _limit(*marker.args, **marker.kwargs)


def _limit(size: str | int) -> int:
    from leakscope.units import parse_bytes

    return parse_bytes(size)


def ignored_by(finding: "Finding", ignore: Sequence[Ignored]) -> str:
    """The pattern or function in `ignore` that matches a finding, as text; "" without a match.

    Raises:
        PredicateRaised: A function raised.

    """
    from leakscope.findings.suppressions import Known, suppression_of

    today = date.today().isoformat()
    patterns = _suppressions(tuple(one for one in ignore if isinstance(one, str)))
    named = suppression_of(finding, Known(tuple(one for one in patterns if not one.has_expired(today))))
    if named is not None:
        return named.pattern
    for function in ignore:
        if not isinstance(function, str) and _matches(function, finding):
            return f"{_name(function)}()"
    return ""


@lru_cache(maxsize=64)
def _suppressions(patterns: tuple[str, ...], source: str = "ignore") -> "tuple[Suppression, ...]":
    """Parse patterns as in a file of suppressions. Raises ValueError with one sentence."""
    if not patterns:
        return ()
    from leakscope.errors import LeakscopeError
    from leakscope.run.suppression import suppressions_in

    try:
        return suppressions_in("\n".join(patterns), source)
    except LeakscopeError as error:
        raise ValueError(str(error)) from None


def _matches(function: "Callable[[Finding], bool]", finding: "Finding") -> bool:
    try:
        return bool(function(finding))
    except Exception as error:  # noqa: BLE001 - whatever the user's own function raises
        raised = f"ignore={_name(function)} raised {type(error).__name__}"
        raise PredicateRaised(f"{raised} for {finding.rule} [{finding.fingerprint}]: {error}") from None


def _name(function: object) -> str:
    return str(getattr(function, "__qualname__", type(function).__name__))
