"""A translator that writes the grammar's own translations, with a model that was never trained."""

import torch

from regard_lab.decoding import Translation, Translator
from regard_lab.models import RecurrentTranslator, TranslationTransformer
from regard_lab.text import Tokeniser
from regard_lab.text.pronouns import make_split, swap_adjective, swap_other, swap_referent

SENTENCES = make_split("test", 24)
EVERY = [*SENTENCES, *make_split("valid", 12)]
TOKENISER = Tokeniser.train([text for one in make_split("train", 60) for text in (one.source, one.target)], 500)


class GrammarTranslator(Translator):
    """Looks translations up instead of computing them."""

    def translate(self, lines, **options):
        targets = {}
        for sentence in EVERY:
            for one in (sentence, swap_referent(sentence), swap_other(sentence), swap_adjective(sentence)):
                if one is not None:
                    targets[one.source] = one.target
        return [self._written(line, targets[line]) for line in lines]

    def _written(self, line, text):
        ids = tuple(self.tokeniser.encode(text))
        return Translation(line, text, tuple(self.tokeniser.encode(line)), ids, 0.0, 0.0, True)


def grammar_translator(**settings):
    torch.manual_seed(0)
    config = TranslationTransformer.Config(
        vocab_size=TOKENISER.vocab_size, dim=16, heads=2, dropout=0.0, encoder_layers=1, decoder_layers=1, **settings
    )
    return GrammarTranslator(TranslationTransformer(config).eval(), TOKENISER)


def recurrent_translator(attention):
    torch.manual_seed(0)
    config = RecurrentTranslator.Config(
        vocab_size=TOKENISER.vocab_size, dim=16, hidden=14, dropout=0.0, attention=attention
    )
    return GrammarTranslator(RecurrentTranslator(config).eval(), TOKENISER)
