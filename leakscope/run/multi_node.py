"""Runs on several machines: missing ranks, and the merging of folders."""

from __future__ import annotations

import filecmp
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import combinations
from typing import Any

from leakscope.errors import LeakscopeError, Unreadable
from leakscope.files import read_json
from leakscope.originals import Path, open_file, os, shutil
from leakscope.run.descriptors import open_private
from leakscope.run.model import NAME as ABOUT
from leakscope.run.model import is_complete, read_header, recorded_options, with_what_ranks_know
from leakscope.run.rank_end import rank_name, ranks_in
from leakscope.run.suppression import NAME as SUPPRESSIONS
from leakscope.run.writer import make_private, prepare_folder, write_run

NODES = "nodes"
"""Key in `run.json`: number of machines; omitted for one."""
RANKS_A_NODE = "ranks_a_node"
"""Key in `run.json`: ranks per machine; omitted if unknown or not uniform."""

_LOG = re.compile(r"node_([0-9]+)_local_")
"""Prefix of the log names of a rank, with the number of its machine."""


def machines(nodes: int, ranks_a_node: int) -> dict[str, int]:
    """Number of machines according to `run.json`."""
    return {NODES: nodes, RANKS_A_NODE: ranks_a_node} if nodes > 1 and ranks_a_node > 0 else {}


