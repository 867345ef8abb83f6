"""A small Llama that a Trainer trains, and what can be kept of each step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

SIZES = {
    "vocab_size": 32, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
}  # fmt: skip


class Texts(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(0, 32, (64,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


class Keeps(Trainer):  # type: ignore[misc]
    """Keeps something of each step."""

    what = ""

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        self.kept: list[Any] = []

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
        outputs = model(**inputs, use_cache=True)
        if self.what == "loss":
            # one that is kept for a log and never goes through a backward
            self.kept.append(outputs.logits.float().logsumexp(-1).mean())
        elif self.what == "past_key_values":
            self.kept.append(outputs.past_key_values)
        elif self.what == "raises" and self.state.global_step == 9:
            raise ZeroDivisionError
        return (outputs.loss, outputs) if return_outputs else outputs.loss


class AddsAdapters(TrainerCallback):  # type: ignore[misc]
    """Tries a new adapter at each evaluation."""

    def on_evaluate(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        given["model"].add_adapter(f"trial_{state.global_step}", LoraConfig(r=16, target_modules=["q_proj"]))


def lora(model: Any) -> Any:
    return get_peft_model(model, LoraConfig(r=16, target_modules=["q_proj"]))


def train(
    folder: Path, what: str, *callbacks: Any, wrap: Callable[[Any], Any] = lambda model: model, **changes: Any
) -> Any:
    """Train for twelve steps and keep `what` of each; gives the Trainer."""
    model = wrap(LlamaForCausalLM(LlamaConfig(**SIZES)))
    given = {
        "output_dir": str(folder),
        "max_steps": 12,
        "per_device_train_batch_size": 4,
        "use_cpu": True,
        "report_to": [],
        "save_strategy": "no",
        "logging_steps": 4,
        "disable_tqdm": True,
    }
    Keeps.what = what
    few = torch.utils.data.Subset(Texts(), range(2))
    arguments = TrainingArguments(**{**given, **changes})
    trainer = Keeps(model, arguments, train_dataset=Texts(), eval_dataset=few, callbacks=list(callbacks))
    trainer.train()
    return trainer
