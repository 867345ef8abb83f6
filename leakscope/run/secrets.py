"""Masks secrets in command lines."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from leakscope.originals import json

MASK = "****"
"""Stands for what is hidden."""
_WHOLE_LENGTH, _ANYWHERE_LENGTH = 4, 8
"""Characters from which a hidden value is hidden in other texts: where it is a whole word, and anywhere. Heuristic:
with half of it, values such as `me` and `abc` would be cut out of paths and names.
"""

_SECRET = r"password|passwd|passphrase|secret|credentials?|authorization|bearer|(?:api|access|secret|private)[-_.]?key"
"""Ends of names whose value is a secret, whatever it is."""
_MAYBE = r"token|pwd|key"
"""Ends of names whose value is one where it looks like one: `--pad-token <pad>` and `--image-key camera` are none."""
_KEYS_OF = r"(?:wandb|hf|openai|hub|comet|neptune|aws|azure|encryption|license)[-_.]key"
"""Names ending in `key` whose value is a secret, whatever it is."""
_SECRET_NAME = rf"(?i)(?:(?:^|[-_.])(?:{_SECRET}|{_KEYS_OF})|password)\Z"
_MAYBE_NAME = rf"(?i)(?:^|[-_.])({_MAYBE})\Z"
_NAMED = r"(?s)([-+~]*[A-Za-z_][\w.\-]*)=(.*)"
_OPTION = r"--?[A-Za-z_][\w.\-]*"
_HUMP = r"(?<=[a-z0-9])(?=[A-Z])"
"""Within `apiKey`."""

# not compiled here: every rank would wait for it, and few have anything to hide
_INSIDE = rf"""(?ix) (
    (?<![a-z0-9]) (?:{_SECRET}|(?:auth|access|api|hf|hub|id|refresh|github)[-_]?token)
    ["']?\s?[:=]\s?["']? (?:bearer\s|basic\s)?
    | [?&](?:token|key)=
) ([^\s"'&,;}}\]]+)"""
"""A secret with its name inside of a longer word: JSON, a header, a query."""
_SHAPES = r"""(?x)(?<![A-Za-z0-9_]) (?:
    hf_[A-Za-z0-9]{20,} | sk-(?=[\w\-]{0,200}\d)[\w\-]{16,} | (?:AKIA|ASIA)[0-9A-Z]{16}
    | gh[pousr]_[A-Za-z0-9]{20,} | github_pat_\w{20,} | glpat-[\w\-]{16,} | xox[abeoprs]-[\w\-]{10,}
    | AIza[\w\-]{35} | eyJ[\w\-]{10,4000}\.eyJ[\w\-]{10,4000}\.[\w\-]*
    | -----BEGIN[ ][A-Z ]*PRIVATE[ ]KEY-----[\s\S]*
)"""
"""Keys of Hugging Face, OpenAI and alike, AWS, GitHub, GitLab, Slack and Google, JSON web tokens, PEM files."""
_ADDRESS = r"([A-Za-z][A-Za-z0-9+.\-]{0,20}://[^\s/@:]*:)([^\s/@]+)@"

_concealed: dict[str, re.Pattern[str]] = {}
"""Value to what finds it, of what is hidden in all that this process writes."""


def masked(words: Sequence[str]) -> tuple[str, ...]:
    """The words of a command line as a run may show them, as many as there are."""
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
    """Hide what a command line hides in everything else that this process writes into a run, by `json_of`."""
    for word, shown in zip(words, masked(words), strict=True):
        _concealed.update((value, _pattern(value)) for value in _hidden(word, shown))


def json_of(data: Any) -> bytes:
    """The text of a file of JSON, or of one line, without the values that `conceal` knows.

    Args:
        data: of plain types, as `json.dumps` takes them. Keys stay, and members of an enumeration: they are leakscope's
            own, and a run could not be read without them.

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
    """A message without what is hidden of the words of a command line, nor the values that `conceal` knows."""
    values = {value for word, shown in zip(words, masked(words), strict=True) for value in _hidden(word, shown)}
    patterns = _concealed | {value: _pattern(value) for value in values}
    for value in sorted(patterns, key=len, reverse=True):
        text = patterns[value].sub(MASK, text)
    return text


def _pattern(value: str) -> re.Pattern[str]:
    text = re.escape(value)
    return re.compile(text if len(value) >= _ANYWHERE_LENGTH else rf"(?<!\w){text}(?!\w)")


def _hidden(word: str, shown: str) -> list[str]:
    """What the masks of a word stand for."""
    if word == shown:
        return []
    found = re.fullmatch("(.+?)".join(map(re.escape, shown.split(MASK))), word, re.DOTALL)
    return [] if found is None else [value for value in found.groups() if len(value) >= _WHOLE_LENGTH]


def _is_secret(name: str, value: str) -> bool:
    """Whether that is the value of an option or variable, and one to hide."""
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
