"""The command line: `leakscope COMMAND`."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import click

from leakscope.errors import LeakscopeError

COMMANDS = {
    "run": ("run", "Run a script on one or more ranks and report its leaks."),
    "inspect": ("live", "Take a heap snapshot of a running job and report on it."),
    "status": ("live", "Show progress and memory of each rank."),
    "report": ("report", "Generate a report from a recorded run."),
    "merge": ("report", "Merge recordings from several machines."),
    "fix": ("fix", "Find edits that fix the leaks of a run, and prove each by a run."),
    "compare": ("report", "Compare the leaks of two runs."),
    "snapshot": ("report", "Analyze torch.cuda memory snapshots."),
    "rule": ("report", "List the rules, or explain one."),
    "demo": ("run", "Run a small leaking two-rank pipeline."),
}
"""Name to the module that defines the command as a function of that name, and its help."""


class CommandFailed(click.ClickException):
    """An error of leakscope: one sentence on stderr, exit status 2."""

    exit_code = 2

    def show(self, file: Any = None) -> None:  # noqa: ARG002 - click's signature
        """Print the sentence."""
        from leakscope_cli.console import note

        note(self.message)


class _Commands(click.Group):
    """The commands; the module of each is imported when it is called, to keep `--help` fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        command = getattr(import_module(f"leakscope_cli.{COMMANDS[cmd_name][0]}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click's; the error for an unknown command says what to type."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from leakscope_cli.argv import unknown_command_text

            raise click.UsageError(unknown_command_text(args, list(COMMANDS)))
        return super().resolve_command(ctx, args)

    def main(self, *args: Any, **extra: Any) -> Any:
        """As click's; output that could not be written is discarded, so that Python does not report it at exit."""
        from leakscope_cli.console import flush_streams, note, open_missing_streams

        open_missing_streams()
        try:
            return super().main(*args, **extra)
        except OSError as error:  # click's own --help, on a full disk
            note(f"cannot write to stdout: {error.strerror}")
            sys.exit(2)
        finally:
            flush_streams()

    def invoke(self, ctx: click.Context) -> Any:
        """As click's; any error of leakscope, the system or a dependency is one sentence and exit status 2."""
        try:
            with self._usage_in_one_sentence():
                return super().invoke(ctx)
        except LeakscopeError as error:
            raise CommandFailed(str(error)) from None
        except MemoryError:
            raise CommandFailed("out of memory") from None
        except ImportError as error:
            raise CommandFailed(f"cannot import a dependency: {_last_line(error)}") from None
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise
            where = f" for {error.filename}" if error.filename else ""
            raise CommandFailed(f"operating system error{where}: {error.strerror or _last_line(error)}") from None

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """As click's; a wrong option before the command is one sentence too."""
        with self._usage_in_one_sentence():
            return super().make_context(*args, **extra)

    @contextmanager
    def _usage_in_one_sentence(self) -> Iterator[None]:
        """Turn click's message about a wrong option or a missing argument into one sentence and exit status 2."""
        try:
            yield
        except click.NoSuchOption as error:
            from leakscope_cli.argv import unknown_option_text

            raise CommandFailed(unknown_option_text(error, self)) from None
        except click.UsageError as error:
            from leakscope_cli.argv import usage_error_text

            raise CommandFailed(usage_error_text(error)) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


def _last_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__


def _show_version(ctx: click.Context, _option: click.Parameter, is_given: bool) -> None:
    """`leakscope 0.1.0 (native heap reader)`."""
    if is_given and not ctx.resilient_parsing:
        from importlib.metadata import version

        from leakscope.native import described

        click.echo(f"leakscope {version('leakscope')} ({described()})")
        ctx.exit()


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
def main() -> None:
    """Find tensor memory leaks in PyTorch training: which reference to cut, and what that frees."""
