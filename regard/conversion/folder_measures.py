"""Measures of converted Hugging Face folders, with the models of transformers: predictions, and speed of decoding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from regard.conversion.decoding_speed import Speed, contexts_of, decoder_of_transformers, decoding_speed
from regard.conversion.distillation import Agreement, agreement
from regard.text.packages import needed

MEASURED_ROWS = 8  # of the held-out text; their logits are kept while the other model is loaded


def load_folder(folder: Path) -> Any:
    """The model of a folder in its own dtype, as transformers loads it."""
    with needed("transformers", "measuring a Hugging Face folder", "transformers"):
        from transformers import AutoModelForCausalLM
    return AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()


@torch.no_grad()
def agreement_of_folders(folder: Path, out: Path, ids: torch.Tensor) -> Agreement:
    """The agreement of the models of two folders on ids (rows, length); one of them is in memory at a time."""
    found = []
    for each in (folder, out):
        model = load_folder(each)
        found.append([model(row[None], use_cache=False).logits[0, :-1].float() for row in ids[:MEASURED_ROWS]])
        del model
    return agreement(zip(*found, [row[1:] for row in ids[:MEASURED_ROWS]], strict=True))


def speed_of_folders(folder: Path, out: Path) -> list[Speed]:
    """How fast the models of two folders decode; both are in memory."""
    models = [load_folder(each) for each in (folder, out)]
    contexts = contexts_of(getattr(models[0].config, "max_position_embeddings", None))
    return decoding_speed(*(decoder_of_transformers(model) for model in models), contexts)
