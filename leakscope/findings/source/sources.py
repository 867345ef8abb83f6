"""In which of the kept source files does a word stand, or a class?"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property

from leakscope.findings.source.parsed import ParsedFile, parse


class Sources:
    """The kept files; each is parsed when it is first asked for, and once."""

    def __init__(self, kept: Mapping[str, Sequence[str]]) -> None:
        self._texts = {name: "\n".join(lines) for name, lines in kept.items()}
        self._parsed: dict[str, ParsedFile | None] = {}
        self._matching: dict[str, tuple[str, ...]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The files, by their names."""
        return tuple(self._texts)

    def containing(self, word: str) -> list[ParsedFile]:
        """The files in whose text a word stands, as it is, between characters that are none of a name's."""
        return self.matching(rf"(?<!\w){re.escape(word)}(?!\w)")

    def matching(self, pattern: str, at_most: int | None = None) -> list[ParsedFile]:
        """The files in whose text a regular expression matches; none where that are more than `at_most`."""
        if pattern not in self._matching:
            found = re.compile(pattern)
            self._matching[pattern] = tuple(name for name, text in self._texts.items() if found.search(text))
        names = self._matching[pattern]
        if at_most is not None and len(names) > at_most:
            return []
        return [parsed for parsed in map(self.file, names) if parsed is not None]

    def file(self, name: str) -> ParsedFile | None:
        """One file by its name; None where it was not kept or is no Python."""
        if name not in self._parsed:
            text = self._texts.get(name)
            self._parsed[name] = None if text is None else parse(name, text)
        return self._parsed[name]

    def of_line(self, name: str) -> ParsedFile | None:
        """The file that a line of a trace is in, by the end of its name where that is written otherwise."""
        alike = [kept for kept in self._texts if kept == name or kept.endswith("/" + name) or name.endswith("/" + kept)]
        return self.file(name if name in self._texts else alike[0]) if len(alike) == 1 or name in self._texts else None

    @cached_property
    def _classes(self) -> Mapping[str, tuple[frozenset[str], tuple[str, ...]]]:
        """Names of the classes of all files, each with those of its bases and the files it is in, as their text shows
        them.
        """
        found: dict[str, tuple[frozenset[str], tuple[str, ...]]] = {}
        for file, text in self._texts.items():
            for name, bases in _CLASS.findall(text):
                names = (base.partition("[")[0].strip().rpartition(".")[2] for base in bases.split(","))
                known, files = found.get(name, (frozenset(), ()))
                found[name] = known | frozenset(names) - {"", name}, (*files, file)
        return found

    def bases(self, name: str) -> set[str]:
        """Names of the classes above one, its own left out."""
        above: set[str] = set()
        waiting = [name]
        while waiting:
            new = self._classes.get(waiting.pop(), (frozenset(), ()))[0] - above
            above |= new
            waiting += new
        return above

    def has_class(self, name: str) -> bool:
        """Whether a kept file has a class of this name."""
        return name in self._classes

    def files_of_class(self, name: str) -> list[ParsedFile]:
        """The files of a class, of those above it and of those below."""
        above = {name, *self.bases(name)}
        names = (kin for kin in self._classes if kin in above or name in self.bases(kin))
        files = dict.fromkeys(file for kin in names for file in self._classes[kin][1])
        return [parsed for parsed in map(self.file, files) if parsed is not None]


_CLASS = re.compile(r"^[ \t]*class[ \t]+(\w+)[ \t]*(?:\(([^()]*))?", re.MULTILINE)
