"""Which of how many ranks is this process?"""

from __future__ import annotations

import sys

from leakscope.options import launchers_number
from leakscope.originals import os


def rank_and_world() -> tuple[int, int]:
    """The rank of this process and how many there are: as torch.distributed has it, else as a launcher said.

    Lightning, accelerate and spawned processes join a group without the variables RANK and WORLD_SIZE.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    rank, world = (launchers_number(os.environ, *said) for said in (("RANK", 0), ("WORLD_SIZE", 1)))
    return (rank, world) if 0 <= rank < world else (0, 1)
