"""Untrained models, contrasts and translators that the tests share; some write the grammar's own translations."""

from itertools import combinations

import torch

from regard_lab.decoding import Translation, Translator
from regard_lab.models import LanguageModel, RecurrentTranslator, TranslationTransformer
from regard_lab.seeing import AttentionMaps
from regard_lab.seeing.lenses import find_contrast
from regard_lab.text import BEGIN, END, Tokeniser
from regard_lab.text.pronouns import PRONOUNS, make_split, swap_adjective, swap_other, swap_referent

TEXTS = []
for sentence in make_split("train", 40):
    TEXTS += [sentence.source, sentence.target]
TOKENISER = Tokeniser.train(TEXTS, 420)


def small_model(seed=0, **settings):
    torch.manual_seed(seed)
    chosen = {"dim": 16, "heads": 2, "dropout": 0.0, **settings}
    model = TranslationTransformer(
        TranslationTransformer.Config(vocab_size=TOKENISER.vocab_size, **chosen)
    ).eval()
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

    s = len(source_words)
    t = len(target_words)
    return AttentionMaps(
        tuple(source_words), tuple(target_words), rows(s, s), rows(t, t, causal=True), rows(t, s)
    )


SENTENCES = make_split("valid", 6)


def contrast_of(sentence):
    """The pronoun of a sentence against the other two, in the grammar's own translation."""
    ids = TOKENISER.encode(sentence.target)
    others = [pronoun for pronoun in PRONOUNS if pronoun != sentence.pronoun]
    for number, (word, _) in enumerate(TOKENISER.words(ids)):
        if word == sentence.pronoun:
            place = number  # the last one counts
    return find_contrast(TOKENISER, sentence.source, ids, sentence.pronoun, others, place)


CONTRASTS = [contrast_of(sentence) for sentence in SENTENCES]


def recurrent(**choices):
    torch.manual_seed(0)
    config = RecurrentTranslator.Config(
        vocab_size=TOKENISER.vocab_size, dim=16, hidden=14, dropout=0.0, **choices
    )
    return RecurrentTranslator(config).eval()


def language_model(**choices):
    torch.manual_seed(0)
    config = LanguageModel.Config(
        vocab_size=TOKENISER.vocab_size, dim=16, heads=2, layers=2, **choices
    )
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
    source = torch.tensor([contrast.source])
    written = torch.tensor([contrast.written])
    logits = model(source, written, source_vectors=source_vectors, target_vectors=written_vectors)[
        0, -1
    ]
    return logits[contrast.of] - torch.logsumexp(logits[list(contrast.instead_of)], 0)


def without_words(vectors, ids):
    """Embeddings (length, dim) with each word's replaced by their mean, and that mean."""
    words = torch.tensor([identifier not in (BEGIN, END) for identifier in ids])
    mean = vectors[words].mean(0)
    return torch.where(words[:, None], mean, vectors), mean


TEST_SENTENCES = make_split("test", 24)


class GrammarTranslator(Translator):
    """Looks the grammar's own translations up instead of computing them."""

    def translate(self, lines, **options):
        targets = {}
        for sentence in (*TEST_SENTENCES, *make_split("valid", 12)):
            swapped = (swap_referent(sentence), swap_other(sentence), swap_adjective(sentence))
            for version in (sentence, *swapped):
                if version is not None:
                    targets[version.source] = version.target
        return [self._written(line, targets[line]) for line in lines]

    def _written(self, line, text):
        ids = tuple(self.tokeniser.encode(text))
        return Translation(line, text, tuple(self.tokeniser.encode(line)), ids, 0.0, 0.0, True)


def assert_apart(figure):
    """No text of a figure meets another one or leaves it."""
    figure.canvas.draw()
    width, height = figure.bbox.size
    boxes = [(text.get_window_extent(), text) for text in figure.texts]
    for box, text in boxes:
        assert min(box.x0, box.y0, width - box.x1, height - box.y1) >= 0, text
    for (box, text), (next_box, neighbour) in combinations(boxes, 2):
        across = min(box.x1, next_box.x1) - max(box.x0, next_box.x0)
        down = min(box.y1, next_box.y1) - max(box.y0, next_box.y0)
        assert across <= 1 or down <= 1, (text, neighbour)
