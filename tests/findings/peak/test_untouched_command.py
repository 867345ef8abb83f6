"""`leakscope run` on a script that keeps memory which no step touches: told is what nobody reads again."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

MIB = 1 << 20
SCRIPT = """
    import copy
    import sys

    import numpy as np
    import torch
    from torch import nn

    def attempt(size):
        hidden = torch.randn(size, 1024)
        raise ValueError(f"a batch of {size} does not fit")

    class Trainer:
        def __init__(self):
            self.net = nn.Linear(256, 1024)
            self.ema = copy.deepcopy(self.net)

        def fit(self, batches, teacher, validation):
            optimizer = torch.optim.SGD(self.net.parameters(), lr=1e-3)
            for epoch in range(2):
                for batch in batches:
                    optimizer.zero_grad()
                    self.net(batch).pow(2).mean().backward()
                    optimizer.step()
                self.ema.load_state_dict(self.net.state_dict())
                teacher(validation).mean()

    def main():
        try:
            attempt(2048)
        except ValueError as error:
            sys.last_value, sys.last_traceback = error, error.__traceback__
        batches = torch.randn(320, 256).split(32)
        validation, teacher, test = torch.randn(4096, 256), nn.Linear(256, 256), torch.randn(4096, 256)
        checkpoint = {"weight": torch.randn(1024, 256), "state": [torch.randn(1024, 256)]}
        records = np.ones((1024, 1024))
        over_records = torch.from_numpy(records)
        for_workers = torch.ones(1024, 256).share_memory_()
        trainer = Trainer()
        trainer.net.weight.data.copy_(checkpoint["weight"])
        trainer.fit(batches, teacher, validation)
        trainer.net(test)
        records.sum()

    main()
"""
Command = Callable[..., "subprocess.CompletedProcess[str]"]


def test_a_checkpoint_and_a_stored_traceback_are_idle_and_what_is_read_later_is_not(
    script: Callable[[str], Path], leakscope: Command
) -> None:
    done = leakscope("run", "-q", "--json", "-o", "run", "--fail-on-avoidable", "9 MiB", script(SCRIPT))
    told = json.loads(done.stdout)
    assert (told["verdict"], done.returncode) == ("clean", 23), done.stderr
    found = {f["subject"]: f for f in told["findings"]}
    assert {f["severity"] for f in found.values()} == {"avoidable"}
    idle = {name: f["retained_bytes"] for name, f in found.items() if f["rule"] == "idle-memory"}
    assert idle == {"checkpoint in main()": 2 * MIB, "sys.last_value and sys.last_traceback": 8 * MIB}
