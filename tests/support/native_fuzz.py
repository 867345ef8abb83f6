"""Calls every entry of the parts in C with valid and with hostile arguments, by a seed.

Valid calls are compared with the Python parts that give the same. Hostile ones must raise one of `REFUSALS` or give an
answer, and keep neither a reference nor a buffer of what they were given.

`python -m support.native_fuzz --sanitized --seconds 600` (`make fuzz`) builds the parts with AddressSanitizer and
UndefinedBehaviorSanitizer in a temporary folder and runs there: a read or write out of bounds ends the process.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import os
import random
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np

from leakscope import native
from leakscope.graph import _walks_fallback
from leakscope.process.guard import _between, _enter, _leave

PARTS = {
    "leakscope.heap._gc_heap": "leakscope/heap/_gc_heap.c",
    "leakscope.process._untraced": "leakscope/process/_untraced.c",
    "leakscope.graph._walks": "leakscope/graph/_walks.c",
}
ROOT = Path(__file__).parents[2]
REFUSALS = (ValueError, TypeError, OverflowError, BufferError, MemoryError, UnicodeError)
Random = random.Random
Round = Callable[[Random], None]


class Fault(AssertionError):
    """An answer that is not that of the Python part, or something kept."""


def check(holds: object, *about: object) -> None:
    if not holds:
        raise Fault(about)


# walks


def numbers(rng: Random, count: int, length: int) -> np.ndarray[Any, Any]:
    return np.array([rng.randrange(count) for _ in range(length)], dtype=np.int32)


def costs(rng: Random, length: int) -> np.ndarray[Any, Any]:
    some = (0.0, 1.0, 1.0, 0.5, 1e-3, 5e-324, 1e308, float("inf"))
    return np.array([rng.choice(some) if rng.random() < 0.5 else rng.random() for _ in range(length)], dtype=float)


def valid_walks(rng: Random) -> None:
    """The same as the twin in Python gives."""
    count = rng.choice((1, 2, 3, 10, 60))
    references = rng.choice((0, 1, count, 4 * count))
    holder, held = numbers(rng, count, references), numbers(rng, count, references)
    starts = np.unique(numbers(rng, count, rng.randint(1, 4)))
    weight, start_cost = costs(rng, references), costs(rng, len(starts))
    first, below = (np.frombuffer(part, dtype=np.int32) for part in native.walks().rows(count, holder, held))
    calls: dict[str, tuple[Any, ...]] = {
        "rows": (count, holder, held),
        "reached": (first, below, starts, rng.randrange(-2, count + 2)),
        "breadth_first": (first, below, int(starts[0])),
        "components": (first, below),
        "distances": (count, holder, held, weight, starts, start_cost),
    }
    for name, arguments in calls.items():
        in_c, in_python = (getattr(module, name)(*arguments) for module in (native.walks(), _walks_fallback))
        one = type(in_c) is not tuple
        parts = zip((in_c,) if one else in_c, (in_python,) if one else in_python, strict=True)
        check(all(np.array_equal(np.frombuffer(a, dtype=b.dtype), b) for a, b in parts), name, *arguments)


ODD: tuple[Callable[[Random], Any], ...] = (
    lambda _: None,
    lambda _: "text",
    lambda _: [0, 1],
    lambda _: b"\0" * 8,
    lambda rng: bytearray(rng.randrange(40)),
    lambda rng: np.array([rng.choice((-1, 0, 1, 2**31 - 1, -(2**31)))], dtype=np.int32),
    lambda rng: np.arange(
        rng.randrange(6), dtype=rng.choice((np.int64, np.uint32, np.int16, np.float32, ">i4", object))
    ),
    lambda _: np.arange(8, dtype=np.int32)[::2],
    lambda _: np.arange(8, dtype=np.int32)[::-1],
    lambda _: np.arange(8, dtype=np.int32).reshape(2, 4),
    lambda _: np.array(3, dtype=np.int32),
    lambda _: memoryview(bytearray(17))[1:].cast("i"),
    lambda _: memoryview(bytearray(33))[1:].cast("d"),
    lambda _: np.frombuffer(bytearray(17), dtype=np.int32, count=4, offset=1),
    lambda rng: np.array([rng.choice((float("nan"), -1.0, -0.0, -5e-324, float("-inf"), float("inf")))]),
    lambda rng: costs(rng, rng.randrange(5)),
    lambda rng: numbers(rng, rng.choice((1, 3, 9)), rng.randrange(6)),
)
COUNTS = (-(2**63), -(2**31), -1, 0, 1, 2, 3, 9, 100, 2**31, 2**63, 2**70, None, 1.5, "1")


def refused_costs(rng: Random) -> None:
    """A cost that is negative or not a number is refused by C and by Python, in the same words."""
    count = rng.choice((1, 3, 20))
    references = rng.choice((1, 3 * count))
    holder, held = numbers(rng, count, references), numbers(rng, count, references)
    starts = np.unique(numbers(rng, count, 2))
    each = [costs(rng, references), costs(rng, len(starts))]
    for _ in range(rng.randint(1, 5)):
        bad = rng.choice(each)
        bad[rng.randrange(len(bad))] = rng.choice((-1.0, -1e-300, float("nan"), float("-inf"), -1e9))
    errors_seen = set()
    for function in (native.walks().distances, _walks_fallback.distances):
        try:
            function(count, holder, held, each[0], starts, each[1])
        except ValueError as error:
            errors_seen.add(str(error))
        else:
            raise Fault("not refused", function, each)
    check(len(errors_seen) == 1, errors_seen)


def hostile_walks(rng: Random) -> None:
    for _ in range(20):
        hostile_walk(rng)


def hostile_walk(rng: Random) -> None:
    walks = native.walks()

    def odd() -> Any:
        return rng.choice(ODD)(rng)

    def near(length: int) -> Any:
        """Mostly as it should be."""
        return numbers(rng, 3, length) if rng.random() < 0.7 else odd()

    n = rng.randrange(5)
    calls: list[tuple[Callable[..., Any], list[Any]]] = [
        (walks.rows, [rng.choice(COUNTS), near(n), near(n)]),
        (walks.reached, [near(n), near(n), near(1), rng.choice(COUNTS)]),
        (walks.breadth_first, [near(n), near(n), rng.choice(COUNTS)]),
        (walks.components, [near(n), near(n)]),
        (walks.distances, [rng.choice(COUNTS), near(n), near(n), *with_costs(rng, n, odd)]),
    ]
    function, arguments = rng.choice(calls)
    if rng.random() < 0.1:
        arguments = arguments[: rng.randrange(len(arguments))]
    refused_or_answered(function, *arguments)


def with_costs(rng: Random, n: int, odd: Callable[[], Any]) -> list[Any]:
    """Weights, starts and their costs; one of them is odd at times."""
    m = rng.randrange(3)
    given: list[Any] = [costs(rng, n), numbers(rng, 3, m), costs(rng, m)]
    for place in range(3):
        if rng.random() < 0.2:
            given[place] = odd()
        elif place != 1 and len(given[place]) and rng.random() < 0.2:
            given[place][rng.randrange(len(given[place]))] = rng.choice((-1.0, float("nan"), float("-inf")))
    return given


def refused_or_answered(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call it; nothing of the arguments may be kept, whatever comes."""
    own = [
        argument for argument in arguments if type(argument) in (np.ndarray, bytearray, memoryview, list, FunctionType)
    ]
    before = list(map(sys.getrefcount, own))
    try:
        answer = function(*arguments, **named)
    except REFUSALS:
        answer = None
    after = list(map(sys.getrefcount, own))
    check(before == after or answer is not None, "kept", function, arguments, before, after)
    for argument in arguments:
        if type(argument) is bytearray:
            argument.append(0)  # raises BufferError where a buffer is still lent
    return answer


