"""Pipeline stages drawn from a seed: which operators, on which values, with which weights, and what comes out."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge, saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from .backward_stages import BoxedTanh, ScaledLinear

ROWS, WIDTH = 3, 4
"""Shape of every value; small, as it is the graph that matters."""


class TwoOutputs(torch.autograd.Function):
    """Two outputs whose gradients come as None where they were not used."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, weight)
        return x @ weight, x * 2

    @staticmethod
    def backward(ctx: Any, first: Tensor | None, second: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        grad_x = None if second is None else second * 2
        if first is None:
            return grad_x, None
        turned = first @ weight.t()
        return turned if grad_x is None else turned + grad_x, x.t() @ first


class HalvedInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(0.5)

    @staticmethod
    def backward(_: Any, grad: Tensor) -> Tensor:
        return grad * 0.5


class Walk:
    """One run through a stage or a block of it: the values so far, and the choices to come."""

    def __init__(self, stage: Generated, name: str, values: list[Tensor]) -> None:
        self.stage, self.name, self.values = stage, name, values
        self.choices = random.Random(name)
        self.chains: list[Tensor] = []

    def pick(self, weights: Any) -> Any:
        return weights[self.choices.randrange(len(weights))]

    def other(self) -> Tensor:
        return self.pick(self.values)

    def run(self, operators: list[str], steps: int) -> list[Tensor]:
        for step in range(steps):
            drawn = self.pick(operators)
            self.stage.drawn[drawn] += 1
            self.place = f"{self.name}.{step}"
            value = OPERATORS[drawn](self, self.other())
            self.stage.watched.append(StorageWeakRef(value.untyped_storage()))
            if self.stage.listens and value.requires_grad:
                value.register_hook(partial(_listen, self.stage.heard[self.place]))
            self.values.append(value)
        return self.values


def run_block(stage: Generated, name: str, *values: Tensor) -> Tensor:
    """What a checkpoint runs, twice; it draws the same both times."""
    simple = [name for name in stage.palette if not name.startswith(("checkpoint", "retained"))]
    return stage.linears[0](Walk(stage, name, list(values)).run([*simple, "linear", "gelu"], 3)[-1])


def _slices(walk: Walk, a: Tensor) -> Tensor:
    first, second = a.chunk(2, dim=1)
    return torch.cat([second, torch.tanh(first)] if walk.choices.random() < 0.5 else [second, second], dim=1)


def _in_place_slices(walk: Walk, a: Tensor) -> Tensor:
    filled = torch.zeros_like(a)
    filled[:, :2] = a[:, :2]
    filled[1:] = walk.other()[1:]
    return filled


def _in_place_view(walk: Walk, a: Tensor) -> Tensor:
    changed = a * walk.pick(walk.stage.scales)
    changed[:, 0].mul_(2)
    changed.t()[1].copy_(a[:, 3])
    return changed


def _largest(walk: Walk, a: Tensor) -> Tensor:
    largest, at = a.max(dim=1, keepdim=True)
    return a - largest if walk.choices.random() < 0.5 else a.gather(1, at).expand_as(a)


def _chain(walk: Walk, a: Tensor) -> Tensor:
    if not walk.chains or walk.choices.random() < 0.4:
        squares = walk.stage.squares
        walk.chains.append(torch.tanh(walk.pick(walk.chains or squares)) @ walk.pick(squares))
    return a @ walk.pick(walk.chains)


def _no_input(walk: Walk, _: Tensor) -> Tensor:
    one = walk.pick(walk.stage.squares)
    return F.embedding(torch.tensor([2, 0, 2]), one) if walk.choices.random() < 0.5 else (one.tanh() @ one)[:ROWS]


def _two_outputs(walk: Walk, a: Tensor) -> Tensor:
    first, second = TwoOutputs.apply(a, walk.pick(walk.stage.squares))
    return walk.pick([first, second, first * second])


def _attention(walk: Walk, a: Tensor) -> Tensor:
    query, key, value = (walk.pick(walk.stage.linears)(a)[None, None] for _ in range(3))
    return F.scaled_dot_product_attention(query, key, value)[0, 0]


def _conv(walk: Walk, a: Tensor) -> Tensor:
    return F.relu(walk.stage.batch_norm(walk.stage.conv(a[:, None]))).sum(1)


def _autocast(walk: Walk, a: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return F.linear(
            F.gelu(F.linear(a.float(), walk.pick(walk.stage.floats))), walk.pick(walk.stage.floats)
        ).double()


def _complex(walk: Walk, a: Tensor) -> Tensor:
    turned = torch.fft.fft(a) * walk.stage.phases
    return torch.view_as_real(turned).sum(-1) + turned.abs()


def _clones_saved(walk: Walk, a: Tensor) -> Tensor:
    with saved_tensors_hooks(lambda saved: saved.detach().clone(), lambda packed: packed):
        return torch.sin(walk.pick(walk.stage.linears)(a)).exp()


def _listen(heard: list[Tensor | None], grad: Tensor | None) -> None:
    heard.append(None if grad is None else grad.clone())


def _bent(grad: Tensor | None) -> Tensor | None:
    """No linear function: it tells a gradient that comes in one piece from one in two."""
    return None if grad is None else torch.tanh(grad)


def _hooked(_: Walk, a: Tensor) -> Tensor:
    value = a + 1
    if value.requires_grad:
        value.register_hook(_bent)
    return value


def _retained(walk: Walk, a: Tensor) -> Tensor:
    value = torch.tanh(a)
    if value.requires_grad:
        value.retain_grad()
        walk.stage.retained.append(value)
    return value


def _checkpoint(walk: Walk, a: Tensor, **options: Any) -> Tensor:
    return checkpoint(run_block, walk.stage, walk.place, a, walk.other(), **options)


KEPT = partial(create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default, torch.ops.aten.mm.default])

OPERATORS: dict[str, Callable[[Walk, Tensor], Tensor]] = {
    "linear": lambda walk, a: walk.pick(walk.stage.linears)(a),
    "matmul": lambda walk, a: a @ walk.pick(walk.stage.squares),
    "turned": lambda walk, a: a @ walk.pick(walk.stage.squares).t(),
    "scaled": lambda walk, a: a * walk.pick(walk.stage.scales),
    "norm": lambda walk, a: walk.pick(walk.stage.norms)(a),
    "frozen": lambda walk, a: walk.stage.frozen(a),
    "gelu": lambda _, a: F.gelu(a),
    "tanh": lambda _, a: torch.tanh(a),
    "softmax": lambda _, a: F.softmax(a, dim=1),
    "dropout": lambda _, a: F.dropout(a, 0.4),
    "product": lambda walk, a: a * torch.tanh(walk.other()),
    "sum": lambda walk, a: a + walk.other() + a,
    "chosen": lambda walk, a: torch.where(a > 0, a, walk.other()),
    "detached": lambda walk, a: a * walk.other().detach(),
    "in_place": lambda walk, a: (a + walk.pick(walk.stage.scales)).relu_(),
    "in_place_slices": _in_place_slices,
    "in_place_view": _in_place_view,
    "in_place_function": lambda _, a: HalvedInPlace.apply(a * 3),
    "slices": _slices,
    "largest": _largest,
    "function": lambda walk, a: ScaledLinear.apply(a, 0.5, walk.pick(walk.stage.squares)),
    "boxed_function": lambda _, a: BoxedTanh.apply(a),
    "two_outputs": _two_outputs,
    "chain": _chain,
    "no_input": _no_input,
    "attention": _attention,
    "conv": _conv,
    "autocast": _autocast,
    "complex": _complex,
    "clones_saved": _clones_saved,
    "hooked": _hooked,
    "retained": _retained,
    "checkpoint": lambda walk, a: _checkpoint(walk, a, use_reentrant=False),
    "checkpoint_selective": lambda walk, a: _checkpoint(walk, a, use_reentrant=False, context_fn=KEPT),
    "checkpoint_reentrant": lambda walk, a: _checkpoint(walk, a, use_reentrant=True),
}
ORDINARY = ["linear", "gelu", "matmul", "tanh", "norm", "scaled", "product", "sum"]


class Generated(nn.Module):
    """A stage of a few operators, drawn from a small choice of them, so that each meets itself and few others often."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        choices = random.Random(f"stage {seed}")
        self.seed, self.steps = seed, choices.randint(3, 12)
        # Every operator comes round, and each time with others.
        names = list(OPERATORS)
        self.palette = [names[seed % len(names)], *choices.sample(names, 2), *choices.sample(ORDINARY, 2)]
        self.bends, self.listens, self.which = choices.random() < 0.2, choices.random() < 0.4, choices.random()
        self.linears = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.conv, self.batch_norm, self.frozen = (
            nn.Conv1d(1, 2, 3, padding=1),
            nn.BatchNorm1d(2),
            nn.Linear(WIDTH, WIDTH),
        )
        self.frozen.requires_grad_(False)
        self.squares = nn.ParameterList(torch.randn(WIDTH, WIDTH) for _ in range(3))
        self.scales = nn.ParameterList([torch.rand(WIDTH) + 0.5, torch.tensor(0.7)])
        self.phases = nn.Parameter(torch.randn(WIDTH, dtype=torch.cdouble))
        self.double()
        self.floats = nn.ParameterList(torch.randn(WIDTH, WIDTH) for _ in range(2))
        if self.bends:
            for weight in (*self.squares, *self.scales):
                weight.register_hook(_bent)
        self.start()

    def start(self) -> None:
        """Forget what was seen of the last run."""
        self.heard: dict[str, list[Tensor | None]] = defaultdict(list)
        self.drawn: Counter[str] = Counter()
        self.watched: list[StorageWeakRef] = []
        self.retained: list[Tensor] = []
        self.zero_grad()

    def forward(self, *inputs: Tensor) -> Any:
        torch.manual_seed(self.seed)
        walk = Walk(self, f"stage {self.seed}", list(inputs))
        candidates = [value for value in walk.run(self.palette, self.steps)[-4:] if value.requires_grad]
        if not candidates:
            candidates = [walk.other() @ self.squares[0]]
        outputs = [walk.pick(candidates) for _ in range(1 + int(3 * self.which))]
        if self.which < 0.1:
            return (outputs[0].square().mean(),)
        if self.which > 0.8:
            return {"first": outputs[0], "others": [(outputs[1:], "a name", None)], "plain": torch.ones(2)}
        return tuple(outputs[:1] if self.which < 0.3 else [*outputs, outputs[0].t()])


def make_inputs(seed: int) -> list[Tensor]:
    """One to three leaves; some stages start with no gradient to give back at all, some with an input left unused."""
    choices = random.Random(f"inputs {seed}")
    generator = torch.Generator().manual_seed(seed)
    needed = [choices.random() < 0.8 for _ in range(choices.randint(1, 3))]
    return [torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.double).requires_grad_(one) for one in needed]


def most_summands(roots: list[Tensor]) -> int:
    """How many gradients meet at one place at the most: a sum of two is the same in any order, one of three is not."""
    meet: Counter[tuple[Node, int]] = Counter()
    pending: list[tuple[Node | None, int]] = []
    for root in roots:
        edge = get_gradient_edge(root)
        pending.append((edge.node, edge.output_nr))
    seen: set[Node] = set()
    while pending:
        node, number = pending.pop()
        if node is None:
            continue
        meet[node, number] += 1
        if node not in seen:
            seen.add(node)
            pending += node.next_functions
    return max(meet.values())
