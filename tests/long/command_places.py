"""What hostile invocations of commands are given: runs, data, and files that are not what a command expects."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import torch

TINY = ("--steps", "2", "--dim", "8", "--heads", "2", "--layers", "1", "--vocab-size", "300", "--cpu")
# Sensible values of parameters by command; a command that is not here gets some for the parameters it requires.
BASES: dict[str, dict[str, str]] = {
    **{
        f"train {name}": {
            "data": data, "out": "new", "steps": "2", "dim": "8", "heads": "2", "vocab_size": "300", "cpu": ""
        }
        for name, data in (("translation", "{pairs}"), ("language-model", "{text}"), ("masked-words", "{text}"),
                           ("classifier", "{labels}"))
    },
    "convert kv-heads": {"model": "{language_model}", "kv_heads": "1", "out": "new"},
    "demo": {"out": "new", "steps": "2"},
    "translate": {"run": "{translator}", "sentences": "a b"},
    "generate": {"run": "{language_model}", "prompts": "a", "max_tokens": "3"},
    "classify": {"run": "{classifier}", "texts": "a b"},
    "evaluate": {"run": "{translator}", "test": "{pairs}"},
    "average": {"run": "{translator}", "out": "new", "last": "2"},
    "compare": {"data": "{pairs}", "models": "none", "steps": "2", "dim": "8", "out": "new"},
    "show": {"pattern": "causal"},
    "plan": {"q_len": "8"},
    "approximation": {"file": "{tensors}"},
    "walkthrough": {"text": "a b"},
    "view": {"run": "{translator}", "text": "a b", "export": "new.html"},
    "lesson": {"name": "causal"},
    "lenses": {"run": "{translator}", "sentences": "2"},
    "bench": {"names": "plain", "quick": ""},
}  # fmt: skip
# Files and folders, one of which is what a parameter wants at most.
PLACES = tuple(
    f"{{{name}}}"
    for name in ("folder", "file", "empty", "binary", "broken", "torn", "foreign", "tensors", "translator",
                 "language_model", "classifier", "pairs")
)  # fmt: skip


def inputs(folder: Path, run_command: Callable[..., None]) -> dict[str, str]:
    """Make the inputs in a folder; their paths by name."""
    from regard.storage import save_tensors

    folder.mkdir(parents=True)
    at = {name: folder / name for name in ("translator", "language_model", "classifier", "broken", "torn", "foreign")}
    at |= {"folder": folder / "a folder", "file": folder / "file", "empty": folder / "empty.tsv"}
    at |= {"binary": folder / "binary.tsv", "text": folder / "text.txt", "pairs": folder / "pairs.tsv"}
    at |= {"labels": folder / "labels.tsv", "tensors": folder / "qkv.safetensors"}
    at["folder"].mkdir()
    (at["folder"] / "diary.txt").write_text("mine")
    at["file"].write_text("neither a run nor a table\n")
    at["empty"].write_text("")
    at["binary"].write_bytes(bytes(range(256)) * 20)
    at["text"].write_text("a few words of text and some more\n" * 60)
    at["pairs"].write_text("".join(f"a {n} b\tein {n} c\n" for n in range(60)))
    at["labels"].write_text("".join(f"{'good' if n % 2 else 'bad'}\ta text {n}\n" for n in range(60)))
    save_tensors(at["tensors"], {name: torch.ones(1, 2, 6, 4) for name in "qkv"})
    for name, command, data in (
        ("translator", "translation", "pairs"), ("language_model", "language-model", "text"),
        ("classifier", "classifier", "labels"),
    ):  # fmt: skip
        run_command("train", command, "--data", str(at[data]), "--out", str(at[name]), *TINY)
    shutil.copytree(at["translator"], at["broken"])
    for path in at["broken"].rglob("*.json"):
        path.write_text('{"kind": [')
    shutil.copytree(at["translator"], at["torn"])
    for path in at["torn"].rglob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:100])
    at["foreign"].mkdir()
    (at["foreign"] / "config.json").write_text('{"model_type": "llama", "num_attention_heads": 8}')
    return {name: str(path) for name, path in at.items()}
