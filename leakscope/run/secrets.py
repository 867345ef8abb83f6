"""Masks secrets in command lines."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from leakscope.originals import json

MASK = "****"
"""Replaces a hidden value."""
_WHOLE_LENGTH, _ANYWHERE_LENGTH = 4, 8
"""Minimum characters of a hidden value to hide it in other texts: as a whole word, and anywhere. Heuristic: with half
of it, values such as `me` and `abc` would be cut out of paths and names.
"""

_SECRET = r"password|passwd|passphrase|secret|credentials?|authorization|bearer|(?:api|access|secret|private)[-_.]?key"
"""Suffixes of names whose value is always secret."""
_MAYBE = r"token|pwd|key"
"""Suffixes of names whose value is secret if it looks like one: `--pad-token <pad>` and `--image-key
camera` are not.
"""
_KEYS_OF = r"(?:wandb|hf|openai|hub|comet|neptune|aws|azure|encryption|license)[-_.]key"
"""Names ending in `key` whose value is always secret."""
_SECRET_NAME = rf"(?i)(?:(?:^|[-_.])(?:{_SECRET}|{_KEYS_OF})|password)\Z"
_MAYBE_NAME = rf"(?i)(?:^|[-_.])({_MAYBE})\Z"
_NAMED = r"(?s)([-+~]*[A-Za-z_][\w.\-]*)=(.*)"
_OPTION = r"--?[A-Za-z_][\w.\-]*"
_HUMP = r"(?<=[a-z0-9])(?=[A-Z])"
"""The boundary in `apiKey`."""

# not compiled here: every rank would wait for it, and few have anything to hide
_INSIDE = rf"""(?ix) (
    (?<![a-z0-9]) (?:{_SECRET}|(?:auth|access|api|hf|hub|id|refresh|github)[-_]?token)
    ["']?\s?[:=]\s?["']? (?:bearer\s|basic\s)?
    | [?&](?:token|key)=
) ([^\s"'&,;}}\]]+)"""
"""A named secret inside a longer word: JSON, a header, a query."""
_SHAPES = r"""(?x)(?<![A-Za-z0-9_]) (?:
    hf_[A-Za-z0-9]{20,} | sk-(?=[\w\-]{0,200}\d)[\w\-]{16,} | (?:AKIA|ASIA)[0-9A-Z]{16}
    | gh[pousr]_[A-Za-z0-9]{20,} | github_pat_\w{20,} | glpat-[\w\-]{16,} | xox[abeoprs]-[\w\-]{10,}
    | AIza[\w\-]{35} | eyJ[\w\-]{10,4000}\.eyJ[\w\-]{10,4000}\.[\w\-]*
    | -----BEGIN[ ][A-Z ]*PRIVATE[ ]KEY-----[\s\S]*
)"""
"""Keys of Hugging Face, OpenAI and alike, AWS, GitHub, GitLab, Slack and Google, JSON web tokens, PEM files."""
_ADDRESS = r"([A-Za-z][A-Za-z0-9+.\-]{0,20}://[^\s/@:]*:)([^\s/@]+)@"

_concealed: dict[str, re.Pattern[str]] = {}
"""Hidden value, mapped to its pattern, for everything that this process writes."""


def masked(words: Sequence[str]) -> tuple[str, ...]:
    """The words of a command line with secrets masked; their number is unchanged."""
    shown = []
    name = ""
    for word in words:
        if name and _is_secret(name, word):
            shown.append(MASK)
        else:
            shown.append(_without_secrets(word))
        name = word if re.fullmatch(_OPTION, word) else ""
    return tuple(shown)


def conceal(words: Sequence[str]) -> None:
    """Hide the secrets of a command line in everything else that this process writes by `json_of`."""
    for word, shown in zip(words, masked(words), strict=True):
        _concealed.update((value, _pattern(value)) for value in _hidden(word, shown))


def json_of(data: Any) -> bytes:
    """Serialise to JSON without the values hidden by `conceal`.

    Args:
        data: Plain types, as for `json.dumps`. Keys and enumeration members stay: they are leakscope's own, and a
            run could not be read without them.

    """
    text = json.dumps(data)
    if any(json.dumps(value)[1:-1] in text for value in _concealed):  # a heap has millions of numbers
        text = json.dumps(_without(data))
    return text.encode()


def _without(data: Any) -> Any:
    if type(data) is str:
        return without(data)
    if isinstance(data, Mapping):
        return {key: _without(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_without(value) for value in data]
    return data


def without(text: str, words: Sequence[str] = ()) -> str:
    """A message without the secrets of a command line and the values hidden by `conceal`."""
    values = {value for word, shown in zip(words, masked(words), strict=True) for value in _hidden(word, shown)}
    patterns = _concealed | {value: _pattern(value) for value in values}
    for value in sorted(patterns, key=len, reverse=True):
        text = patterns[value].sub(MASK, text)
    return text


def _pattern(value: str) -> re.Pattern[str]:
    text = re.escape(value)
    return re.compile(text if len(value) >= _ANYWHERE_LENGTH else rf"(?<!\w){text}(?!\w)")


def _hidden(word: str, shown: str) -> list[str]:
    """The values behind the masks of a word."""
    if word == shown:
        return []
    found = re.fullmatch("(.+?)".join(map(re.escape, shown.split(MASK))), word, re.DOTALL)
    return [] if found is None else [value for value in found.groups() if len(value) >= _WHOLE_LENGTH]


def _is_secret(name: str, value: str) -> bool:
    """Whether this is the value of a secret option or variable."""
    if not value or re.fullmatch(_OPTION, value):
        return False
    name = re.sub(_HUMP, "_", name.lstrip("-+~"))
    if re.search(_SECRET_NAME, name):
        return True
    maybe = re.search(_MAYBE_NAME, name)
    if maybe is None or value.lower() in ("true", "false", "none", "null") or re.fullmatch(r"[-+\d.e]+", value):
        return False
    if maybe[1].lower() == "key":  # of a dictionary, most of the time
        return bool(re.fullmatch(r"(?=.*\d)(?=.*[A-Za-z])[A-Za-z0-9+=]{16,}", value))
    if maybe[1].lower() == "pwd":  # the working directory, at times
        return not value.startswith(("/", ".", "~"))
    return bool(re.fullmatch(r"[\w\-.~+/=:]+", value))


def _without_secrets(word: str) -> str:
    named = re.fullmatch(_NAMED, word)
    if named is not None and _is_secret(named[1], named[2]):
        return f"{named[1]}={MASK}"
    word = re.sub(_SHAPES, MASK, word)
    word = re.sub(_ADDRESS, rf"\1{MASK}@", word)
    return re.sub(_INSIDE, rf"\1{MASK}", word)
