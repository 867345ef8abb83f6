"""The words of a command line: options for click, the script's own arguments, corrections of near misses."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

import click
from leakscope_cli.console import note

from leakscope.errors import LeakscopeError
from leakscope.options import OFFERED, TYPES, When, flags_of
from leakscope.units import parse_bytes, parse_share

_PYTHON = re.compile(r"(python|pypy)w?(\d+(\.\d+)*)?t?(\.exe)?")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*")
_MODULES = {"torchrun": "torch.distributed.run", "accelerate launch": "accelerate.commands.launch"}
"""Launchers to the modules that they run: leakscope follows the ranks that those start."""
_NO_PYTHON = {"deepspeed": ["--no_python"]}
"""Launchers that start Python scripts only, and their option for starting a program instead."""
_LAUNCHERS = (*_NO_PYTHON, "mpirun", "mpiexec", "srun", "horovodrun", "jsrun", "prun")
_WRAPPERS = ("uv", "poetry", "pipenv", "conda", "pixi", "hatch", "rye", "sudo", "env", "nohup", "numactl", "xvfb-run")
"""Programs that are often put before python; for other words, the shell's search path decides."""
_SHELLS = ("bash", "sh", "zsh", "dash", "fish", "ksh")
_PROGRAM = re.compile(rb"\x7fELF|\xcf\xfa\xed\xfe|\xca\xfe\xba\xbe|MZ|#!(?!.*python)")
"""Start of a program that is not a Python script: a binary of Linux, macOS or Windows, or a shell script."""
_SYNONYMS = {
    "--ranks N": ("nproc-per-node", "nproc", "np", "nprocs", "world-size", "num-ranks", "n-ranks", "num-processes"),
    "--output DIR": ("out", "out-dir", "outdir", "output-dir", "dir", "folder", "save-dir", "log-dir"),
    "--steps N": ("num-steps", "n-steps", "max-steps", "iterations", "iters", "max-iters", "limit"),
    "--min-bytes SIZE": ("threshold", "min-size", "minimum", "min", "min-growth"),
    "--step-function NAME": ("step-fn", "step-func", "function", "train-step", "step-name"),
    "--leak-exit-code N": ("exit-code", "exit-status", "fail-on-leak", "fail-on-leaks", "fail", "error-exitcode"),
    "--as FORMAT=FILE": ("format", "report", "to", "output-format"),
    "--force": ("overwrite", "yes", "y", "exist-ok"),
    "--quiet": ("silent", "no-progress"),
    "--suppress FILE": ("suppressions", "ignore", "known"),
    "-m MODULE": ("module",),
}
"""Options of other tools with the same meaning as ours."""


def script_words(words: Sequence[str], ours: Sequence[str]) -> list[str]:
    """The words of a script, or of `-m` and a module, without a Python interpreter; torchrun as its module.

    `ours` are the preceding options of leakscope.

    Raises:
        click.UsageError: They begin with another program; the message says what to type instead.

    """
    first, rest = words[0], list(words[1:])
    for launcher, module in _MODULES.items():
        typed = launcher.split()
        if [_name(first), *rest[: len(typed) - 1]] == typed and not os.path.isfile(f"{first}.py"):
            return ["-m", module, *rest[len(typed) - 1 :]]
    if _name(first) in _LAUNCHERS and not first.endswith(".py"):
        raise click.UsageError(_launcher_text(_name(first), rest, ours, words))
    if _is_interpreter(first):
        return _without_interpreter(words, ours)
    if _ASSIGNMENT.fullmatch(first) and not os.path.exists(first):
        raise click.UsageError(f"variables go before leakscope; {command_hint(_with_leakscope(words, ours))}")
    if first != "-m" and not os.path.exists(first) and _is_program(first):
        within = _with_leakscope(words, ours)
        instead = command_hint(within) if within else f"name the script it starts: {command_hint(_run(ours))}"
        raise click.UsageError(f"{first} is a program, not a Python script; {instead}")
    return list(words)


def _is_program(word: str) -> bool:
    return word in _WRAPPERS or ("." not in word and shutil.which(word) is not None)


def _name(word: str) -> str:
    return os.path.basename(word)


