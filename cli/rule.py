"""`leakscope rule`: the help page of a rule."""

from __future__ import annotations

from difflib import get_close_matches

import click
from leakscope_cli.console import columns_of, stdout_console, tell_or_fail

from leakscope.errors import LeakscopeError
from leakscope.findings.rules import rules


def _complete(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    return [each.name for each in rules() if each.name.startswith(incomplete)]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("name", metavar="[NAME]", required=False, shell_complete=_complete)
def rule(name: str | None) -> None:
    """Explain the rule NAME: what it reports, why it matters, an example, and what to use instead.

    Without NAME, list all rules.
    """
    if name is None:
        widest = max(len(each.name) for each in rules())
        tell_or_fail("\n".join(f"{each.name:<{widest}}  {each.text}" for each in rules()))
        return
    known = {each.name: each for each in rules()}
    if name not in known:
        near = get_close_matches(name, known, 3)
        instead = f"did you mean {' or '.join(near)}?" if near else "`leakscope rule` lists them"
        raise LeakscopeError(f"there is no rule {name}; {instead}")
    page = known[name].help
    console = stdout_console()
    if not console.is_terminal:
        tell_or_fail(page)
        return
    from rich.markdown import Markdown

    with console.capture() as captured:
        console.print(Markdown(page, hyperlinks=False), width=columns_of(console))
    tell_or_fail(captured.get(), painted=True)
