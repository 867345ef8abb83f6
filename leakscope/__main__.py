"""`python -m leakscope` hands over to the command line."""

from __future__ import annotations

from leakscope_cli import main

if __name__ == "__main__":
    main(prog_name="leakscope")
