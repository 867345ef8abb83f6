"""`leakscope snapshot`: what torch's memory snapshot files say."""

from __future__ import annotations

from pathlib import Path

import click
from leakscope_cli.console import note, tell_or_fail
from leakscope_cli.shared import check_room


@click.command("snapshot")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--as",
    "form",
    type=click.Choice(["text", "json", "html"]),
    default="text",
    show_default=True,
    help="Output format.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write to FILE instead of stdout.",
    metavar="FILE",
)
@click.option(
    "--frames",
    type=click.IntRange(1, 32),
    default=1,
    show_default=True,
    metavar="N",
    help="Number of frames of your code to show per allocation site.",
)
@click.option("--at", type=click.IntRange(min=0), metavar="EVENT", help="Also show what was alive after this event.")
@click.option(
    "--compare", "comparing", is_flag=True, help="Compare two files: what the second holds that the first does not."
)
def snapshot(
    files: tuple[Path, ...], form: str, output: Path | None, frames: int, at: int | None, comparing: bool
) -> None:
    """Analyze torch memory snapshots: who held the memory, and what grew.

    FILE is written by torch.cuda.memory._dump_snapshot (also gzipped, or as the page of torch's viewer), or is the
    folder of a run, of which the newest snapshot of each rank is read. Nothing in it is executed. Several files are
    taken as ranks, numbered by their names.
    """
    check_room()
    from leakscope.errors import LeakscopeError
    from leakscope.memory_snapshot.verdict import examine
    from leakscope.report.memory_snapshot import snapshot_html, snapshot_json, snapshot_text
    from leakscope.run.writer import write_named

    report = examine([path for file in files for path in _snapshots_in(file)], comparing, frames, at)
    render = {"text": snapshot_text, "json": snapshot_json, "html": snapshot_html}[form]
    if output is None:
        tell_or_fail(render(report))
        return
    try:
        write_named(output, render(report).encode())
    except OSError as error:
        raise LeakscopeError(
            f"cannot write {output} ({error.strerror}); name a file in a folder that exists"
        ) from error
    note(f"{output} written")


def _snapshots_in(path: Path) -> list[Path]:
    """The newest snapshot of each rank in a run's folder, or of the one rank whose folder it is; any other path itself.

    Raises LeakscopeError for a folder without one.
    """
    from leakscope.errors import LeakscopeError
    from leakscope.memory_snapshot.verdict import files_in

    if not path.is_dir():
        return [path]
    newest = [files[-1] for folder in (path, *sorted(path.glob("rank_*"))) if (files := files_in(folder))]
    if not newest:
        raise LeakscopeError(
            f"{path} holds no allocator snapshot; `leakscope run --snapshot always` keeps one of each look "
            "on an accelerator"
        )
    return newest
