"""Where do the ranks of one machine meet? At a store that listens on the loopback alone.

The stores of torch's own rendezvous listen on all interfaces, without a password, and give to whoever asks.
"""

from __future__ import annotations

import socket
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

_NAME = "leakscope"
_LOOPBACK = "127.0.0.1"


@cache
def loopback_rendezvous() -> str:
    """Name of a rendezvous of one agent on this machine, made known to torch's launcher (elastic/rendezvous/api.py)."""
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]
    from torch.distributed.elastic.rendezvous import (
        RendezvousHandler,
        RendezvousInfo,
        RendezvousParameters,
        RendezvousStoreInfo,
        rendezvous_handler_registry,
    )

    class OneMachine(RendezvousHandler):
        """The one agent is there at once, and nobody joins it later."""

        use_agent_store = True  # the ranks' own `init_process_group` meets at this store too

        def __init__(self, run_id: str) -> None:
            self._run_id = run_id
            self._store, self._port = loopback_store()

        def get_backend(self) -> str:
            return _NAME

        def get_run_id(self) -> str:
            return self._run_id

        def next_rendezvous(self) -> RendezvousInfo:
            store = PrefixStore(self._run_id, self._store)
            return RendezvousInfo(store, 0, 1, RendezvousStoreInfo(_LOOPBACK, self._port))

        def is_closed(self) -> bool:
            return False

        def set_closed(self) -> None:
            pass

        def num_nodes_waiting(self) -> int:
            return 0

        def shutdown(self) -> bool:
            return True

    def create(parameters: RendezvousParameters) -> RendezvousHandler:
        return OneMachine(parameters.run_id)

    rendezvous_handler_registry.register(_NAME, create)
    return _NAME


def loopback_store() -> tuple[TCPStore, int]:
    """A store of this process and the port at which others find it. Raises OSError or RuntimeError."""
    import torch
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    with socket.socket() as listening:
        listening.bind((_LOOPBACK, 0))
        listening.listen()
        port = listening.getsockname()[1]
        store = TCPStore(
            _LOOPBACK,
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listening.fileno(),
            # before, that kind takes no socket of ours (pytorch#150215)
            use_libuv=torch.__version__ >= (2, 8),  # type: ignore[operator]
        )
        listening.detach()  # the store has taken it
    return store, port
