"""The options of a run: their names, types, help and valid ranges."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from math import isfinite
from types import UnionType
from typing import Annotated, Any, Self, get_args, get_type_hints

from leakscope.originals import Path, json, os


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


@dataclass(frozen=True)
class Options:
    """The options of a run. Those of the command line come first, in the order of `--help`.

    Raises:
        ValueError: A value is out of range, or two options contradict each other.

    """

    module: Annotated[
        str | None,
        Option("Run a module, like `python -m`; what follows are its arguments.", ("-m",), "MODULE"),
    ] = None
    ranks: Annotated[
        int,
        Option("Number of ranks on this machine [default: 1].", ("-n", "--ranks"), "N", "ranks", least=1, most=4096),
    ] = 1
    folder: Annotated[
        Path, Option("Folder of the run [default: leakscope_runs/<script>_<UTC time>].", ("-o", "--output"), "DIR")
    ] = Path()
    force: Annotated[bool, Option("Overwrite the run in that folder.", ("-f", "--force"))] = False
    steps: Annotated[
        int | None,
        Option("Stop the script on every rank after N steps and report.", metavar="N", unit="steps", least=1),
    ] = None
    step_function: Annotated[
        str | None,
        Option(
            "Function or method of the script whose return ends a step, for example train_step or "
            "Trainer.training_step.",
            metavar="NAME",
        ),
    ] = None
    warmup: Annotated[
        int, Option("Steps to skip before growth is measured [default: 2].", metavar="N", unit="steps", least=0)
    ] = 2
    budget: Annotated[
        float,
        Option(
            "Maximum share of the run time spent on heap snapshots, such as 2% or 0.02 [default: 2%].",
            metavar="SHARE",
            unit="share",
            least=0,
            most=1,
        ),
    ] = 0.02
    min_bytes: Annotated[
        int | None,
        Option(
            "Minimum growth per step to report as a leak, of any kind [default: by kind and --horizon].",
            metavar="SIZE",
            unit="bytes",
            least=0,
        ),
    ] = None
    horizon: Annotated[
        int,
        Option(
            "Report growth of plain data as a leak if it would reach 1% of memory within N steps [default: 100000].",
            metavar="N",
            unit="steps",
            least=1,
        ),
    ] = 100_000
    gc_diff: Annotated[
        When,
        Option("Run gc.collect() at the end and compare: after --steps (auto), or also after the script (always)."),
    ] = When.AUTO
    lifetimes: Annotated[
        bool,
        Option(
            "Trace two steps operation by operation to find memory that is idle at the peak [default: on].",
            ("--lifetimes/--no-lifetimes",),
        ),
    ] = True
    snapshot: Annotated[
        When,
        Option(
            "On an accelerator, record torch memory snapshots: where something is found (auto), or at every heap "
            "snapshot."
        ),
    ] = When.AUTO
    prove: Annotated[
        bool,
        Option("After the last of --steps, make each cut in a forked copy and measure the memory it frees."),
    ] = False
    fix: Annotated[
        bool,
        Option(
            "After the report, find edits that fix the leaks and prove each by repeating the run (`leakscope fix`)."
        ),
    ] = False
    hang_timeout: Annotated[
        float | None,
        Option(
            "Kill the ranks after SECONDS without communication [default: off].",
            metavar="SECONDS",
            unit="seconds",
            least=0.1,
        ),
    ] = None
    leak_exit_code: Annotated[
        int, Option("Exit status if leaks are found [default: 23].", metavar="N", unit="exit status", least=0, most=255)
    ] = 23
    fail_on_avoidable: Annotated[
        int | None,
        Option(
            "Also exit with the leak status if avoidable memory exceeds SIZE [default: off].",
            metavar="SIZE",
            unit="bytes",
            least=0,
        ),
    ] = None
    fail_on_inconclusive: Annotated[
        bool, Option("Exit with status 2 if the run is inconclusive, for example after too few steps.")
    ] = False
    ignore_library: Annotated[bool, Option("Report leaks in third-party libraries, but do not fail on them.")] = False
    baseline: Annotated[
        Path | None, Option("Ignore leaks that are already in this run or findings.json.", metavar="FILE")
    ] = None
    suppress: Annotated[
        Path | None, Option("File of suppressions, one pattern per line, as above.", metavar="FILE")
    ] = None
    follow: Annotated[
        bool,
        Option(
            "Also record Python child processes that train [default: on].",
            ("--follow/--no-follow",),
        ),
    ] = True
    source: Annotated[
        bool,
        Option(
            "Store the source of the script with the run, to show its lines in reports [default: on].",
            ("--source/--no-source",),
        ),
    ] = True
    nnodes: Annotated[
        int,
        Option("Number of nodes, as in torchrun [default: 1].", metavar="N", unit="machines", least=1, most=1 << 20),
    ] = 1
    node_rank: Annotated[
        int,
        Option("Index of this node; node 0 hosts the rendezvous.", metavar="N", unit="machines", least=0),
    ] = 0
    rdzv_endpoint: Annotated[str, Option("Rendezvous endpoint of a run on several nodes.", metavar="HOST:PORT")] = ""
    rdzv_id: Annotated[str, Option("Job id, the same on every node.", metavar="ID")] = ""
    quiet: Annotated[bool, Option("Do not print progress and notes.", ("-q", "--quiet"))] = False
    formats: Annotated[
        tuple[str, ...],
        Option(
            "Also write the report as FORMAT; repeatable. Formats: text, json, html, markdown, sarif, junit, trace. "
            "Without FILE it replaces the text on stdout, and the output of the ranks goes to stderr. If FILE is a "
            "folder, the file is findings.<suffix>.",
            ("--as",),
            "FORMAT[=FILE]",
        ),
    ] = ()
    as_json: Annotated[bool, Option("Same as --as json.", ("--json",))] = False

    script: str = ""
    """Path of the script; "" with `module`."""
    arguments: tuple[str, ...] = ()
    """Arguments of the script or module."""
    launcher: int = 0
    """Process id of the launcher, with which the ranks end; 0 without one."""
    rank: int = 0
    """Rank of this process; set by the launcher."""
    world: int = 1
    """Number of ranks on all machines; set by the launcher."""
    under_elastic: bool = False
    """Started by torch's elastic launcher: RANK and WORLD_SIZE give the rank, and output goes to a pipe."""
    grace: float = 10.0
    """Seconds for a rank to exit at the end of a run with `steps`."""
    process: str = ""
    """Name of the folder of a child process, which gets its rank later; "" for a process with a rank."""
    checksums: bool = False
    """Record a checksum of all parameters and gradients at each step, by which two runs are compared."""
    by_hand: bool = False
    """Steps are marked with `boundary()`: no optimizer ends one, and the script is never stopped."""

    def __post_init__(self) -> None:
        for name, option in OFFERED.items():
            wrong = option.refuses(getattr(self, name))
            if wrong:
                raise ValueError(f"{name if self.by_hand else flags_of(name)[-1]} {wrong}")
        if self.step_function is not None and not all(map(str.isidentifier, self.step_function.split("."))):
            raise ValueError(
                f"--step-function {self.step_function!r} is not a name such as train_step or Trainer.training_step"
            )
        if self.prove and self.steps is None:
            raise ValueError("--prove needs --steps N: it makes the cuts after the last step")
        if self.fix and (self.nnodes > 1 or not self.source):
            raise ValueError("--fix needs one machine and the source: it repeats the run with edited copies")
        if self.node_rank >= self.nnodes:
            raise ValueError(f"--node-rank {self.node_rank} must be less than --nnodes {self.nnodes}")
        if self.nnodes > 1 and not self.rdzv_endpoint:
            raise ValueError("--nnodes needs --rdzv-endpoint HOST:PORT")

    @property
    def needs_stdout(self) -> bool:
        """Whether a format for programs goes to stdout, so that the output of the ranks must not."""
        places = dict(word.partition("=")[::2] for word in self.formats if word.partition("=")[2] in ("", "-"))
        return self.as_json or bool(places.keys() - {"text"})

    @property
    def target(self) -> str:
        """Path of the script or name of the module."""
        return self.module or self.script

    @property
    def command(self) -> tuple[str, ...]:
        """The script or module with its arguments, as they follow `python`."""
        return (*(("-m",) if self.module else ()), self.target, *self.arguments)

    @property
    def recorded(self) -> dict[str, Any]:
        """The options in `run.json`."""
        return {name: getattr(self, name) for name in _RECORDED}

    @property
    def rank_state(self) -> Path:
        """The file with the state of the ranks of one machine; unused after the run."""
        return self.folder / (f".board_{self.process}" if self.process else ".board")

    @property
    def turns(self) -> Path:
        """The folder of the lock files by which ranks of one machine take turns; unused after the run."""
        return self.folder / ".turns"

    @classmethod
    def of(cls, values: Mapping[str, object]) -> Self:
        """Make options from plain values, as in the command line and JSON; others keep their default.

        Raises:
            ValueError: A name is not an option, or a value has the wrong type.

        """
        unknown = sorted(values.keys() - TYPES.keys())
        if unknown:
            raise ValueError(f"no such option: {', '.join(unknown)}")
        return cls(**{name: _of_type(name, value) for name, value in values.items()})

    def to_words(self) -> list[str]:
        """The command line of a rank, for `from_words`: the options as JSON, then the script or module.

        So a process list shows the arguments of the script once, as under python.
        """
        encoded = {name: value for name, value in asdict(self).items() if name not in _COMMAND}
        return [json.dumps(encoded, default=str), *self.command]

    @classmethod
    def from_words(cls, words: Sequence[str]) -> Self:
        """The inverse of `to_words`. Raises ValueError for other words."""
        encoded, *command = words
        values = json.loads(encoded)
        if not isinstance(values, dict):
            raise ValueError("options must be a JSON object")
        if command[:1] == ["-m"]:
            return cls.of({**values, "module": command[1], "arguments": command[2:]})
        return cls.of({**values, "script": command[0] if command else "", "arguments": command[1:]})