# the heap


class Box:
    """Holds anything as attributes."""


def some_objects(rng: Random, plain: bool = False) -> list[Any]:
    """Objects of many types that hold one another, cycles among them; `plain` ones lead to no module."""
    made: list[Any] = [[], {}] if plain else [[], {}, Box(), Box]
    leaves: tuple[Callable[[], Any], ...] = (
        int, str, lambda: b"x" * 9, lambda: bytearray(1 << 17), lambda: b"y" * (1 << 17), lambda: np.zeros(3),
        rng.random, object, lambda: None, lambda: (), lambda: (1, ("a", 2)), lambda: {"k": (1, 2)},
    )  # fmt: skip

    def one() -> Any:
        return rng.choice(made) if rng.random() < 0.6 else rng.choice(leaves)()

    def several() -> list[Any]:
        return [one() for _ in range(rng.randrange(4))]

    def box() -> Box:
        new = Box()
        for name, value in zip("abc", several(), strict=False):
            setattr(new, name, value)
        return new

    def array() -> Any:
        new = np.empty(2, dtype=object)
        new[0] = one()
        return new

    def generator() -> Any:
        local = one()
        yield local
        yield [local]

    def closure() -> Any:
        held = one()
        return lambda: held

    makers: tuple[Callable[[], Any], ...] = (
        several, lambda: tuple(several()), lambda: dict(enumerate(several())), lambda: deque(several()), array,
        lambda: {id(value) for value in several()}, lambda: memoryview(bytearray(8)), lambda: iter(several()),
        lambda: (tuple(several()), {"inner": tuple(several())}),
    )  # fmt: skip
    if not plain:
        makers += (
            box, generator, closure, lambda: type("Made", (), {"held": one()}),
            lambda: weakref.ref(rng.choice([m for m in made if type(m) is Box])),
        )  # fmt: skip
    for _ in range(rng.randrange(40)):
        new = rng.choice(makers)()
        made.append(new)
        into = rng.choice(made)
        if type(into) is list and into is not made:
            into.append(new)
        elif type(into) is dict:
            into[len(into)] = new
    return made


