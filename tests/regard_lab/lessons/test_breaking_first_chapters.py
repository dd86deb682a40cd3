"""Claims of the lessons of "Why attention" and "Inside one layer" fail when what they are about is broken."""

import torch
from teaching import Computed, changed_report, failing, starting

from regard.positions import Sinusoidal
from regard_lab.models import TranslationTransformer
from regard_lab.models.recurrent import BahdanauCell, LuongCell, MemoryAttention
from regard_lab.models.recurrent.cells import CellState, top
from regard_lab.teaching import stepping


def test_one_sentence():
    numbers = (
        "The scores of the second word",
        "The weights of the second word",
        "The context vector of the second word",
    )
    assert starting(
        failing("one_sentence", ("sorted(words).index(word)", "words.index(word)")),
        "The ids of",
        *numbers,
    )
    unscaled = failing("one_sentence", ("(omega / math.sqrt(24)).softmax(-1)", "omega.softmax(-1)"))
    assert starting(unscaled, "The weights of the second", "The context vector of")
    other = failing("one_sentence", ("rg.attention(q", "rg.attention(2 * q"))
    assert starting(other, "One call of rg.attention", "With words as columns")


SHORTER = ("LENGTHS = (4, 8, 16, 32, 64, 128)", "LENGTHS = (4, 9, 16, 64)")


def test_recurrent_steps(monkeypatch):
    """A network without a state, the other gaps for both kinds of convolutions, attention word by word."""

    def without_state(self, words):
        return [self.cell(word, word * 0) + words[0] for word in words]

    def word_by_word(self, words):
        cache = self.layer.new_cache(batch=1)
        outputs = []
        fed = 0.0
        for word in words:
            outputs.append(self.layer((word + fed)[:, None], cache=cache)[:, 0])
            fed = outputs[-1]
        return outputs

    real = stepping.Convolutions.__init__
    monkeypatch.setattr(
        stepping.Convolutions,
        "__init__",
        lambda self, seed, layers, dilated: real(self, seed, layers, not dilated),
    )
    monkeypatch.setattr(stepping.Recurrent, "forward", without_state)
    monkeypatch.setattr(stepping.Attention, "forward", word_by_word)
    assert starting(
        failing("recurrent", SHORTER),
        "A recurrent network takes",
        "Causal convolutions of width 3",
        "Dilated convolutions connect",
        "An attention layer takes one",
        "There is no shortcut",
        "torch's GRU computes",
        "With random weights the gradient",
    )


