import numpy as np
import torch
from teaching import failing, starting

from regard_lab.lessons import alignment
from regard_lab.lessons.words import embedded, normal


def test_the_first_rows_are_those_of_the_papers_in_numpy():
    """At the first step Bahdanau's query is the state of zeros, so that v · tanh(U h_j) alone decides."""
    read, written = alignment._encoded(("a", "b", "c"), 0), embedded(("x", "y"), alignment.DIM, 1)
    cell = alignment._bahdanau(0)
    h = read[0].numpy()
    learned = {name: value[0].detach().numpy() for name, value in cell.attention.learned.items()}
    energies = np.exp(np.tanh(h @ learned["key_weight"].T) @ learned["energy"])
    np.testing.assert_allclose(alignment.steps(cell, written, read)[0][0], energies / energies.sum(), atol=1e-12)


def test_decoders_that_change_places_are_seen(monkeypatch):
    monkeypatch.setattr(alignment, "_bahdanau", lambda seed: alignment._luong(seed))
    monkeypatch.setattr(alignment, "bahdanau_by_hand", alignment.luong_by_hand)
    assert starting(failing("alignment"), "Bahdanau's weights", "Bahdanau's context")


def test_another_formula_is_seen(monkeypatch):
    monkeypatch.setattr(alignment, "luong_by_hand", lambda *given: normal(0, 6, 7).softmax(-1))
    assert starting(failing("alignment"), "Both cells are")


def test_a_decoder_that_is_not_fed_is_seen(monkeypatch):
    real = alignment._luong
    monkeypatch.setattr(alignment, "_luong", lambda seed, input_feeding=False: real(seed))
    assert starting(failing("alignment"), "With input feeding")


def test_a_luong_that_attends_before_it_moves_is_seen(monkeypatch):
    class Early(alignment.LuongCell):
        def forward(self, x, state, memory):
            self._attend(alignment.top(state.recurrent), memory, state.place)  # recorded first
            return super().forward(x, state, memory)

    real = alignment.record_attention

    class FirstOfTwo:
        def __init__(self, cell):
            self.recording, self.every = real(cell), 2 if isinstance(cell, Early) else 1

        def __enter__(self):
            self.told = self.recording.__enter__()
            return self

        def __exit__(self, *error):
            return self.recording.__exit__(*error)

        def __getitem__(self, name):
            return self.told[name][:: self.every]

    monkeypatch.setattr(alignment, "LuongCell", Early)
    monkeypatch.setattr(alignment, "record_attention", FirstOfTwo)
    assert starting(failing("alignment"), "Both cells are", "Luong's weights are computed")


def test_the_state_of_another_source_is_compared():
    read, written = alignment._encoded(("a", "b"), 0), embedded(("x", "y"), alignment.DIM, 1)
    cell = alignment._luong(0)
    assert torch.equal(alignment.steps(cell, written, read)[1], alignment.steps(cell, written, -read)[1])
