"""Of which job is a rank, in words that every machine of the job says alike?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_IDS = (("TORCHELASTIC_RUN_ID",), ("SLURM_JOB_ID", "SLURM_STEP_ID"), ("PMIX_NAMESPACE",), ("PMI_JOBID",))
"""Variables in which torchrun, Slurm, Open MPI and MPICH name a job; the first that are set, all of them."""
_UNNAMED = ("", "none")
"""Ids that name no job; torchrun's own default is the second."""
_FREE_PORTS = 32768
"""The least port that Linux chooses by itself (ip_local_port_range): two jobs seldom meet at the same one."""


@dataclass(frozen=True)
class Job:
    """What a launcher says of the job; "" where it does not."""

    id: str = ""
    port: str = ""
    """Where the ranks meet; not on which host, which each machine may call by another name."""

    def differs(self, other: Job) -> str:
        """What is another one there: `rendezvous id`, `port`; "" where nothing that both say is."""
        if self.id and other.id and self.id != other.id:
            return "rendezvous id"
        return "port" if self.port and other.port and self.port != other.port else ""

    def is_the_same(self, other: Job) -> bool:
        """Whether both say the same of what no other job says."""
        if self.differs(other):
            return False
        chosen = self.port.isdigit() and int(self.port) >= _FREE_PORTS
        return (self.id == other.id and self.id not in _UNNAMED) or (self.port == other.port and chosen)


def job_here(environment: Mapping[str, str]) -> Job:
    """The job of a process whose launcher has left word in its environment."""
    ids = (tuple(environment.get(name, "") for name in names) for names in _IDS)
    named = next((".".join(filter(None, words)) for words in ids if words[0]), "")
    return Job(named, environment.get("MASTER_PORT", ""))


def job_in(data: Any) -> Job:
    """The job that `run.json` or `about.json` tells of; nothing where it tells of none."""
    told = data.get("job") if isinstance(data, Mapping) else None
    if not isinstance(told, Mapping):
        return Job()
    return Job(*(str(told.get(name, ""))[:200] for name in ("id", "port")))
