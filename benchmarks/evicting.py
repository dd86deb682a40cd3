"""The loss of a trained language model after entries of its caches were dropped, and ids for each speculated call.

    python benchmarks/evicting.py RUN TEXT KEPT [DRAFT]

Rows of 512 ids: 384 are read, KEPT of their entries stay by each policy, and the other 128 are predicted. The figures
are in docs/recipes/streaming.md.
"""

import sys
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F

from regard.layers import record_attention
from regard.layers.caches import first_and_last, heavy_hitters, observed_keys
from regard_lab.decoding import Generator, Sampling
from regard_lab.models.language import LanguageState

ROW, READ, WINDOW = 512, 384, 16


@torch.inference_mode()
def losses(model, ids: torch.Tensor, count: int) -> dict[str, float]:
    """Nats for each predicted id, by policy, of rows of ids (rows, ROW)."""
    with record_attention(model, "received") as recording:
        state = model.start(ids[:, : READ - WINDOW], "dynamic")
        model.extend(ids[:, READ - WINDOW : READ], state)
    last = [details[1].received for details in recording.details.values()]
    total = [F.pad(a.received, (0, WINDOW)) + b.received for a, b in recording.details.values()]
    options = {"kv_heads": state.groups[0].caches.each[0].keys.shape[1]}
    policies = {
        "all": [torch.arange(READ)] * len(last),
        "window alone": [first_and_last(READ, count, first=0)] * len(last),
        "first 4 and window": [first_and_last(READ, count)] * len(last),
        "H2O": [heavy_hitters(one, count, **options) for one in total],
        "SnapKV": [observed_keys(one, count, window=WINDOW, **options) for one in last],
    }
    found = {}
    for name, each in policies.items():
        going = LanguageState([replace(state.groups[0], caches=state.groups[0].caches.copy())])
        for cache, kept in zip(going.groups[0].caches.each, each, strict=True):
            cache.keep(kept)
        logits = model.extend(ids[:, READ:-1], going)
        found[name] = F.cross_entropy(logits.flatten(0, 1), ids[:, READ + 1 :].flatten()).item()
    return found


if __name__ == "__main__":
    generator, text, count = Generator.load(sys.argv[1]), Path(sys.argv[2]).read_text("utf-8"), int(sys.argv[3])
    ids = torch.tensor(generator.tokeniser.encode(text))
    parts = [losses(generator.model, part, count) for part in ids[: len(ids) // ROW * ROW].view(-1, ROW).split(1)]
    print({name: round(sum(part[name] for part in parts) / len(parts), 4) for name in parts[0]})
    prompts = [text[at : at + 300] for at in range(0, 40 * 2000, 2000)]
    for speculate in ["lookup", *map(Generator.load, sys.argv[4:])]:
        for sampling in (None, Sampling(temperature=0.8)):
            written = generator.generate(prompts, max_tokens=64, sampling=sampling, speculate=speculate)
            plain = generator.generate(prompts, max_tokens=64, sampling=sampling)
            same = sum(one.ids == other.ids for (one,), (other,) in zip(written, plain, strict=True))
            rate = sum(one.tokens_per_step for (one,) in written) / len(prompts)
            print(
                f"{speculate}, {sampling or 'greedy'}: {rate:.2f} ids a call, {same} of {len(prompts)} texts the same"
            )
