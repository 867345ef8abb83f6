"""Did the system end processes for want of memory?"""

from __future__ import annotations

from pathlib import Path

VMSTAT = Path("/proc/vmstat")


def processes_ended(vmstat: Path = VMSTAT) -> int:
    """How many the kernel's out-of-memory killer has ended on this machine since it booted; 0 where that is not known.

    The field `oom_kill` is in the kernel since 4.13 (mm/vmstat.c); it counts kills for a control group's limit too.
    """
    try:
        lines = vmstat.read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
