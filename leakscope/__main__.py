"""The entry point of `leakscope` and `python -m leakscope`."""

from __future__ import annotations

from leakscope.bootstrap import use_own_path


def main() -> None:
    """Run the command line with a `sys.path` that excludes the working directory."""
    use_own_path()
    from leakscope_cli import main as command_line

    command_line(prog_name="leakscope")


if __name__ == "__main__":
    main()