def _is_interpreter(word: str) -> bool:
    """Whether a word is `python`, `python3.11` or a path to one, and no script or folder of that name."""
    if not _PYTHON.fullmatch(_name(word)) or os.path.isdir(word):
        return False
    try:
        with open(word, "rb") as stream:
            return _PROGRAM.match(stream.readline(200)) is not None
    except OSError:  # no such file: expanded as the shell would
        return True


def _without_interpreter(words: Sequence[str], ours: Sequence[str]) -> list[str]:
    flags, rest = list[str](), list(words[1:])
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c", "-"):
        flags += [rest.pop(0) for _ in range(2 if rest[0] in ("-W", "-X") and len(rest) > 1 else 1)]
    if not rest:
        raise click.UsageError(f"no script was given; {command_hint(_run(ours))}")
    if rest[0] in ("-c", "-"):
        raise click.UsageError(f"only files can be recorded; save the code to a file and {command_hint(_run(ours))}")
    if flags:
        command = [words[0], *flags, "-m", "leakscope", "run", *ours, *rest]
        raise click.UsageError(f"Python options go before leakscope; {command_hint(command)}")
    if os.sep in words[0] and os.path.dirname(os.path.abspath(words[0])) != os.path.dirname(sys.executable):
        note(f"the script runs under {sys.executable}; for another: {words[0]} -m leakscope run")
    return script_words(rest, ours)


def _run(ours: Sequence[str], script: Sequence[str] = ("train.py",)) -> list[str]:
    """The words of `leakscope run`."""
    return ["leakscope", "run", *ours, *script]


def command_hint(command: Sequence[str]) -> str:
    """What to type, as the end of an error."""
    return f"run `{shlex.join(command)}`"


def _scripts_place(words: Sequence[str]) -> int | None:
    """Index of the first interpreter or script among the words; None without one."""
    return next((n for n, word in enumerate(words) if _is_interpreter(word) or word.endswith(".py")), None)


def _with_leakscope(words: Sequence[str], ours: Sequence[str]) -> list[str]:
    """The command with leakscope inserted before the script; [] if it runs no visible script, or runs it in a shell."""
    place = _scripts_place(words)
    if place is None or _name(words[0]) in _SHELLS:
        return []
    script = words[place:]
    with suppress(click.UsageError):
        script = script_words(script, ours)
    return [*words[:place], *_run(ours, script)]


def _launcher_text(name: str, rest: list[str], ours: Sequence[str], words: Sequence[str]) -> str:
    """The error for `leakscope run mpirun ...` and the like: what to type instead."""
    place = _scripts_place(rest)
    shared = () if {"-o", "--output"} & {*ours} else ("-o", "FOLDER")
    if place is None:
        start = ["leakscope", "run", *ours, *shared, "train.py"]
        return f"{name} starts the ranks; give it `{shlex.join(start)}` instead of the script"
    script = rest[place:]
    with suppress(click.UsageError):
        script = script_words(script, ours)
    before = [*words[: len(words) - len(rest)], *rest[:place], *_NO_PYTHON.get(name, ())]
    command = [*before, "leakscope", "run", *ours, *shared, *script]
    return f"{name} starts the ranks, so leakscope goes after it; {command_hint(command)}"


def unknown_command_text(words: Sequence[str], commands: Sequence[str]) -> str:
    """The error for `leakscope train.py` or `leakscope raport`: what to type instead."""
    name = words[0]
    runs = os.path.exists(name) or name.endswith((".py", ".ipynb", ".sh")) or _is_interpreter(name)
    if runs or _name(name) in (*_LAUNCHERS, "torchrun", "accelerate") or _ASSIGNMENT.fullmatch(name):
        if (Path(name) / "run.json").is_file():
            return f"{name} is the folder of a run; {command_hint(['leakscope', 'report', *words])}"
        return f"{name} is not a command of leakscope; {command_hint(['leakscope', 'run', *words])}"
    near = get_close_matches(name, commands, 1)
    if near:
        return f"no such command: {name}; {command_hint(['leakscope', near[0], *words[1:]])}"
    return f"no such command: {name}; commands are {', '.join(commands)}"