def ranks_elsewhere(folder: Path, header: Mapping[str, Any], expected: int, there: Collection[int]) -> list[int]:
    """Ranks of machines without any folder here; empty if no rank has a folder, or if several machines have logs here:
    those share the folder, and a rank without a folder has left nothing.

    The assignment of ranks to machines comes from the ranks that are there: launchers number machines in order of
    arrival.
    """
    nodes, each = header.get(NODES), header.get(RANKS_A_NODE)
    if type(nodes) is not int or type(each) is not int or each < 1 or nodes * each != expected:
        return []
    here = {number // each for number in there if number < expected}
    if not here or len({found[1] for path in folder.glob("logs/node_*") if (found := _LOG.match(path.name))}) > 1:
        return []
    return [number for number in range(expected) if number // each not in here]


_IDS = (("TORCHELASTIC_RUN_ID",), ("SLURM_JOB_ID", "SLURM_STEP_ID"), ("PMIX_NAMESPACE",), ("PMI_JOBID",))
"""Variables in which torchrun, Slurm, Open MPI and MPICH identify a job; the first that are set are used together."""
_UNNAMED = ("", "none")
"""Ids that identify no job; torchrun's default is the second."""
_FREE_PORTS = 32768
"""First port that Linux assigns by itself (ip_local_port_range): two jobs seldom share one."""


@dataclass(frozen=True)
class Job:
    """What a launcher reports about the job; "" if unknown."""

    id: str = ""
    port: str = ""
    """The port where the ranks meet, without the host, which may have different names on different machines."""

    def differs(self, other: Job) -> str:
        """The field that differs, `rendezvous id` or `port`; "" if no field known to both does."""
        if self.id and other.id and self.id != other.id:
            return "rendezvous id"
        return "port" if self.port and other.port and self.port != other.port else ""

    def is_the_same(self, other: Job) -> bool:
        """Whether both agree on something unique to a job."""
        if self.differs(other):
            return False
        chosen = self.port.isdigit() and int(self.port) >= _FREE_PORTS
        return (self.id == other.id and self.id not in _UNNAMED) or (self.port == other.port and chosen)


def job_here(environment: Mapping[str, str]) -> Job:
    """The job of this process, from variables of its launcher."""
    ids = (tuple(environment.get(name, "") for name in names) for names in _IDS)
    named = next((".".join(filter(None, words)) for words in ids if words[0]), "")
    return Job(named, environment.get("MASTER_PORT", ""))


def job_in(data: Any) -> Job:
    """The job recorded in `run.json` or `about.json`; empty if none is."""
    given = data.get("job") if isinstance(data, Mapping) else None
    if not isinstance(given, Mapping):
        return Job()
    return Job(*(str(given.get(name, ""))[:200] for name in ("id", "port")))


_APART_S = 3600.0
"""Seconds between the starts of two machines, by their clocks, beyond which they count as two runs unless something
else identifies them. Heuristic: torch's rendezvous waits ten minutes.
"""
_KNOWN_BY_RANKS = ("device", "torch", "heap_reader", "sources", "source_paths")
"""Keys that each machine's launcher copied into its `run.json` from its ranks."""
_LOGS = "logs"


@dataclass(frozen=True)
class MachinePart:
    """The folder of one machine."""

    folder: Path
    header: Mapping[str, Any]
    ranks: tuple[int, ...]
    jobs: tuple[Job, ...]
    """The job according to the launcher, and according to the first rank that knew it."""

    @property
    def expected(self) -> int:
        """Ranks of the whole job, as known to this machine."""
        given = self.header.get("ranks")
        return given if type(given) is int else 0


def merge_parts(folders: Sequence[Path], into: Path, force: bool = False) -> None:
    """Merge the folders of the machines of one job into one run; the inputs are not modified.

    Args:
        folders: One for each machine, or a copy; a rank in several folders must be the same in each.
        into: The output folder; an existing run is replaced only with `force`.
        force: Replace an existing run.

    Raises:
        LeakscopeError: They are not parts of one job, a rank occurs twice, or the output cannot be written.
        OSError: A file cannot be read or written.

    """
    parts = [_part(folder) for folder in folders]
    for one, other in combinations(parts, 2):
        _check_same_job(one, other)
    where = _where_each_rank_is(parts)
    _check_place(folders, into)
    prepare_folder(into, force)
    write_run(into, _header(parts))
    for rank, part in where.items():
        _copy_files(part.folder / rank_name(rank), into / rank_name(rank))
    for number, part in enumerate(parts):
        _copy_logs(part.folder / _LOGS, into / _LOGS, number)
        if (part.folder / SUPPRESSIONS).is_file() and not (into / SUPPRESSIONS).exists():
            _copy(part.folder / SUPPRESSIONS, into / SUPPRESSIONS)
    if all(is_complete(part.header) for part in parts):
        write_run(into, with_what_ranks_know(into, _header(parts)))


def _part(folder: Path) -> MachinePart:
    header = read_header(folder)
    try:
        ranks = tuple(ranks_in(folder))
    except OSError as error:
        raise Unreadable(f"{folder} cannot be read ({error.strerror})") from None
    if not ranks:
        raise LeakscopeError(f"no rank recorded anything in {folder}; omit it")
    return MachinePart(folder, header, ranks, (job_in(header), _job_of_ranks(folder, ranks)))


def _job_of_ranks(folder: Path, ranks: Sequence[int]) -> Job:
    for rank in ranks:
        try:
            job = job_in(read_json(folder / rank_name(rank) / ABOUT))
        except Unreadable:  # it was killed, or its file is damaged, which the report tells
            continue
        if job != Job():
            return job
    return Job()


def _check_same_job(one: MachinePart, other: MachinePart) -> None:
    """Raises LeakscopeError naming what differs in the second folder."""
    proved = any(mine.is_the_same(theirs) for mine, theirs in zip(one.jobs, other.jobs, strict=True))
    for what, this in _job_facts(one, proved).items():
        theirs = _job_facts(other, proved)[what]
        if this != theirs:
            raise LeakscopeError(
                f"{one.folder} and {other.folder} are not parts of one job: {what} is {this} in the first and {theirs} "
                "in the second"
            )
    for ours, its in zip(one.jobs, other.jobs, strict=True):
        what = ours.differs(its)
        if what:
            this, that = (job.port if what == "port" else job.id for job in (ours, its))
            raise LeakscopeError(
                f"{one.folder} and {other.folder} are not parts of one job: the {what} is {this} in the first and "
                f"{that} in the second"
            )
    apart = 0.0 if proved else _seconds_apart(one, other)
    if apart > _APART_S:
        raise LeakscopeError(
            f"{one.folder} and {other.folder} are not parts of one job: they were started {apart / 3600:.1f} h apart "
            "and share no --rdzv-id"
        )


def _job_facts(part: MachinePart, proved: bool) -> dict[str, str]:
    """What all machines of a job must agree on; arguments may differ if it is known to be one job."""
    command = part.header.get("command")
    words = [str(word) for word in command] if isinstance(command, list) else []
    script = words[:2] if words[:1] == ["-m"] else [os.path.basename(words[0]) if words else ""]
    options = recorded_options(part.header)
    names = ("warmup", "min_bytes", "horizon", "gc_diff", "step_function", "steps")
    return {
        "the number of ranks": str(part.expected),
        "the command": " ".join(script if proved else [*script, *words[len(script) :]]),
        **{f"--{name.replace('_', '-')}": str(options.get(name)) for name in names},
    }


def _seconds_apart(one: MachinePart, other: MachinePart) -> float:
    """Seconds between their starts, each by its own clock; 0 if one is unknown."""
    try:
        a, b = (datetime.fromisoformat(str(part.header["started"])) for part in (one, other))
        return abs((a - b).total_seconds())
    except (KeyError, ValueError, TypeError):
        return 0.0


def _where_each_rank_is(parts: Sequence[MachinePart]) -> dict[int, MachinePart]:
    """Raises LeakscopeError if a rank is in two folders with different content."""
    where: dict[int, MachinePart] = {}
    for part in parts:
        for rank in part.ranks:
            first = where.setdefault(rank, part)
            if first is not part and not _same_files(first.folder / rank_name(rank), part.folder / rank_name(rank)):
                raise LeakscopeError(
                    f"rank {rank} is in {first.folder} and, with different content, in {part.folder}; omit one"
                )
    return dict(sorted(where.items()))


def _same_files(one: Path, other: Path) -> bool:
    names = [sorted(path.name for path in _files(folder)) for folder in (one, other)]
    return names[0] == names[1] and not any(filecmp.cmpfiles(one, other, names[0], shallow=False)[1:])


def _check_place(folders: Sequence[Path], into: Path) -> None:
    """Raises LeakscopeError if writing the output would modify an input."""
    place = into.resolve()
    for folder in folders:
        part = folder.resolve()
        if place == part or part in place.parents or place in part.parents:
            raise LeakscopeError(f"output folder {into} overlaps input {folder}; give another --output")


def _header(parts: Sequence[MachinePart]) -> dict[str, Any]:
    """The initial `run.json`, as after a launch; a merged run has no machines, so that missing ranks are reported."""
    first = parts[0].header
    left_out = ("format", NODES, RANKS_A_NODE, *_KNOWN_BY_RANKS)
    kept = {name: value for name, value in first.items() if name not in left_out}
    started = sorted(str(part.header["started"]) for part in parts if part.header.get("started"))
    return {**kept, **({"started": started[0]} if started else {})}


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.iterdir()) if path.is_file())


def _copy_files(folder: Path, into: Path) -> None:
    make_private(into)
    for path in _files(folder):
        _copy(path, into / path.name)


def _copy_logs(folder: Path, into: Path, number: int) -> None:
    """Copy logs; a name used twice gets the machine as a prefix."""
    if not folder.is_dir():
        return
    make_private(into)
    for path in _files(folder):
        target = into / path.name
        if target.exists() and not filecmp.cmp(path, target, shallow=False):
            target = into / f"part_{number}_{path.name}"
        _copy(path, target)


def _copy(path: Path, target: Path) -> None:
    """Copy with times, which determine which rank ended first, but without permissions."""
    with path.open("rb") as source, open_file(target, "wb", opener=open_private) as copy:
        shutil.copyfileobj(source, copy)
    there = path.stat()
    os.utime(target, ns=(there.st_atime_ns, there.st_mtime_ns))
