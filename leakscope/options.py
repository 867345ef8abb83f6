"""The options of a run, each defined once for command line, launcher, ranks and Profiler."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from types import UnionType
from typing import Annotated, Any, Self, get_args, get_type_hints

from leakscope.option import Option, When
from leakscope.originals import Path, json, os


@dataclass(frozen=True)
class Options:
    """All that a run can be told. What the command line offers stands first, in the order of its `--help`.

    Raises ValueError for numbers that make no sense, or that make none together.
    """

    module: Annotated[
        str | None,
        Option("Run a module, as `python -m` does; what follows are its arguments.", ("-m",), "MODULE"),
    ] = None
    ranks: Annotated[int, Option("Ranks on this machine (1).", ("-n", "--ranks"), "N", "ranks", least=1, most=4096)] = 1
    folder: Annotated[
        Path, Option("The run's folder (leakscope_runs/<script>_<UTC time>).", ("-o", "--output"), "DIR")
    ] = Path()
    force: Annotated[bool, Option("Replace the run in that folder.", ("-f", "--force"))] = False
    steps: Annotated[
        int | None,
        Option("End the script cleanly on every rank after N steps and judge.", metavar="N", unit="steps", least=1),
    ] = None
    step_function: Annotated[
        str | None,
        Option(
            "Each return of this function or method of the script ends a step, as in train_step or "
            "Trainer.training_step.",
            metavar="NAME",
        ),
    ] = None
    warmup: Annotated[int, Option("Steps not judged (2).", metavar="N", unit="steps", least=0)] = 2
    budget: Annotated[
        float,
        Option(
            "Share of the run's time that looking may take (2%), as 2% or 0.02.",
            metavar="SHARE",
            unit="share",
            least=0,
            most=1,
        ),
    ] = 0.02
    min_bytes: Annotated[
        int | None,
        Option(
            "Growth below this a step is a note, no leak, whatever it is of (by kind, and by --horizon).",
            metavar="SIZE",
            unit="bytes",
            least=0,
        ),
    ] = None
    horizon: Annotated[
        int,
        Option(
            "Growth of plain data is a leak where it reaches 1% of the memory there is within N steps (100000).",
            metavar="N",
            unit="steps",
            least=1,
        ),
    ] = 100_000
    gc_diff: Annotated[
        When,
        Option("Collect for real at the end and compare: after --steps (auto), also after the script (always)."),
    ] = When.AUTO
    lifetimes: Annotated[
        bool,
        Option(
            "Watch two steps operation by operation: what is never used again at the peak (on).",
            ("--lifetimes/--no-lifetimes",),
        ),
    ] = True
    snapshot: Annotated[
        When,
        Option(
            "On an accelerator, record the allocator and keep its snapshots: where something is found (auto), "
            "or of every look."
        ),
    ] = When.AUTO
    prove: Annotated[
        bool,
        Option("Make each cut in a forked copy after the last of --steps, and measure what really goes free."),
    ] = False
    hang_timeout: Annotated[
        float | None,
        Option(
            "End the ranks when nothing is sent or received for so long (off).",
            metavar="SECONDS",
            unit="seconds",
            least=0.1,
        ),
    ] = None
    leak_exit_code: Annotated[
        int, Option("Exit status when leaks are found (23).", metavar="N", unit="exit status", least=0, most=255)
    ] = 23
    fail_on_avoidable: Annotated[
        int | None,
        Option(
            "Exit status of leaks also where memory that could have been let go passes SIZE (off).",
            metavar="SIZE",
            unit="bytes",
            least=0,
        ),
    ] = None
    fail_on_inconclusive: Annotated[
        bool, Option("Exit status 2 where the run could not be judged, as after too few steps.")
    ] = False
    ignore_library: Annotated[bool, Option("What a library leaks is told, but is no leak of this run.")] = False
    baseline: Annotated[
        Path | None, Option("An earlier run, or its findings.json: what it has told decides nothing.", metavar="FILE")
    ] = None
    suppress: Annotated[Path | None, Option("File of what is known, one a line, as above.", metavar="FILE")] = None
    follow: Annotated[
        bool,
        Option(
            "Record the Python processes that the script starts too, where they train (on).",
            ("--follow/--no-follow",),
        ),
    ] = True
    source: Annotated[
        bool,
        Option(
            "Keep the text of the script's own files with the run, for what points at its lines (on).",
            ("--source/--no-source",),
        ),
    ] = True
    nnodes: Annotated[
        int,
        Option(
            "Machines that take part (1), as torchrun takes it.", metavar="N", unit="machines", least=1, most=1 << 20
        ),
    ] = 1
    node_rank: Annotated[
        int,
        Option("Number of this machine; 0 hosts the rendezvous.", metavar="N", unit="machines", least=0),
    ] = 0
    rdzv_endpoint: Annotated[str, Option("Where the machines meet.", metavar="HOST:PORT")] = ""
    rdzv_id: Annotated[str, Option("Name of the job, the same on every machine.", metavar="ID")] = ""
    quiet: Annotated[bool, Option("No progress and no notes.", ("-q", "--quiet"))] = False
    formats: Annotated[
        tuple[str, ...],
        Option(
            "Tell it as FORMAT too, again and again: text, json, html, markdown, sarif, junit, trace. One without a "
            "FILE goes to stdout in place of the text, and the ranks' stdout to stderr; in a folder FILE is "
            "findings.<suffix>.",
            ("--as",),
            "FORMAT[=FILE]",
        ),
    ] = ()
    as_json: Annotated[bool, Option("The same as --as json.", ("--json",))] = False

    script: str = ""
    """Path of the script to run, where it is no module."""
    arguments: tuple[str, ...] = ()
    """The script's or the module's own."""
    launcher: int = 0
    """Number of leakscope's own process, with which a rank ends; 0 where it has none."""
    elsewhere: tuple[str, ...] = ()
    """Folders, made when they are needed, that take what cannot be written into the run's; the launcher says them."""
    rank: int = 0
    """Number of this process among all; the launcher says it."""
    world: int = 1
    """Ranks on all machines; the launcher says it."""
    under_elastic: bool = False
    """By torch's elastic launcher: RANK and WORLD_SIZE say which rank this is, and its output goes to a pipe."""
    grace: float = 10.0
    """Seconds a rank has to leave once a run with `steps` is over."""
    process: str = ""
    """Name of the folder of this process, which is numbered among the ranks later; "" for one that has its number."""
    by_hand: bool = False
    """Steps are marked with `boundary()`; no optimizer is listened to and the script is never stopped."""

    def __post_init__(self) -> None:
        for name, option in OFFERED.items():
            wrong = option.refuses(getattr(self, name))
            if wrong:
                raise ValueError(f"{name if self.by_hand else flags_of(name)[-1]} {wrong}")
        if self.step_function is not None and not all(map(str.isidentifier, self.step_function.split("."))):
            raise ValueError(
                f"--step-function {self.step_function!r} is no name; give one like train_step or Trainer.training_step"
            )
        if self.prove and self.steps is None:
            raise ValueError("--prove makes the cuts after the last of --steps; say how many with --steps N")
        if self.node_rank >= self.nnodes:
            raise ValueError(
                f"--node-rank {self.node_rank} is none of --nnodes {self.nnodes}; the machines are numbered from 0"
            )
        if self.nnodes > 1 and not self.rdzv_endpoint:
            raise ValueError("--nnodes needs --rdzv-endpoint HOST:PORT, where the machines meet")

    @property
    def needs_stdout(self) -> bool:
        """Whether what is found goes to stdout as something to be read by a program: the ranks' own must not."""
        places = dict(word.partition("=")[::2] for word in self.formats if word.partition("=")[2] in ("", "-"))
        return self.as_json or bool(places.keys() - {"text"})

    @property
    def target(self) -> str:
        """Path of the script, or name of the module."""
        return self.module or self.script

    @property
    def command(self) -> tuple[str, ...]:
        """What runs, as it would follow `python`."""
        return (*(("-m",) if self.module else ()), self.target, *self.arguments)

    @property
    def rank_state(self) -> Path:
        """The file in which the ranks of one machine say where they stand; of no use to anybody after the run."""
        return self.folder / (f".board_{self.process}" if self.process else ".board")

    @property
    def turns(self) -> Path:
        """The folder of the files by which the ranks of one machine take turns; of no use to anybody after the run."""
        return self.folder / ".turns"

    @classmethod
    def of(cls, values: Mapping[str, object]) -> Self:
        """Options from plain values, as the command line and JSON have them; what is not named keeps its default.

        Raises ValueError for a name that is no option, and for a value of another type than the option's.
        """
        unknown = sorted(values.keys() - TYPES.keys())
        if unknown:
            raise ValueError(f"no such option: {', '.join(unknown)}")
        return cls(**{name: _of_type(name, value) for name, value in values.items()})

    def to_words(self) -> list[str]:
        """For `from_words`, on the command line of a rank: the options, then what runs as it would follow `python`.

        A process list shows the script's own words as it shows those of python, and once.
        """
        told = {name: value for name, value in asdict(self).items() if name not in _COMMAND}
        return [json.dumps(told, default=str), *self.command]

    @classmethod
    def from_words(cls, words: Sequence[str]) -> Self:
        """What `to_words` wrote. Raises ValueError where it is something else."""
        told, *command = words
        values = json.loads(told)
        if not isinstance(values, dict):
            raise ValueError("options are a JSON object")
        if command[:1] == ["-m"]:
            return cls.of({**values, "module": command[1], "arguments": command[2:]})
        return cls.of({**values, "script": command[0] if command else "", "arguments": command[1:]})


OFFERED: Mapping[str, Option] = {
    field.name: field.type.__metadata__[0] for field in fields(Options) if hasattr(field.type, "__metadata__")
}
"""Field to what the command line says of it."""
TYPES: Mapping[str, tuple[Any, ...]] = {
    name: get_args(kind) if isinstance(kind, UnionType) else (kind,) for name, kind in get_type_hints(Options).items()
}
"""Field to the types of its values: `(int, NoneType)` for `steps`."""


_COMMAND = ("module", "script", "arguments")
"""Fields of what runs."""


def flags_of(name: str) -> tuple[str, ...]:
    """How an option is typed: `("-n", "--ranks")`."""
    return OFFERED[name].flags or (f"--{name.replace('_', '-')}",)


def _of_type(name: str, value: object) -> Any:
    """The value, as its field has it. Raises ValueError where it is of another type."""
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
    raise ValueError(f"{name}={value!r} is no {getattr(kind, '__name__', kind)}")


def launchers_number(environment: Mapping[str, str], name: str, otherwise: int) -> int:
    """What a launcher says in a variable such as RANK; `otherwise` where it is not set or holds no number."""
    text = environment.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else otherwise
