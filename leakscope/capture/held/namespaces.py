"""Which objects are the namespaces of modules? All of them are roots, and few lead to tensors."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Set
from typing import Any

from leakscope.originals import gc


class Namespaces:
    """Address of each module's dict, read again when there are more or fewer modules.

    One that is missed or gone costs time alone: what is reached lives all the same.
    """

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._count = 0

    def addresses(self) -> Set[int]:
        """Those of all modules."""
        if len(sys.modules) != self._count:
            modules = sys.modules.copy()
            self._count = len(modules)
            self._names = {
                id(held): name
                for name, module in modules.items()
                for held in gc.get_referents(module)
                if _is_dict(held)
            }
        return self._names.keys()

    def at(self, addresses: Set[int]) -> Iterator[dict[str, Any]]:
        """Those that are at one of these addresses."""
        for address in self.addresses() & addresses:
            for held in gc.get_referents(sys.modules.get(self._names[address])):
                if id(held) == address and _is_dict(held):
                    yield held


def _is_dict(held: Any) -> bool:
    return type(held) is dict


NAMESPACES = Namespaces()
"""Of this process."""