def valid_heap(rng: Random) -> None:
    from support.heap_readers import differences, tracked

    collecting = gc.isenabled()
    gc.disable()
    try:
        plain = rng.random() < 0.95  # others lead to all modules, and take as long as the whole heap
        objects = tracked(some_objects(rng, plain))
        found = differences(objects, counts=plain)
        check(not found, found)
    finally:
        if collecting:
            gc.enable()


def hostile_heap(rng: Random) -> None:
    """Odd arguments, objects that stand there twice, a listing that reads the heap itself, and odd questions of what
    was read."""
    heap = native.gc_heap()
    objects = some_objects(rng)
    objects += rng.choices(objects, k=3)

    def raises() -> Any:
        raise ValueError

    def reads_within() -> Any:
        heap.read(list(objects), np.ndarray, ("Tensor",), 1 << 16, 1 << 30, 0, 1, 0)
        gc.collect()
        return list(objects)

    odd: tuple[tuple[Any, ...], ...] = (
        (raises, lambda: (), None, (), 5, {}),
        (int, object, 5, None),
        ((), ("",), ("\ud800",), (1,), ["Tensor"], ("é" * 400,)),
        (0, 1, -1, 2**62, -(2**63), 2**63, None),
        (0, -1, 2**31 - 1, 2**31, None),
    )
    valid: tuple[tuple[Any, ...], ...] = (
        (list(objects), [], [1, None, "a", 2.5], reads_within, lambda: list(objects), gc.get_objects),
        (np.ndarray,), (("Tensor", "Handle"),), (1 << 16,), (1 << 30,),
    )  # fmt: skip
    arguments = [
        rng.choice(given if rng.random() < 0.9 else others) for given, others in zip(valid, odd, strict=True)
    ] + [rng.randrange(2) for _ in range(3)]
    if rng.random() < 0.05:
        arguments = arguments[: rng.randrange(8)]
    read = refused_or_answered(heap.read, *arguments)
    if read is not None:
        columns_fit(rng, read)


