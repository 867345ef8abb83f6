"""The command line: `leakscope run`, `report`, `compare`, `demo`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

COMMANDS = {
    "run": ("leakscope_cli.run", "run", "Run a script on one or more ranks and say what leaks."),
    "report": ("leakscope_cli.report", "report", "Tell the story of a recorded run again."),
    "compare": ("leakscope_cli.compare", "compare", "Say what leaks in one run and not in another."),
    "snapshot": ("leakscope_cli.snapshot", "snapshot", "Read torch.cuda memory snapshots."),
    "demo": ("leakscope_cli.demo", "demo", "Find the leak of a small two-rank pipeline."),
}
"""Name to (module, function, help); a command's module is imported when it is called, to keep `--help` quick."""


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, function, _ = COMMANDS[cmd_name]
        command = getattr(import_module(module), function)
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Whatever a command tells its user by a LeakscopeError is one sentence on stderr and exit status 2."""
        from leakscope_cli.shared import told_in_one_sentence

        with told_in_one_sentence():
            return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_text) for name, (_, _, help_text) in COMMANDS.items()])


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="leakscope", prog_name="leakscope")
def main() -> None:
    """Find tensor memory leaks in PyTorch training: which reference to cut, and what that frees."""
