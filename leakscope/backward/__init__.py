"""A pipeline backward that retains nothing: whole or split, started from gradient edges, boxed.

Needs nothing of leakscope but this folder, and no package but torch. Written for torch 2.10 and newer, run on 2.13.

With ``torch.distributed.pipelining``, install it once; every schedule then runs on it:

    from leakscope.backward import install
    install()

In a hand-written pipeline, four rules replace a shrunk ``.data``, ``Variable._execution_engine`` and ``gc.collect()``:

1. Turn the stage's outputs into edges, send the outputs, wait, drop them. Backward starts from the edges.
2. Keep per microbatch only (edges, inputs); take it out of its queue before backward runs.
3. Receive gradients into a list and hand the list over with ``boxed=True``; so no frame keeps what is in it.
4. Send the gradients that come back, wait, drop them. No input keeps a ``.grad``.

Two stages in one process, where a list stands for the wire:

    >>> import torch
    >>> from leakscope.backward import output_edges, stage_backward
    >>> first, last = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)
    >>> wire, waiting = [], []
    >>> def forward_first(x):
    ...     outputs = [first(x).tanh()]
    ...     waiting.append((output_edges(outputs), x))   # rules 1 and 2
    ...     wire.append(outputs.pop().detach())          # isend, then wait: nothing here holds the output any more
    >>> def run_last():
    ...     received = [wire.pop().requires_grad_()]     # irecv, then wait
    ...     loss = [last(received[0]).square().mean()]
    ...     (grad,) = stage_backward(loss, None, received, boxed=True)
    ...     wire.append(grad)                            # rule 4
    >>> def backward_first():
    ...     edges, x = waiting.pop(0)
    ...     grads = [wire.pop()]                         # rule 3
    ...     return stage_backward(edges, grads, [x], boxed=True)
    >>> forward_first(torch.randn(2, 4)); run_last(); backward_first()
    (None,)
    >>> first.weight.grad is not None and last.weight.grad is not None
    True

For zero-bubble schedules replace `stage_backward` by `stage_backward_input` now (with ``park_grad=False``) and
`stage_backward_weight` later, and run the forward under `droppable_saves`, so that only what the weights'
gradients need is kept in between.

What a whole call costs without ``boxed=True``: the caller's list or tuple keeps every output and output gradient alive
until the call returns, whatever the callee deletes. Custom Functions that keep saved tensors in Python containers have
the same trouble; `save_boxed` and `take_boxed` are the way out.

Limits: a hook or ``retain_grad()`` on an activation at which weights branch off sees its gradient in both passes of a
split backward (what it returns counts once); reentrant checkpoints are not split (all runs in the input pass); of a
stage with a selective checkpoint, which recomputes once, the input pass has the weights' gradients ready; weights
that several layers take as they are, a shared bias say, cost the layers in between a second run of their input path.
"""

from __future__ import annotations

from .boxed import save_boxed, take_boxed
from .edges import output_edges
from .full import stage_backward
from .pipelining import Installed, install
from .saved import droppable_saves
from .split import stage_backward_input, stage_backward_weight

__all__ = [
    "Installed",
    "droppable_saves",
    "install",
    "output_edges",
    "save_boxed",
    "stage_backward",
    "stage_backward_input",
    "stage_backward_weight",
    "take_boxed",
]