def unknown_option_text(error: click.NoSuchOption, groups: click.Group) -> str:
    """The error for `run --html`, `run --min_bytes` or `report --steps 3`: what to type instead."""
    context = error.ctx
    name = error.option_name
    message = f"{context.command_path if context else 'leakscope'} has no option {name}"
    if context is None or isinstance(context.command, click.Group):
        known = ", ".join(f"`leakscope {command}`" for command, _ in _commands_with(groups, name))
        if name == "-m":
            return f"{message}; run `leakscope run -m MODULE`"
        return f"{message}; it is an option of {known}" if known else f"{message}; see `leakscope --help`"
    return f"{message}; {next(_suggestions(name, context.command, groups))}"


def usage_error_text(error: click.UsageError) -> str:
    """Click's message; with the usage if an argument is missing or unexpected."""
    message = re.sub(r"is not a valid integer( range)?", "is not an integer", error.format_message()).rstrip(".")
    if error.ctx is None or not ("issing argument" in message or "unexpected extra" in message):
        return message
    pieces = error.ctx.command.collect_usage_pieces(error.ctx)
    return f"{message}; usage: {' '.join((error.ctx.command_path, *pieces))}"


def _suggestions(name: str, command: click.Command, groups: click.Group) -> Iterator[str]:
    """What to type instead of an option that a command does not have, best first."""
    own = _option_names(command)
    bare = name.lstrip("-").replace("_", "-").lower()
    if f"--{bare}" in own:
        yield f"use --{bare}"
    if format_of := _as_format(bare, own):
        is_page = bare == "html" and command.name == "run"
        yield f"use {format_of}{'; the folder of the run contains report.html in any case' if is_page else ''}"
    for option, meanings in _SYNONYMS.items():
        if bare in meanings and option.split()[0] in own:
            yield f"use {option}"
    if near := get_close_matches(f"--{bare}", own, 1, cutoff=0.75):
        yield f"did you mean {near[0]}?"
    if name in ("-v", "--verbose"):
        yield "`leakscope report --verbose` shows all details of a run"
    if others := [f"`leakscope {other}`" for other, _ in _commands_with(groups, name)]:
        yield f"it is an option of {' and '.join(others[:3])}"
    its = "; options of the script go after the script" if command.name == "run" else ""
    yield f"`leakscope {command.name} --help` lists its options{its}"


def _as_format(bare: str, own: Sequence[str]) -> str:
    """`--as html=FILE` for an option named like a format, if the command has formats."""
    from leakscope.report.formats import format_names

    name = {"md": "markdown", "xml": "junit", "txt": "text", "github": "markdown", "perfetto": "trace"}.get(bare, bare)
    if "--as" not in own or name not in format_names():
        return ""
    return "--as text" if name == "text" else f"--as {name}=FILE"


def _option_names(command: click.Command) -> list[str]:
    options = (p for p in command.params if isinstance(p, click.Option) and not p.hidden)
    return [*(name for option in options for name in (*option.opts, *option.secondary_opts)), "--help", "-h"]


