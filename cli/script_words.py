"""Which words of the command line are leakscope's, and which the script's?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import click
from leakscope_cli.first_mistakes import script_named

TYPED = "leakscope.typed"
"""Where click's context keeps the `Typed` of a command line."""
_MODULE = "-m"
_RANKS = ("-n", "--ranks")
_SHORTEST = 5
"""Letters from which on a word may be another one misspelled, with its dashes; chosen: `--lr` is near nothing."""


@dataclass(frozen=True)
class Typed:
    """The words of a command line, by whose they are."""

    ours: tuple[str, ...]
    target: tuple[str, ...]
    """The script, or `-m` and a module."""
    theirs: tuple[str, ...]


class RunCommand(click.Command):
    """Takes its own options before the script; `--ranks N` also right after it, and any of them before a `--`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put leakscope's words before the script's, so that click takes them apart."""
        start = self._script_at(args)
        if start < len(args):
            args = [*args[:start], *script_named(args[start:], args[:start])]
            has_module = args[start] == _MODULE
            if has_module and start + 1 == len(args):
                raise click.UsageError("-m needs the name of a module")
            first = start + 2 if has_module else start + 1  # `-m MODULE` or `SCRIPT`
            target = args[start:first]
            ours, theirs = self._split(args[first:])
            ctx.meta[TYPED] = Typed((*args[:start], *ours), tuple(target), tuple(theirs))
            module, script = (target, []) if has_module else ([], target)
            args = [*args[:start], *ours, *module, "--", *script, *theirs]
        return super().parse_args(ctx, args)

    def _script_at(self, args: Sequence[str]) -> int:
        """Index of the script or of `-m`."""
        index = 0
        while index < len(args):
            word = args[index]
            if word == _MODULE or not word.startswith("-") or word == "-":
                return index
            if word == "--":
                return len(args)
            index += 1 if "=" in word or not self._takes_value(word) else 2
        return index

    def _takes_value(self, word: str) -> bool:
        for parameter in self.params:
            if isinstance(parameter, click.Option) and word in parameter.opts:
                return not parameter.is_flag
        return False

    def _split(self, rest: list[str]) -> tuple[list[str], list[str]]:
        """Words after the script that are leakscope's, and those that are the script's."""
        if "--" in rest:
            dashes = rest.index("--")
            if self._all_options(rest[:dashes]):
                return rest[:dashes], rest[dashes + 1 :]
        if rest and rest[0] in _RANKS:
            return rest[:2], rest[2:]
        if rest and rest[0].startswith(f"{_RANKS[-1]}="):
            return rest[:1], rest[1:]
        return [], rest

    def _all_options(self, words: Sequence[str]) -> bool:
        known = {name for option in self.params if isinstance(option, click.Option) for name in option.opts}
        index = 0
        while index < len(words):
            if words[index].partition("=")[0] not in known:
                return False
            index += 1 if "=" in words[index] or not self._takes_value(words[index]) else 2
        return True

    def meant_for_us(self, typed: Typed) -> tuple[list[str], list[str]]:
        """Options of leakscope's, spelled right or nearly so, among the words after the script; and the other words."""
        known = [name for option in self.params if isinstance(option, click.Option) for name in option.opts]
        ours, others, rest = list[str](), list[str](), list(typed.theirs)
        while rest:
            word = rest.pop(0)
            name, has_value, value = word.partition("=")
            near = get_close_matches(name.replace("_", "-"), known, 1, cutoff=0.8) if name.startswith("--") else []
            own = name if name in known else near[0] if near and len(name) > _SHORTEST else ""
            if not own:
                others.append(word)
                continue
            ours.append(f"{own}{has_value}{value}")
            if not has_value and self._takes_value(own) and rest:
                ours.append(rest.pop(0))
        return ours, others