OFFERED: Mapping[str, Option] = {
    field.name: field.type.__metadata__[0] for field in fields(Options) if hasattr(field.type, "__metadata__")
}
"""Field to its option of the command line."""
TYPES: Mapping[str, tuple[Any, ...]] = {
    name: get_args(kind) if isinstance(kind, UnionType) else (kind,) for name, kind in get_type_hints(Options).items()
}
"""Field to the types of its values: `(int, NoneType)` for `steps`."""


_COMMAND = ("module", "script", "arguments")
"""Fields of the script or module."""
_RECORDED = (
    "warmup", "min_bytes", "horizon", "steps", "budget", "gc_diff", "step_function", "fail_on_avoidable",
    "fail_on_inconclusive", "ignore_library",
)  # fmt: skip
"""Fields that `run.json` has: those of the judgement, and those that a report shows or machines must agree on."""


def flags_of(name: str) -> tuple[str, ...]:
    """The flags of an option: `("-n", "--ranks")`."""
    return OFFERED[name].flags or (f"--{name.replace('_', '-')}",)


def _of_type(name: str, value: object) -> Any:
    """The value as the type of its field. Raises ValueError for other types."""
    kind, *others = TYPES[name]
    if type(value) in (kind, *others):
        return value
    if kind is Path and isinstance(value, (str, os.PathLike)):
        return Path(value)
    if kind is When and value in list(When):
        return When(str(value))
    if kind is float and type(value) is int:
        return float(value)
    if kind == tuple[str, ...] and isinstance(value, (list, tuple)) and all(isinstance(word, str) for word in value):
        return tuple(value)
    raise ValueError(f"{name}={value!r} must be of type {getattr(kind, '__name__', kind)}")


def launchers_number(environment: Mapping[str, str], name: str, otherwise: int) -> int:
    """The number in a variable such as RANK; `otherwise` if it is not set or not a number."""
    text = environment.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else otherwise