def _commands_with(group: click.Group, name: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for each in group.list_commands(context):
        command = group.get_command(context, each)
        if command is not None and name in _option_names(command):
            yield each, command


TYPED = "leakscope.typed"
"""Key of the `TypedArguments` in the `meta` of click's context."""
_MODULE = "-m"
_RANKS = ("-n", "--ranks")
_SHORTEST = 5
"""Minimum length of a misspelled option, with its dashes. Heuristic: `--lr` resembles no option."""


@dataclass(frozen=True)
class TypedArguments:
    """The words of a command line: options of leakscope, the script, arguments of the script."""

    ours: tuple[str, ...]
    target: tuple[str, ...]
    """The script, or `-m` and a module."""
    theirs: tuple[str, ...]


class RunCommand(click.Command):
    """Takes its own options before the script; `--ranks N` also right after it, and any of them before a `--`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Move leakscope's options before the script, where click expects them."""
        start = self._first_argument(args)
        if start < len(args):
            args = [*args[:start], *script_words(args[start:], args[:start])]
            has_module = args[start] == _MODULE
            if has_module and start + 1 == len(args):
                raise click.UsageError("-m requires a module name")
            first = start + 2 if has_module else start + 1  # `-m MODULE` or `SCRIPT`
            target = args[start:first]
            ours, theirs = self._split(args[first:])
            ctx.meta[TYPED] = TypedArguments((*args[:start], *ours), tuple(target), tuple(theirs))
            module, script = (target, []) if has_module else ([], target)
            args = [*args[:start], *ours, *module, "--", *script, *theirs]
        return super().parse_args(ctx, args)

    def _first_argument(self, words: Sequence[str], known_only: bool = False) -> int:
        """Index of the first word that is neither an option nor its value, or of `-m`; the length without one.

        `known_only`: words that look like options but are none of ours count as arguments.
        """
        index = 0
        while index < len(words):
            name, has_value, _ = words[index].partition("=")
            if name in (_MODULE, "-") or not name.startswith("-") or (known_only and name not in self._flags):
                return index
            if name == "--":
                return len(words)
            index += 1 if has_value or not self._flags.get(name) else 2
        return min(index, len(words))

    @cached_property
    def _flags(self) -> dict[str, bool]:
        """Each flag of an option, and whether it takes a value."""
        options = (option for option in self.params if isinstance(option, click.Option))
        return {flag: not option.is_flag for option in options for flag in (*option.opts, *option.secondary_opts)}

    def _split(self, rest: list[str]) -> tuple[list[str], list[str]]:
        """Split the words after the script into options of leakscope and arguments of the script."""
        if "--" in rest:
            dashes = rest.index("--")
            if self._first_argument(rest[:dashes], known_only=True) == dashes:
                return rest[:dashes], rest[dashes + 1 :]
        if rest and rest[0] in _RANKS:
            return rest[:2], rest[2:]
        if rest and rest[0].startswith(f"{_RANKS[-1]}="):
            return rest[:1], rest[1:]
        return [], rest

    def split_misplaced(self, typed: TypedArguments) -> tuple[list[str], list[str]]:
        """Split the arguments of the script into options of leakscope, also misspelled ones, and others."""
        ours, others, rest = list[str](), list[str](), list(typed.theirs)
        while rest:
            word = rest.pop(0)
            name, has_value, value = word.partition("=")
            is_long = name.startswith("--") and len(name) > _SHORTEST
            near = get_close_matches(name.replace("_", "-"), self._flags, 1, cutoff=0.8) if is_long else []
            own = name if name in self._flags else near[0] if near else ""
            if not own:
                others.append(word)
                continue
            ours.append(f"{own}{has_value}{value}")
            if not has_value and self._flags[own] and rest:
                ours.append(rest.pop(0))
        return ours, others


class Size(click.ParamType):  # type: ignore[type-arg]
    """`64KiB`, `1 MB` or a number of bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse the size."""
        try:
            return parse_bytes(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Share(click.ParamType):  # type: ignore[type-arg]
    """`2%` or `0.02`, as a share between 0 and 1."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse the share."""
        try:
            return parse_share(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


_TYPE_OF_UNIT: Mapping[str, click.ParamType[Any]] = {"bytes": Size(), "share": Share()}
_TYPES: Mapping[Any, Any] = {Path: click.Path(path_type=Path), When: click.Choice([str(when) for when in When])}


def run_option(name: str, help: str | None = None) -> click.Option:
    """An option of a run for click, with another help if given; its default is None, and `Options` has the real one."""
    option, kind = OFFERED[name], TYPES[name][0]
    repeated = kind == tuple[str, ...]
    return click.Option(
        [name, *flags_of(name)],
        type=None if kind is bool or repeated else _TYPE_OF_UNIT.get(option.unit, _TYPES.get(kind, kind)),
        is_flag=kind is bool,
        multiple=repeated,
        default=None,
        metavar=option.metavar,
        help=help or option.help,
    )


def checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """The values of options of a run. Raises LeakscopeError for one that is out of range."""
    for name, value in options.items():
        wrong = OFFERED[name].refuses(value)
        if wrong:
            raise LeakscopeError(f"{flags_of(name)[-1]} {wrong}")
    return dict(options)
