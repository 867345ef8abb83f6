"""One option of a run: how it is written, and which numbers it takes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import isfinite


class When(StrEnum):
    """When to do something that costs time or disk space."""

    AUTO = "auto"
    """Where it is likely to be useful."""
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True)
class Option:
    """An option of the command line: flags, help text and valid range."""

    help: str
    """Help text, with the default in brackets."""
    flags: tuple[str, ...] = ()
    """Flags as typed; derived from the field name if empty."""
    metavar: str | None = None
    unit: str = ""
    """Unit of a number; bytes are typed like `64KiB`, a share like `2%` or `0.02`."""
    least: float | None = None
    """Smallest valid number."""
    most: float = 1 << 60
    """Largest valid number."""

    def refuses(self, value: object) -> str:
        """The error for a value, as it follows the name of the option; "" if the value is valid."""
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            return ""
        if isinstance(value, float) and not isfinite(value):
            return f"{value} must be a finite number"
        if self.least is not None and value < self.least:
            return f"{value} must be at least {self.least}"
        if value > self.most:
            return f"{value} must be at most {self.most}"
        return ""
