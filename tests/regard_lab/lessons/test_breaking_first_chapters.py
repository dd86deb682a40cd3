"""Claims of the lessons of "Why attention" and "Inside one layer" fail when what they are about is broken."""

import torch
from teaching import Computed, changed_report, failing, starting

import regard as rg
from regard.positions import Sinusoidal
from regard_lab.models import TranslationTransformer
from regard_lab.models.recurrent import BahdanauCell, LuongCell, MemoryAttention
from regard_lab.models.recurrent.cells import CellState, top
from regard_lab.teaching import seeded, stepping


def test_one_sentence_with_ids_in_the_order_of_the_text():
    assert starting(
        failing("one_sentence", ids=torch.arange(6)),
        "The ids of",
        "The scores of the second word",
        "The weights of the second word",
        "The context vector of the second word",
    )


def test_one_sentence_without_the_scale():
    unscaled = failing("one_sentence", alpha=Computed(lambda omega: omega.softmax(-1)))
    assert starting(unscaled, "The weights of the second", "The context vector of")


def test_one_sentence_with_another_attention(monkeypatch):
    attention = rg.attention
    monkeypatch.setattr(rg, "attention", lambda q, k, v: attention(2 * q, k, v))
    claims = "One call of rg.attention", "With words as columns"
    assert starting(failing("one_sentence"), *claims)


def test_recurrent_steps(monkeypatch):
    """A network without a state, the other gaps for both kinds of convolutions, attention word by word."""

    def forward_without_state(self, words):
        return [self.cell(word, word * 0) + words[0] for word in words]

    def forward_word_by_word(self, words):
        cache = self.layer.new_cache(batch=1)
        outputs = []
        fed = 0.0
        for word in words:
            outputs.append(self.layer((word + fed)[:, None], cache=cache)[:, 0])
            fed = outputs[-1]
        return outputs

    make = stepping.ConvolutionNetwork.__init__
    monkeypatch.setattr(
        stepping.ConvolutionNetwork,
        "__init__",
        lambda self, seed, layers, dilated: make(self, seed, layers, not dilated),
    )
    monkeypatch.setattr(stepping.RecurrentNetwork, "forward", forward_without_state)
    monkeypatch.setattr(stepping.AttentionNetwork, "forward", forward_word_by_word)
    assert starting(
        failing("recurrent", LENGTHS=(4, 9, 16, 64), lstmn_steps=1),
        "A recurrent network takes",
        "Causal convolutions of width 3",
        "Dilated convolutions connect",
        "An attention layer takes one",
        "There is no shortcut",
        "torch's GRU computes",
        "An LSTM that attends",
        "With random weights the gradient",
    )


