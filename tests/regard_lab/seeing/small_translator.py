"""A random translator over a vocabulary of real sub-words, and maps made by hand."""

import torch

from regard_lab.models import TranslationTransformer
from regard_lab.seeing import AttentionMaps
from regard_lab.text import Tokeniser
from regard_lab.text.pronouns import make_split

TOKENISER = Tokeniser.train([text for one in make_split("train", 40) for text in (one.source, one.target)], 420)


def small_model(seed=0, **settings):
    torch.manual_seed(seed)
    chosen = {"dim": 16, "heads": 2, "dropout": 0.0, **settings}
    model = TranslationTransformer(TranslationTransformer.Config(vocab_size=TOKENISER.vocab_size, **chosen)).eval()
    with torch.no_grad():  # sharper than a fresh model, so that rows differ visibly
        for name, parameter in model.named_parameters():
            if "to_q" in name or "to_k" in name:
                parameter.mul_(3)
    return model


def random_maps(source_words, target_words, layers=2, heads=2, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def rows(count, keys, causal=False):
        scores = 3 * torch.randn(layers, heads, count, keys, generator=generator)
        hidden = torch.ones(count, keys, dtype=torch.bool).triu(1) & causal
        return scores.masked_fill(hidden, -torch.inf).softmax(-1)

    s, t = len(source_words), len(target_words)
    return AttentionMaps(tuple(source_words), tuple(target_words), rows(s, s), rows(t, t, causal=True), rows(t, s))
