"""Models and contrasts that the tests of the lenses share."""

import torch
from small_translator import TOKENISER, small_model

from regard_lab.models import LanguageModel, RecurrentTranslator
from regard_lab.seeing.lenses import find_contrast
from regard_lab.text import BEGIN, END
from regard_lab.text.pronouns import PRONOUNS, make_split

SENTENCES = make_split("valid", 6)


def contrast_of(sentence):
    """The pronoun of a sentence against the other two, in the grammar's own translation."""
    ids = TOKENISER.encode(sentence.target)
    others = [pronoun for pronoun in PRONOUNS if pronoun != sentence.pronoun]
    words = [word for word, _ in TOKENISER.words(ids)]
    place = max(at for at, word in enumerate(words) if word == sentence.pronoun)
    return find_contrast(TOKENISER, sentence.source, ids, sentence.pronoun, others, place)


CONTRASTS = [contrast_of(sentence) for sentence in SENTENCES]


def recurrent(**choices):
    torch.manual_seed(0)
    config = RecurrentTranslator.Config(vocab_size=TOKENISER.vocab_size, dim=16, hidden=14, dropout=0.0, **choices)
    return RecurrentTranslator(config).eval()


def language_model(**choices):
    torch.manual_seed(0)
    config = LanguageModel.Config(vocab_size=TOKENISER.vocab_size, dim=16, heads=2, layers=2, **choices)
    return LanguageModel(config).eval()


MODELS = {
    "transformer": small_model,
    "untied": lambda: small_model(tied=False, norm="post", positions="rotary"),
    "bahdanau": lambda: recurrent(attention="bahdanau"),
    "luong": lambda: recurrent(attention="luong-general", cell="lstm", input_feeding=True),
    "no attention": lambda: recurrent(attention="none"),
}


def odds_by_hand(model, contrast, source_vectors=None, written_vectors=None):
    """The log odds of one contrast from the model's own call, without the code of the lenses."""
    source, written = torch.tensor([contrast.source]), torch.tensor([contrast.written])
    logits = model(source, written, source_vectors=source_vectors, target_vectors=written_vectors)[0, -1]
    return logits[contrast.of] - torch.logsumexp(logits[list(contrast.instead_of)], 0)


def without_words(vectors, ids):
    """Embeddings (length, dim) with each word's replaced by their mean, and that mean."""
    words = torch.tensor([identifier not in (BEGIN, END) for identifier in ids])
    mean = vectors[words].mean(0)
    return torch.where(words[:, None], mean, vectors), mean
