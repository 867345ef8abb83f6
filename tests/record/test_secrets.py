"""Secrets in command lines are masked in everything that a run writes."""

from __future__ import annotations

import json

import pytest

from leakscope.run import secrets
from leakscope.run.rows import EndKind
from leakscope.run.secrets import MASK, masked, without

HUGGING = "hf_" + "aB3" * 11
AMAZON = "AKIA" + "IOSFODNN7EXAMPLE"
HASH = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b"

HIDDEN = {
    ("--api-key=XXXX",): ("--api-key=****",),
    ("--token", "XXXX"): ("--token", MASK),
    ("--password", "hunter2", "train.json"): ("--password", MASK, "train.json"),
    ("--hf-token=abc", "--lr", "0.1"): ("--hf-token=****", "--lr", "0.1"),
    ("--apiKey=x", "dbPassword=x", "PGPASSWORD=x"): ("--apiKey=****", "dbPassword=****", "PGPASSWORD=****"),
    ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n",): (MASK,),
    ("AWS_SECRET_ACCESS_KEY=a/b+c",): ("AWS_SECRET_ACCESS_KEY=****",),
    ("--key", "abcdefgh12345678"): ("--key", MASK),
    (HUGGING,): (MASK,),
    (f"s3://{AMAZON}/data",): ("s3://****/data",),
    ("--db=postgres://me:pw@host:5432/runs",): ("--db=postgres://me:****@host:5432/runs",),
    ("--tracker", "https://me:p:w@host/x?y=1"): ("--tracker", "https://me:****@host/x?y=1"),
    ('{"lr": 0.1, "api_key": "abc", "steps": 3}',): ('{"lr": 0.1, "api_key": "****", "steps": 3}',),
    ("--header", "Authorization: Bearer abc.def"): ("--header", "Authorization: Bearer ****"),
}

SHOWN = (
    ("train.py", "--lr", "0.1", "--out", "/home/me/runs/2024-01-01_resnet50_b256"),
    ("--max-tokens", "512", "--tokens=1_000_000", "--tokenizer", "gpt2", "--tokenizer=meta-llama/Llama-2-7b-hf"),
    ("--pad-token", "<|endoftext|>", "--eos_token=</s>", "--mask-token", "[MASK]", "--token", "3"),
    ("--num-key-value-heads", "8", "--key-dim=64", "--image-key", "observation.images.top", "--sort-key", "length"),
    ("--dataset_key=imagenet_1k_val_224", "--use-auth-token", "--data", "d.json", "--return-token", "True"),
    ("--commit", HASH, "--sha=" + HASH * 2, "task-classification_long_name_v2", "sk-learn-pipeline-for-tests"),
    ("--password", "--verbose", "secretary.py", "--keyboard", "qwerty", "--monKey=a", "--passes", "3"),
    ("model.tokenizer=x", "optim.key=a", "s3://bucket/key=value/part.parquet", "https://host:8080/path@v1"),
    ("", "-", "--", "=", "--=", "a=b=c", "naïve=é", "\udcff", "two\nlines", "-m", "pack.train"),
)


@pytest.mark.parametrize("words", HIDDEN, ids=range(len(HIDDEN)))
def test_a_secret_is_masked_and_nothing_around_it(words: tuple[str, ...]) -> None:
    assert masked(words) == HIDDEN[words]


@pytest.mark.parametrize("words", SHOWN, ids=range(len(SHOWN)))
def test_other_words_are_shown(words: tuple[str, ...]) -> None:
    assert masked(words) == words


def test_a_secret_is_masked_in_error_messages() -> None:
    words = ("--token", "abcdefgh-1", "--password", "me", f"--db=https://u:{HASH}@host")
    assert without(f"no such token 'abcdefgh-1' ({HASH}) for me", words) == "no such token '****' (****) for me"
    assert without("nothing", ()) == "nothing"


def test_json_of_a_run_contains_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "_concealed", {})
    secrets.conceal(("--password", 'quote"d\nlines', "--token", "finished"))
    data = {"finished": ["it has finished", EndKind.FINISHED, 3, None], "deep": [{"x": ('of quote"d\nlines',)}]}
    assert json.loads(secrets.json_of(data)) == {
        "finished": ["it has ****", "finished", 3, None], "deep": [{"x": ["of ****"]}],
    }  # fmt: skip


def test_long_words_take_no_time() -> None:
    words = ("a" * 100_000, "--x=" + "a-" * 50_000, "?" * 10_000)
    assert masked(words) == words