def test_recurrent_translators(monkeypatch):
    """Training that grows with the length, a search that writes two words at once, and a slow attention."""

    def again(self, source, target):
        scores = real(self, source, target)
        for _ in range(target.shape[1]):
            scores = scores + self.decoder[0].self_attention(scores[..., :16]).sum()
        return scores

    def two_at_once(model, source, max_length, special):
        state = model.start(source)
        for _ in range(max_length // 2):
            model.step(torch.full((1,), 5), state)

    real = TranslationTransformer.forward
    monkeypatch.setattr(TranslationTransformer, "forward", again)
    monkeypatch.setattr("regard_lab.decoding.greedy_search", two_at_once)
    changed_report(monkeypatch, "recurrent")["causal"][0]["median"] *= 9
    assert starting(
        failing("recurrent", SHORTER),
        "A Transformer predicts all words",
        "The steps of this call do not grow",
        "Generation takes one call",
        "On one core, for one text",
    )


def test_fixed_vector(monkeypatch):
    """The decoder reads every state where it should read one vector, and other shares stand in the report."""
    short = ("(1, 2, 4, 8, 12)", "(1, 2, 4)")
    rows = changed_report(monkeypatch, "length_story")["rows"]
    for model, length, share in (
        ("transformer", "4", 0.5),
        ("luong-general", "12", 0.5),
        ("transformer", "16", 0.9),
    ):
        next(row for row in rows if row["model"] == model)["accuracy"][length] = share
    assert starting(
        failing("fixed_vector", short, ("attention=name", 'attention="bahdanau"')),
        "Through one vector of 8",
        "Without attention the decoder reads",
        "Trained models with and without",
        "At the longest training length",
        "Beyond the training lengths",
    )


def test_fixed_vector_with_attention_to_one_state(monkeypatch):
    real = MemoryAttention.remember
    monkeypatch.setattr(
        MemoryAttention, "remember", lambda self, states, live=None: real(self, states[:, -1:])
    )
    changed = failing("fixed_vector", ("(1, 2, 4, 8, 12)", "(1, 2, 4)"))
    assert starting(changed, "With attention, every further word", "With attention the bytes grow")


def test_alignment(monkeypatch):
    """Bahdanau's cell attends after its update, Luong's before it, and nothing is fed."""

    def attend_after(self, x, state, memory):
        recurrent = self._advance(torch.cat([x, 0 * state.recurrent], -1), state.recurrent)
        context = self._attend(top(recurrent), memory, state.place)
        return torch.cat([recurrent, context], -1), CellState(recurrent, None, state.place + 1)

    def attend_before(self, x, state, memory):
        context = self._attend(self.hidden(state.recurrent), memory, state.place)
        recurrent = self._advance(
            x if state.fed is None else torch.cat([x, state.fed], -1), state.recurrent
        )
        return self._attentional(context, self.hidden(recurrent)), CellState(
            recurrent, state.fed, state.place + 1
        )

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


def test_positions(monkeypatch):
    ordered = failing(
        "positions",
        ("rg.MultiHeadAttention, DIM, 4)", 'rg.MultiHeadAttention, DIM, 4, pattern="causal")'),
    )
    assert starting(ordered, "Without positions, reversing")
    monkeypatch.setattr(
        Sinusoidal, "forward", lambda self, places: torch.ones(*places.shape, self.dim)
    )
    assert starting(
        failing("positions"), "Wavelengths grow", "PE(pos + k) equals", "With positions, the vector"
    )


def test_causal():
    unmasked = failing("causal", masked=Computed(lambda weights: weights))
    assert starting(
        unmasked, "If weights are masked", "The three steps give", "Both are the weights"
    )
    exchanged = failing("causal", ('moved("causal"), moved(None)', 'moved(None), moved("causal")'))
    assert starting(exchanged, "Replacing later words changes no", "Without the mask, replacing")


def test_cross():
    """Cells may attend to one more key, a zero; a layer that ignores the pattern; noise that hides what is shown."""
    another = "context=torch.cat([words, 0 * words[:, :1]], 1))\nper_head = recording"
    idle = failing(
        "cross",
        ("context=words)\nper_head = recording", another),
        (', pattern="causal")', ")"),
        ("NOISE, SHARPNESS = 0.1", "NOISE, SHARPNESS = 30.0"),
    )
    assert starting(
        idle,
        "The output has the image's shape",
        "The layer computes the formula",
        "Cells are independent",
        "Every cell gives its largest",
        "The pattern “causal” between",
    )
    summed = failing("cross", ("per_head[0].mean(0)", "per_head[0].sum(0)"))
    assert starting(summed, "The weights of each cell sum to 1.")


def test_one_head(monkeypatch):
    """Every head reads "cat" only; heads share their weights; keys on a circle lie on a line; a head with a bias."""
    alike = failing(
        "one_head",
        ("in READ if heads == 1 else READ[head : head + 1]", "in READ[:1]"),
        (
            "normal(SEED + at, 1, heads, length, DIM // heads)",
            "normal(SEED + at, 1, 1, length, DIM // heads).expand(1, heads, -1, -1)",
        ),
        ("turns.sin()", "0 * turns"),
        ("projection_bias=False", "projection_bias=heads == 2"),
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
    changed_report(monkeypatch, "one_head")["heads"][0]["exact_match"] = 0.8
    squared = (
        "q, k = torch.cat([q, torch.ones_like(q)], -1), torch.cat([k, -k * k / 2], -1)\nof_three ="
    )
    distances = failing("one_head", ("of_three =", squared))
    assert starting(
        distances, "A head of one number never", "The trained translator with eight heads"
    )
