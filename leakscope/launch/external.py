"""Recognises a rank of a job that another launcher started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from leakscope.errors import LaunchFailed

_VARIABLES = (
    ("RANK", "WORLD_SIZE", "", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "", "MPI_LOCALNRANKS"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_ID", "SLURM_NTASKS_PER_NODE"),
)
"""(rank, world size, what must be there too, ranks on this machine), as torchrun, Open MPI, MPICH, Slurm set them."""


@dataclass(frozen=True)
class Outside:
    """The place of this process in a job that another launcher has started."""

    rank: int
    world: int
    machines: int = 1
    """On which it runs, as many ranks on each; 1 also where that is not known."""


def outside_launcher(environment: Mapping[str, str]) -> Outside | None:
    """The rank that torchrun, MPI or Slurm gave this process; None for a process of one's own.

    Raises LaunchFailed where both variables of a launcher are set, and are no rank of so many.
    """
    for rank, world, needed, local in _VARIABLES:
        said = (environment.get(rank, ""), environment.get(world, ""))
        if not all(said) or (needed and needed not in environment):
            continue
        numbers = [int(number) if number.isascii() and number.isdigit() else -1 for number in said]
        if not 0 <= numbers[0] < numbers[1]:
            raise LaunchFailed(
                f"{rank}={said[0]} and {world}={said[1]} in the environment are no rank of a launcher; unset them, "
                "or say --ranks N for a run of its own"
            )
        if numbers[1] > 1:
            return Outside(numbers[0], numbers[1], _machines(numbers[1], environment.get(local, "")))
    return None


def _machines(world: int, local: str) -> int:
    here = int(local) if local.isascii() and local.isdigit() else 0
    return world // here if here and world % here == 0 else 1
