"""One option of a run: how it is written, and which numbers it takes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import isfinite


class When(StrEnum):
    """How freely something that costs time or room is done."""

    AUTO = "auto"
    """Where it is likely to tell something."""
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True)
class Option:
    """How an option is written on the command line, and what is said of it there."""

    help: str
    """What it does, with its default in brackets; `leakscope run --help` says it in these words."""
    flags: tuple[str, ...] = ()
    """As typed; from the field's name where there are none."""
    metavar: str | None = None
    unit: str = ""
    """What a number counts; bytes are typed like `64KiB`, a share like `2%` or `0.02`."""
    least: float | None = None
    """Smallest number that makes sense."""
    most: float = 1 << 60
    """Largest number that makes sense; one that no run is read back with makes none."""

    def refuses(self, value: object) -> str:
        """What is wrong with a number, as it follows the option's name; "" where nothing is, or where it is none."""
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            return ""
        if isinstance(value, float) and not isfinite(value):
            return f"{value} is no number that makes sense"
        if self.least is not None and value < self.least:
            return f"{value} makes no sense; give {self.least} or more"
        if value > self.most:
            return f"{value} makes no sense; give {self.most} or less"
        return ""
