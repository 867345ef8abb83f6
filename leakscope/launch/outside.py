"""Is this process a rank of a job that another launcher has started?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_VARIABLES = (
    ("RANK", "WORLD_SIZE", ""),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", ""),
    ("PMI_RANK", "PMI_SIZE", ""),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_ID"),
)
"""(rank, world size, variable that must be there too), as torchrun, Open MPI, MPICH and Slurm set them."""


@dataclass(frozen=True)
class Outside:
    """The place of this process in a job that another launcher has started."""

    rank: int
    world: int


def outside_launcher(environment: Mapping[str, str]) -> Outside | None:
    """The rank that torchrun, MPI or Slurm gave this process; None for a process of one's own."""
    for rank, world, needed in _VARIABLES:
        numbers = (environment.get(rank, ""), environment.get(world, ""))
        inside = not needed or needed in environment
        if inside and all(number.isdigit() for number in numbers) and int(numbers[1]) > 1:
            return Outside(int(numbers[0]), int(numbers[1]))
    return None