def columns_fit(rng: Random, read: dict[str, Any]) -> None:
    tracked, untracked = len(read["objects"]), len(read["untracked"])
    count = tracked + untracked
    of = {
        name: np.frombuffer(memoryview(read[name]).tobytes(), dtype=np.int32) for name in ("starts", "holder", "held")
    }
    check(len(of["starts"]) == tracked + 1 and of["starts"][0] == 0, "starts")
    check(len(of["holder"]) == len(of["held"]) >= of["starts"][-1], "references")
    check(not len(of["held"]) or 0 <= of["held"].min() <= of["held"].max() < count, "held")
    check(not len(of["holder"]) or 0 <= of["holder"].min() <= of["holder"].max() < count, "holder")
    book = read["book"]
    view = memoryview(read["addresses"])
    read.clear()
    queries: list[Any] = [
        view, view[: view.nbytes // 2], b"", b"123", np.arange(5), np.arange(6)[::2], np.zeros((2, 2), np.int64),
        np.arange(3, dtype=np.int32), memoryview(bytearray(17))[1:].cast("q"), None, 7, bytearray(24),
    ]  # fmt: skip
    found = refused_or_answered(book.find, rng.choice(queries))
    check(found is None or memoryview(found).nbytes % 4 == 0, "find")
    for odd in (rng.randrange(-(2**70), 2**70), rng.choice((None, 1.5, "a", True, 0, -1, 2**64 - 1, 2**64))):
        refused_or_answered(book.find_one, odd)
    for made in (book, found):
        if made is not None:
            check(refused_or_answered(type(made)) is None, "made by hand")


# calls that nobody hears of


def unheard_calls(rng: Random) -> None:
    kind = native.untraced().Call
    heard = rng.random() < 0.3
    shown: list[object] = []

    def function(*args: Any, **named: Any) -> Any:
        if rng.random() < 0.3:
            raise KeyError(args)
        if rng.random() < 0.2:
            call_again = holder.pop() if holder else None  # the last reference to the one that runs
            del call_again
        if rng.random() < 0.2:
            gc.collect()
        return args, named

    holder = [kind(function, heard)]
    twin = _between(function, _leave, _enter) if heard else _between(function, _enter, _leave)
    arguments = tuple(rng.choices((1, "a", None, [], {}), k=rng.randrange(4)))
    named = dict.fromkeys(rng.sample(("a", "b", "function"), rng.randrange(3)), 1)
    state = rng.getstate()
    answers = []
    for each in (0, 1):
        rng.setstate(state)
        try:
            answers.append((holder[0] if each == 0 else twin)(*arguments, **named))
        except KeyError as error:
            answers.append(error.args)
    check(answers[0] == answers[1], "answers", answers)
    sys.settrace(lambda *_: shown.append(1))
    in_a_cycle(kind)
    sys.settrace(None)
    check(shown, "nothing is heard any more")
    for odd in ((), (1,), (None, 2, 3), (function, "x", 1)):
        made = refused_or_answered(kind, *odd)
        if made is not None:
            try:
                made()
            except TypeError:
                continue


def in_a_cycle(kind: Any) -> None:
    box = Box()
    vars(box)["call"] = kind(partial(vars, box))
    vars(box)["call"].more = box
    gone = weakref.ref(box)
    del box
    gc.collect()
    check(gone() is None, "a cycle through a call is not collected")


ROUNDS: tuple[Round, ...] = (
    valid_walks, refused_costs, hostile_walks, valid_heap, hostile_heap, unheard_calls,
)  # fmt: skip


def fuzz(seed: int, seconds: float = float("inf"), rounds: int | None = None) -> int:
    """Run so many rounds, or for so long; how many there were. Raises `Fault` with the seed of the round."""
    end, done = time.monotonic() + seconds, 0
    while time.monotonic() < end and (rounds is None or done < rounds):
        number = seed + done
        try:
            ROUNDS[number % len(ROUNDS)](Random(number))
        except Fault as fault:
            raise Fault(f"seed {number}") from fault
        done += 1
    return done


# sanitizers


def run_sanitized(arguments: list[str]) -> int:
    """Build the parts with sanitizers in a temporary folder, and run this again with them."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        sys.exit("no C compiler is here")
    with tempfile.TemporaryDirectory() as folder:
        for name, source in PARTS.items():
            subprocess.run(
                [compiler, "-shared", "-fPIC", "-O1", "-g", "-fsanitize=address,undefined", "-fno-omit-frame-pointer",
                 "-fno-sanitize-recover=undefined", f"-I{sysconfig.get_paths()['include']}", str(ROOT / source),
                 "-o", f"{folder}/{name}{sysconfig.get_config_var('EXT_SUFFIX')}"],
                check=True,
            )  # fmt: skip
        libraries = [
            subprocess.run([compiler, f"-print-file-name={name}"], check=True, capture_output=True, text=True)
            .stdout.strip()
            for name in ("libasan.so", "libubsan.so")
        ]  # fmt: skip
        env = {
            **os.environ, "LD_PRELOAD": " ".join(libraries), "PYTHONMALLOC": "malloc",
            # what CPython itself leaves at its end is no finding
            "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1", "UBSAN_OPTIONS": "print_stacktrace=1",
        }  # fmt: skip
        command = [sys.executable, "-m", "support.native_fuzz", "--built", folder, *arguments]
        return subprocess.run(command, env=env, cwd=ROOT / "tests", check=False).returncode


def load_from(folder: str) -> None:
    """Let the parts that were built there serve."""
    for name in PARTS:
        path = f"{folder}/{name}{sysconfig.get_config_var('EXT_SUFFIX')}"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    native._built.cache_clear()


def churn(going: list[bool]) -> None:
    """Another thread that allocates and frees beside the calls; what it holds leads nowhere."""
    while going:
        for k in range(200):
            tuple(range(k % 7))
        time.sleep(0.001)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sanitized", action="store_true")
    parser.add_argument("--built", help="folder of parts that were built for this")
    options = parser.parse_args()
    if options.sanitized:
        sys.exit(run_sanitized(["--seconds", str(options.seconds), "--seed", str(options.seed)]))
    if options.built:
        load_from(options.built)
    assert native.gc_heap() and native.walks() and native.untraced(), "the parts in C were not built"
    going = [True]
    thread = threading.Thread(target=churn, args=(going,))
    thread.start()
    try:
        done = fuzz(options.seed, options.seconds)
    finally:
        going.clear()
        thread.join()
    where = options.built or Path(str(native.walks().__file__)).parent
    print(f"{done} rounds from seed {options.seed} with the parts in {where}: nothing found")


if __name__ == "__main__":
    main()