def test_recurrent_translators(monkeypatch):
    """Training that grows with the length, a search that writes two words at once, and a slow attention."""

    def forward_attending_once_more_for_each_word(self, source, target):
        scores = forward(self, source, target)
        for _ in range(target.shape[1]):
            scores = scores + self.decoder[0].self_attention(scores[..., :16]).sum()
        return scores

    def write_two_at_once(model, source, max_tokens, special):
        state = model.start(source)
        for _ in range(max_tokens // 2):
            model.step(torch.full((1,), 5), state)

    forward = TranslationTransformer.forward
    monkeypatch.setattr(
        TranslationTransformer, "forward", forward_attending_once_more_for_each_word
    )
    monkeypatch.setattr("regard_lab.decoding.greedy_search", write_two_at_once)
    changed_report(monkeypatch, "recurrent")["causal"][0]["median"] *= 9
    assert starting(
        failing("recurrent", LENGTHS=(4, 9, 16, 64)),
        "A Transformer predicts all words",
        "The steps of this call do not grow",
        "Generation takes one call",
        "On one core, for one text",
    )


def test_fixed_vector(monkeypatch):
    """The decoder reads every state where it should read one vector, and other shares stand in the report."""
    rows = changed_report(monkeypatch, "length_story")["rows"]
    for model, length, share in (
        ("transformer", "4", 0.5),
        ("luong-general", "12", 0.5),
        ("transformer", "16", 0.9),
    ):
        first_seed = next(row for row in rows if row["model"] == model)
        first_seed["accuracy"][length] = share

    def with_attention(new_model):
        return lambda name: new_model("bahdanau" if name == "none" else name)

    assert starting(
        failing("fixed_vector", LENGTHS=(1, 2, 4), new_model=Computed(with_attention)),
        "Through one vector of 8",
        "Without attention the decoder reads",
        "Trained models with and without",
        "At the longest training length",
        "Beyond the training lengths",
    )


def test_fixed_vector_with_attention_to_one_state(monkeypatch):
    remember = MemoryAttention.remember
    monkeypatch.setattr(
        MemoryAttention, "remember", lambda self, states, live=None: remember(self, states[:, -1:])
    )
    claims = "With attention, every further word", "With attention the bytes grow"
    assert starting(failing("fixed_vector", LENGTHS=(1, 2, 4)), *claims)


def test_alignment(monkeypatch):
    """Bahdanau's cell attends after its update, Luong's before it, and nothing is fed."""

    def attend_after(self, x, state, memory):
        recurrent = self._advance(torch.cat([x, 0 * state.recurrent], -1), state.recurrent)
        context = self._attend(top(recurrent), memory, state.place)
        return torch.cat([recurrent, context], -1), CellState(recurrent, None, state.place + 1)

    def attend_before(self, x, state, memory):
        context = self._attend(self.hidden(state.recurrent), memory, state.place)
        fed = x if state.fed is None else torch.cat([x, state.fed], -1)
        recurrent = self._advance(fed, state.recurrent)
        output = self._combine(context, self.hidden(recurrent))
        return output, CellState(recurrent, state.fed, state.place + 1)

    monkeypatch.setattr(BahdanauCell, "forward", attend_after)
    monkeypatch.setattr(LuongCell, "forward", attend_before)
    assert starting(
        failing("alignment"),
        "Both cells compute",
        "Bahdanau's weights are computed",
        "Luong's weights are computed",
        "Bahdanau's context enters",
        "With input feeding",
        "Two LSTM cells",
    )


def test_scale():
    exchanged = failing("scale", KINDS={"unscaled": None, "scaled": 1.0})
    assert starting(
        exchanged,
        "Unscaled scores spread",
        "The entropy of unscaled weights",
        "The gradient that reaches unscaled",
        "With scaling, the entropy",
        "With scaling, the gradient",
    )


def test_positions_with_a_layer_that_knows_the_order():
    causal_layer = seeded(0, rg.MultiHeadAttention, 64, 4, pattern="causal")
    claims = "Without positions, reversing", "So it is for any order"
    assert starting(failing("positions", layer=causal_layer), *claims)


def test_positions_that_are_all_the_same(monkeypatch):
    monkeypatch.setattr(
        Sinusoidal, "forward", lambda self, places: torch.ones(*places.shape, self.dim)
    )
    claims = "Wavelengths grow", "PE(pos + k) equals", "With positions, the vector"
    assert starting(failing("positions"), *claims)


def test_causal_without_a_mask():
    unmasked = failing("causal", masked=Computed(lambda weights: weights))
    claims = "If weights are masked", "The three steps give", "Both are the weights"
    assert starting(unmasked, *claims)


def test_causal_with_exchanged_patterns():
    def exchange_patterns(distance_moved):
        return lambda pattern: distance_moved("causal" if pattern is None else None)

    exchanged = failing("causal", distance_moved=Computed(exchange_patterns))
    claims = "Replacing later words changes no", "Without the mask, replacing"
    assert starting(exchanged, *claims)


class CarelessLayer(rg.MultiHeadAttention):
    """Cross-attention that reads one more key, a zero, ignores the pattern and mixes neighbouring cells."""

    def forward(self, x, context, pattern=None):
        with_another_key = torch.cat([context, 0 * context[:, :1]], 1)
        z = super().forward(x, context=with_another_key)
        return z + 0.1 * z.roll(1, 1)


def test_cross_with_a_careless_layer(monkeypatch):
    monkeypatch.setattr(rg, "MultiHeadAttention", CarelessLayer)
    assert starting(
        failing("cross", NOISE=30.0),
        "The output has the image's shape",
        "The layer computes the formula",
        "Cells are independent",
        "Every cell gives its largest",
        "The pattern “causal” between",
    )


def test_cross_with_the_sum_of_the_heads():
    summed = Computed(lambda per_head: per_head[0].sum(0).detach())
    assert starting(failing("cross", weights=summed), "The weights of each cell sum to 1.")


def test_one_head_with_heads_that_are_alike():
    """Heads that read "cat" only, heads of equal weights, keys on a line, and a layer with a bias."""

    def normal_for_one_head(normal):
        def equal_for_all_heads(seed, *shape):
            if len(shape) < 4:
                return normal(seed, *shape)
            batch, _, length, head_dim = shape
            return normal(seed, batch, 1, length, head_dim).expand(shape)

        return equal_for_all_heads

    def add_bias(two_heads):
        two_heads.to_output.bias = torch.nn.Parameter(torch.zeros(16).double())
        return two_heads

    alike = failing(
        "one_head",
        READ_BY_HEADS={1: [(1,)], 2: [(1,), (1,)]},
        normal=Computed(normal_for_one_head),
        circle=Computed(lambda circle: circle * torch.tensor([1.0, 0.0])),
        two_heads=Computed(add_bias),
    )
    assert starting(
        alike,
        "One head can attend",
        "One head returns the mean",
        "Two heads of half the size",
        "A head of two numbers",
        "With random weights too",
        "The number of heads changes",
    )


def test_one_head_that_scores_by_distance(monkeypatch):
    changed_report(monkeypatch, "one_head")["heads"][0]["exact_match"] = 0.8
    by_distance = Computed(lambda q, k: (-(q - k.mT).square()).softmax(-1)[:, 0])
    assert starting(
        failing("one_head", of_three=by_distance),
        "A head of one number never",
        "The trained translator with eight heads",
    )
