"""`python -m leakscope` and the command `leakscope` hand over to the command line."""

from __future__ import annotations

from leakscope.bootstrap import use_own_path


def main() -> None:
    """Run the command line on a path that has nothing of the working directory's."""
    use_own_path()
    from leakscope_cli import main as command_line

    command_line(prog_name="leakscope")


if __name__ == "__main__":
    main()
