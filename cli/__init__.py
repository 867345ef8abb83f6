"""The command line: `leakscope COMMAND`."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import click

COMMANDS = {
    "run": "Run a script on one or more ranks and report its leaks.",
    "inspect": "Take a heap snapshot of a running job and report on it.",
    "status": "Show progress and memory of each rank.",
    "report": "Generate a report from a recorded run.",
    "merge": "Merge recordings from several machines.",
    "compare": "Compare the leaks of two runs.",
    "snapshot": "Analyze torch.cuda memory snapshots.",
    "rule": "List the rules, or explain one.",
    "demo": "Run a small leaking two-rank pipeline.",
}
"""Name to help; a command is a function of its name, in a module of its name or the one below."""
_MODULES = {"merge": "report", "compare": "report", "demo": "run"}


class _Commands(click.Group):
    """Imports a command's module when the command is called, to keep `--help` quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        command = getattr(import_module(f"leakscope_cli.{_MODULES.get(cmd_name, cmd_name)}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click's; what is no command is answered with what to write."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from leakscope_cli.argv import for_unknown_command

            raise click.UsageError(for_unknown_command(args, list(COMMANDS)))
        return super().resolve_command(ctx, args)

    def main(self, *args: Any, **extra: Any) -> Any:
        """As click's, with an end of its own kind: what could not be written is not tried again by Python."""
        from leakscope_cli.console import have_streams, note, settle

        have_streams()
        try:
            return super().main(*args, **extra)
        except OSError as error:  # click's own --help, on a full disk
            note(f"cannot write to stdout: {error.strerror}")
            sys.exit(2)
        finally:
            settle()

    def invoke(self, ctx: click.Context) -> Any:
        """Whatever a command cannot do is one sentence on stderr and exit status 2."""
        from leakscope_cli.shared import errors_as_sentences

        with errors_as_sentences(self):
            return super().invoke(ctx)

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """As click's; a wrong option ahead of the command is one sentence too."""
        from leakscope_cli.shared import usage_as_sentences

        with usage_as_sentences(self):
            return super().make_context(*args, **extra)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _tell_version(ctx: click.Context, _option: click.Parameter, asked: bool) -> None:
    """`leakscope 0.1.0 (native heap reader)`."""
    if asked and not ctx.resilient_parsing:
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
    callback=_tell_version,
    help="Show the version and exit.",
)
def main() -> None:
    """Find tensor memory leaks in PyTorch training: which reference to cut, and what that frees."""
