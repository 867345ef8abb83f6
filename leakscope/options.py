"""What can a run be told? Each option once, for the command line, the launcher, the ranks and Profiler alike."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Self, get_args


class When(StrEnum):
    """How freely something that costs time or room is done."""

    AUTO = "auto"
    """Where it is likely to tell something."""
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True)
class Spelling:
    """How an option is written on the command line, and what is said of it there."""

    help: str
    """What it does, with its default in brackets; `leakscope run --help` says it in these words."""
    flags: tuple[str, ...] = ()
    """As typed; from the field's name where there are none."""
    metavar: str | None = None
    unit: str = ""
    """What a number counts; a size is typed like `64KiB`, a share like `2%`."""
    least: int | None = None
    """Smallest number that makes sense."""


def option(default: Any, help: str, *flags: str, **spelling: Any) -> Any:
    """A field of Options that the command line offers."""
    return field(default=default, metadata={"spelling": Spelling(help, flags, **spelling)})


@dataclass(frozen=True)
class Options:
    """All that a run can be told. What the command line offers stands first, in the order of its `--help`.

    Raises ValueError for numbers that make no sense, or that make none together.
    """

    module: str | None = option(
        None, "Run a module, as `python -m` does; what follows are its arguments.", "-m", metavar="MODULE"
    )
    ranks: int = option(
        1, "Ranks on this machine (1).", "-n", "--ranks", metavar="N", unit="ranks", least=1
    )  # fmt: skip
    folder: Path = option(
        Path(), "The run's folder (leakscope_runs/<script>_<UTC time>).", "-o", "--output", metavar="DIR"
    )
    force: bool = option(False, "Replace the run in that folder.", "-f", "--force")
    steps: int | None = option(
        None, "End the script cleanly on every rank after N steps and judge.", metavar="N", unit="steps", least=1
    )
    warmup: int = option(2, "Steps not judged (2).", metavar="N", unit="steps", least=0)
    budget: float = option(0.02, "Share of the run's time that looking may take (2%).", metavar="PERCENT", unit="share")
    min_bytes: int = option(
        64 * 1024,
        "Growth below this a step, or 16 times this in all, is a note (64 KiB).",
        metavar="SIZE",
        unit="bytes",
    )
    gc_diff: When = option(
        When.AUTO, "Collect for real at the end and compare: after --steps (auto), also after the script (always)."
    )
    lifetimes: bool = option(
        True, "Watch two steps operation by operation: what is never used again at the peak (on).",
        "--lifetimes/--no-lifetimes",
    )  # fmt: skip
    snapshot: When = option(
        When.AUTO,
        "On an accelerator, record the allocator and keep its snapshots: where something is found (auto), "
        "or of every look.",
    )
    prove: bool = option(
        False, "Make each cut in a forked copy after the last of --steps, and measure what really goes free."
    )
    hang_timeout: float | None = option(
        None, "End the ranks when nothing happens on the wire for so long (off).", metavar="SECONDS", unit="seconds"
    )
    leak_exit_code: int = option(23, "Exit status when leaks are found (23).", metavar="N", unit="exit status")
    baseline: Path | None = option(
        None, "findings.json of an earlier run; what it knows is listed apart.", metavar="FILE"
    )
    suppress: Path | None = option(None, "Fingerprints or rules, one a line, to list apart.", metavar="FILE")
    nnodes: int = option(
        1, "Machines that take part (1), as torchrun takes it.", metavar="N", unit="machines", least=1
    )  # fmt: skip
    node_rank: int = option(
        0, "Number of this machine; 0 hosts the rendezvous.", metavar="N", unit="machines", least=0
    )  # fmt: skip
    rdzv_endpoint: str = option("", "Where the machines meet.", metavar="HOST:PORT")
    rdzv_id: str = option("", "Name of the job, the same on every machine.", metavar="ID")
    quiet: bool = option(False, "No progress and no notes.", "-q", "--quiet")
    as_json: bool = option(
        False, "Findings as JSON on stdout; the ranks' stdout then goes to stderr.", "--json"
    )  # fmt: skip

    script: str = ""
    """Path of the script to run, where it is no module."""
    arguments: tuple[str, ...] = ()
    """The script's or the module's own."""
    rank: int = 0
    """Number of this process among all; the launcher says it."""
    world: int = 1
    """Ranks on all machines; the launcher says it."""
    under_elastic: bool = False
    """Started by torch's elastic launcher: RANK and WORLD_SIZE say which rank this is, and its output goes to a pipe."""
    grace: float = 10.0
    """Seconds a rank has to leave once a run with `steps` is over."""
    by_hand: bool = False
    """Steps are marked with `boundary()`; no optimizer is listened to and the script is never stopped."""

    def __post_init__(self) -> None:
        for name, spelling in SPELLINGS.items():
            number = getattr(self, name)
            if spelling.least is not None and number is not None and number < spelling.least:
                flag = flags_of(name)[-1]
                raise ValueError(f"{flag} {number} makes no sense; give {spelling.least} or more")
        if self.prove and self.steps is None:
            raise ValueError("--prove makes the cuts after the last of --steps; say how many with --steps N")
        if self.nnodes > 1 and not self.rdzv_endpoint:
            raise ValueError("--nnodes needs --rdzv-endpoint HOST:PORT, where the machines meet")

    @property
    def target(self) -> str:
        """Path of the script, or name of the module."""
        return self.module or self.script

    @property
    def command(self) -> tuple[str, ...]:
        """What runs, as it would follow `python`."""
        return (*(("-m",) if self.module else ()), self.target, *self.arguments)

    @classmethod
    def of(cls, values: Mapping[str, object]) -> Self:
        """Options from plain values, as the command line and JSON have them; what is not named keeps its default.

        Raises ValueError for a name that is no option, and for a value of another type than the option's.
        """
        kinds = {one.name: one.type for one in fields(cls)}
        unknown = sorted(values.keys() - kinds.keys())
        if unknown:
            raise ValueError(f"no such option: {', '.join(unknown)}")
        return cls(**{name: _of_type(name, value, kinds[name]) for name, value in values.items()})

    def to_json(self) -> str:
        """For `from_json`, in the process of a rank."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What `to_json` wrote. Raises ValueError where it is something else."""
        values = json.loads(text)
        if not isinstance(values, dict):
            raise ValueError("options are a JSON object")
        return cls.of(values)


SPELLINGS: Mapping[str, Spelling] = {
    one.name: one.metadata["spelling"] for one in fields(Options) if "spelling" in one.metadata
}
"""Field to spelling, of every option that the command line offers."""


def flags_of(name: str) -> tuple[str, ...]:
    """How an option is typed: `("-n", "--ranks")`."""
    return SPELLINGS[name].flags or (f"--{name.replace('_', '-')}",)


def _of_type(name: str, value: object, kind: Any) -> Any:
    alternatives = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    if value is None and NoneType in alternatives:
        return None
    kind = alternatives[0]
    if kind == tuple[str, ...]:
        if isinstance(value, (list, tuple)) and all(isinstance(word, str) for word in value):
            return tuple(value)
    elif kind is Path:
        if isinstance(value, (str, Path)):
            return Path(value)
    elif kind is When:
        return When(str(value))
    elif kind is float and type(value) is int:
        return float(value)
    elif type(value) is kind:
        return value
    raise ValueError(f"{name}={value!r} is no {getattr(kind, '__name__', kind)}")
