"""Which words of the command line are leakscope's, and which the script's?"""

from __future__ import annotations

from collections.abc import Sequence

import click

_MODULE = "-m"
_RANKS = ("-n", "--ranks")


class RunCommand(click.Command):
    """Takes its own options before the script; `--ranks N` also right after it, and any of them before a `--`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put leakscope's words before the script's, so that click takes them apart."""
        start = self._script_at(args)
        if start < len(args):
            has_module = args[start] == _MODULE
            if has_module and start + 1 == len(args):
                raise click.UsageError("-m needs the name of a module")
            first = start + 2 if has_module else start + 1  # `-m MODULE` or `SCRIPT`
            target = args[start:first]
            ours, theirs = self._split(args[first:])
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
