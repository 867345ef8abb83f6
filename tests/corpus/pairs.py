"""Every two cases of the corpus in one process: what is found is the union of what is found of each.

    python -m corpus.pairs --sample 200 --seed 7
    python -m corpus.pairs --all

All pairs take hours, a pair about two seconds.
"""

from __future__ import annotations

import argparse
import functools
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

from corpus.case import CASES, FLOAT, Watched, load, watch
from leakscope.findings.model import Finding
from leakscope.findings.naming import any_item

Reported = tuple[object, ...]


def cases_of_pairs() -> list[str]:
    """The cases that are watched together: what native code holds has no holder to tell one leak from another by."""
    load()
    return [name for name, case in CASES.items() if case.rule != "native-hold"]


def sampled(count: int, seed: int) -> list[tuple[str, str]]:
    """So many pairs, each case about as often as any other."""
    names, rng = cases_of_pairs(), random.Random(seed)
    pairs: list[tuple[str, str]] = []
    while len(pairs) < count:
        rng.shuffle(names)
        pairs += zip(names[::2], names[1::2], strict=False)
    return pairs[:count]


def reported(seen: Watched, name: str) -> list[Reported]:
    """What is said of one case, but for what the other cases beside it change: its place among them."""
    return sorted(map(_reported, seen.of(name), [seen.primes[name]] * len(seen.of(name))), key=str)


def _reported(finding: Finding, prime: int) -> Reported:
    references = finding.cut.references if finding.cut is not None else ()
    return (
        finding.rule, finding.severity, finding.freed_by, finding.origin, finding.fingerprint, finding.collections,
        round(finding.bytes_per_step / (FLOAT * prime), 1),
        tuple((reference.name, any_item(reference.written), reference.added_at) for reference in references),
        any_item(finding.subject),
    )  # fmt: skip


def differs(pair: tuple[str, str], alone: Callable[[str], Watched]) -> Iterator[str]:
    """How the findings of two cases together are not those of each; nothing where they are."""
    both = watch(pair, "leak")
    for name in pair:
        expected, found = reported(alone(name), name), reported(both, name)
        if expected != found:
            yield f"{' + '.join(pair)}: {name} alone {expected}, together {found}"
        together = [finding for finding in both.of(name) if both.about(finding) != {name}]
        yield from (f"{' + '.join(pair)}: one finding of both: {finding.subject}" for finding in together)
    for finding in both.findings.findings:
        if finding.severity == "leak" and not both.about(finding):
            yield f"{' + '.join(pair)}: a leak of neither: {finding.subject}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Watches pairs, and prints those whose findings are not the union."""
    parser = argparse.ArgumentParser(prog="python -m corpus.pairs", description="Watch pairs of cases together.")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--all", action="store_true", help="every pair")
    which.add_argument("--sample", type=int, default=40, metavar="N", help="so many (40)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (0)")
    options = parser.parse_args(arguments)
    pairs = list(combinations(cases_of_pairs(), 2)) if options.all else sampled(options.sample, options.seed)
    alone = functools.cache(lambda name: watch([name], "leak"))
    wrong = 0
    for pair in pairs:
        for text in differs(pair, alone):
            print(text, flush=True)
            wrong += 1
    print(f"{len(pairs)} pairs, {wrong} differences")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
