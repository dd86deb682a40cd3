from functools import partial

import pytest
import torch
from teaching import failing, starting, without_timing
from torch import nn

from regard.patterns import Full
from regard_lab.lessons import recurrent, stepping


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    without_timing(monkeypatch)
    monkeypatch.setattr(recurrent, "LENGTHS", (4, 9, 16, 64))


def test_chains_of_a_drawn_graph():
    """a -> b -> d and a -> d; c stands beside them."""
    a, b, c = (nn.Linear(2, 2) for _ in range(3))
    x, other = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    with stepping.marked_steps([a, b, c]):
        first = a(x)
        joined = b(first) + first
        beside = c(x) + c(other)
    after = a(x)  # not counted any more
    assert (stepping.longest_chain(joined), stepping.shortest_chain(joined, x)) == (2, 1)
    assert stepping.shortest_chain(joined, other) is None
    assert stepping.longest_chain(joined + beside) == 2
    assert stepping.longest_chain(after) == 0


def test_marked_steps_change_no_value_and_no_gradient():
    torch.manual_seed(0)
    layer, x = nn.Linear(3, 3), torch.randn(2, 3, requires_grad=True)
    with stepping.marked_steps([layer]):
        output = layer(x)
    assert torch.equal(output, layer(x))
    assert torch.equal(*(torch.autograd.grad(y.sum(), x)[0] for y in (output, layer(x))))


def test_one_layer_less_does_not_connect_the_words():
    for name in ("convolution", "dilated"):
        for length in (2, 5, 9, 10, 28):
            layers = stepping.count_steps(name, length, seed=0)["steps"]
            for count, connected in ((layers, True), (layers - 1, False)):
                words = stepping._leaves(length, 0)
                outputs = stepping.Convolutions(0, count, name == "dilated")(words)
                assert (float(stepping._gradient(outputs, words[0])) > 0) is connected


def test_a_network_that_forgets_its_state_is_seen(monkeypatch):
    def without_state(self, words):
        return [self.cell(word, word * 0) for word in words]

    monkeypatch.setattr(stepping.Recurrent, "forward", without_state)
    assert starting(failing("recurrent"), "A recurrent network takes", "There is no shortcut", "torch's GRU")


def test_other_gaps_are_seen(monkeypatch):
    real = stepping.Convolutions.__init__
    monkeypatch.setattr(
        stepping.Convolutions, "__init__", lambda self, seed, layers, dilated: real(self, seed, layers, not dilated)
    )
    assert starting(failing("recurrent"), "Causal convolutions of width 3", "Dilated convolutions")


def test_attention_word_by_word_is_seen(monkeypatch):
    def word_by_word(self, words):
        cache = self.layer.new_cache(batch=1)
        outputs, fed = [], 0.0
        for word in words:
            outputs.append(self.layer((word + fed)[:, None], cache=cache)[:, 0])
            fed = outputs[-1]
        return outputs

    monkeypatch.setattr(stepping.Attention, "forward", word_by_word)
    assert starting(failing("recurrent"), "An attention layer takes one step", "There is no shortcut")


def test_a_shorter_way_is_seen(monkeypatch):
    real = stepping.Recurrent.forward
    monkeypatch.setattr(
        stepping.Recurrent, "forward", lambda self, words: [state + words[0] for state in real(self, words)]
    )
    assert starting(failing("recurrent"), "There is no shortcut", "torch's GRU", "With random weights")


def test_other_cells_than_those_of_torch_are_seen(monkeypatch):
    real = stepping.Recurrent.forward
    monkeypatch.setattr(stepping.Recurrent, "forward", lambda self, words: real(self, [2 * word for word in words]))
    assert starting(failing("recurrent"), "torch's GRU")


def test_a_decoder_without_its_mask_is_seen(monkeypatch):
    monkeypatch.setattr("regard_lab.models.translation_transformer.Causal", Full)
    monkeypatch.setattr(recurrent, "TranslationConfig", partial(recurrent.TranslationConfig, decoder_pattern="full"))
    assert starting(failing("recurrent"), "A Transformer predicts all words")


def test_training_that_grows_with_the_length_is_seen(monkeypatch):
    real = recurrent.TranslationTransformer.forward

    def again(self, source, target):
        scores = real(self, source, target)
        for _ in range(target.shape[1]):
            scores = scores + self.decoder[0].self_attention(scores[..., :16]).sum()
        return scores

    monkeypatch.setattr(recurrent.TranslationTransformer, "forward", again)
    assert starting(failing("recurrent"), "The steps of this call do not grow", "A Transformer predicts all words")


def test_a_search_that_writes_two_words_at_once_is_seen(monkeypatch):
    def two(model, source, max_length, special):
        state = model.start(source)
        for _ in range(max_length // 2):
            model.step(torch.full((1,), 5), state)
        return [type("Written", (), {"ids": [5] * max_length})]

    monkeypatch.setattr(recurrent, "greedy_search", two)
    assert starting(failing("recurrent"), "Generation takes one call")
