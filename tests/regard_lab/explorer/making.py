"""Explorations of small random models, made once, and weights of any size."""

from dataclasses import replace
from functools import cache

import torch

from regard_lab.models import LanguageModel, TranslationTransformer
from regard_lab.seeing.explorer import explore_translation
from regard_lab.seeing.explorer.sources import compared
from regard_lab.text import Tokeniser
from regard_lab.walkthrough import walk_whole
from regard_lab.walkthrough.writing import shown_walk

SOURCE = "The animal didn't cross the street because it was too tired."
TARGET = "Das Tier überquerte die Straße nicht, weil es zu müde war."
OTHER = "The animal didn't cross the road because it was wide."
TOKENISER = Tokeniser.train([SOURCE, TARGET, "er sie es"] * 3, 400)
VIEWS = (
    "Reader",
    "Heads",
    "Heat map",
    "What if",
    "Pattern",
    "Walk-through",
    "Compare",
)


def translator(*, seed=0, **settings):
    torch.manual_seed(seed)
    chosen = {
        "dim": 16,
        "heads": 2,
        "encoder_layers": 3,
        "decoder_layers": 1,
        "dropout": 0.0,
        **settings,
    }
    return TranslationTransformer(
        TranslationTransformer.Config(vocab_size=TOKENISER.vocab_size, **chosen)
    ).eval()


def language_model():
    torch.manual_seed(0)
    config = LanguageModel.Config(vocab_size=TOKENISER.vocab_size, dim=16, heads=2, layers=2)
    return LanguageModel(config).eval()


@cache
def translation():
    """An encoder of three layers and a decoder of one, the question of the pronoun, a walkthrough and another model."""
    plain = explore_translation(
        translator(),
        TOKENISER,
        SOURCE,
        TOKENISER.encode(TARGET),
        title=f"{SOURCE} → {TARGET}",
        of="es",
        instead_of=("er", "sie"),
    )
    renamed = explore_translation(
        translator(seed=1), TOKENISER, OTHER, TOKENISER.encode(TARGET), title="the other"
    )
    return replace(compared(plain, renamed, "another model"), walk=shown_walk(walked()))


@cache
def plain_translation():
    """The same sentence without a question."""
    return explore_translation(translator(), TOKENISER, SOURCE, TOKENISER.encode(TARGET))


@cache
def walked():
    """Every step of a small encoder-decoder whose weights are drawn."""
    return walk_whole("Das Tier schlief", context="The animal slept", layers=1)


def weights(layers, heads, rows, columns=None, *, causal=False, seed=0):
    generator = torch.Generator().manual_seed(seed)
    scores = 2 * torch.randn(layers, heads, rows, columns or rows, generator=generator)
    if causal:
        scores = scores.masked_fill(
            torch.ones(rows, columns or rows, dtype=torch.bool).triu(1), -torch.inf
        )
    return scores.softmax(-1)


def log_probs_of_next(rows, ids):
    """The log-probability of each id after those before it, (ids,), from rows (ids, vocab); 0 for the first one."""
    following = rows[range(len(ids) - 1), ids[1:]]
    return torch.cat([following.new_zeros(1), following])


def probabilities_of_words(log_probs, spans):
    """The probability of each word, from the log-probabilities (ids,) of its ids."""
    return [float(log_probs[list(span)].sum().exp()) for span in spans]
