"""Wherever a number is meant, NumPy's scalars and 0-d tensors are numbers; what is kept is Python's own."""

from number_kinds import REAL, WHOLE

from regard.arguments import of_kind
from regard_lab.decoding import SpecialIds
from regard_lab.models import LanguageConfig
from regard_lab.text import Pair, TokenBatches, split_by_hash


def test_arguments_that_mean_a_number_take_any_kind_of_number():
    pairs = [Pair(f"source {n}", f"target {n}") for n in range(40)]
    lengths = [3, 9, 4, 8, 3]
    special = SpecialIds(2, 3, (0, 1))
    for n in WHOLE:
        assert TokenBatches(lengths, 18, n(5)).at(0) == TokenBatches(lengths, 18, 5).at(0)
        config = LanguageConfig(vocab_size=50, dim=16, heads=2, hidden_dim=n(24))
        assert type(config.hidden_dim) is int
        assert config.hidden_dim == 24
        made = SpecialIds(n(2), n(3), [n(0), n(1)])
        assert (made, repr(made)) == (special, repr(special))
        assert of_kind("max_words", n(3), int, "a whole number") == 3
    for x in REAL:
        assert split_by_hash(pairs, x(0.25), x(0.25)) == split_by_hash(pairs, 0.25, 0.25)
