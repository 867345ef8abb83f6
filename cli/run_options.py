"""The options of `leakscope run`, as `leakscope.options` has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from leakscope_cli.shared import Share, Size

from leakscope.errors import LeakscopeError
from leakscope.option import Option, When
from leakscope.options import OFFERED, TYPES, Options, flags_of

_TYPE_OF_UNIT: Mapping[str, click.ParamType[Any]] = {"bytes": Size(), "share": Share()}
_TYPES: Mapping[Any, Any] = {Path: click.Path(path_type=Path), When: click.Choice([str(when) for when in When])}


def offered_options() -> list[click.Parameter]:
    """All that a run can be told, for click; what is not typed comes as None, for Options to fill."""
    return [_as_click(name, option) for name, option in OFFERED.items()]


def _as_click(name: str, option: Option) -> click.Option:
    kind = TYPES[name][0]
    repeated = kind == tuple[str, ...]
    return click.Option(
        [name, *flags_of(name)],
        type=None if kind is bool or repeated else _TYPE_OF_UNIT.get(option.unit, _TYPES.get(kind, kind)),
        is_flag=kind is bool,
        multiple=repeated,
        default=None,
        metavar=option.metavar,
        help=option.help,
    )


def options_of(words: Sequence[str], typed: Mapping[str, Any]) -> Options:
    """What was typed: the script's or module's own words, and leakscope's options; None where one was not typed.

    Raises LeakscopeError where no script is named, or where the options make no sense.
    """
    if not typed["module"] and not any(words[:1]):
        raise LeakscopeError("no script was given; write `leakscope run train.py`, or `leakscope run -m package.train`")
    target = {} if typed["module"] else {"script": words[0]}
    arguments = list(words) if typed["module"] else list(words[1:])
    given = {name: value for name, value in typed.items() if value is not None}
    try:
        return Options.of({**given, **target, "arguments": arguments})
    except ValueError as error:
        raise LeakscopeError(str(error)) from None
