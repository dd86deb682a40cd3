import torch
from teaching import failing, starting

from regard.layers import MultiHeadAttention
from regard_lab.lessons import cross, find_lesson


def test_shapes_and_means_are_those_of_the_picture():
    numbers = find_lesson("cross").teach().numbers
    assert numbers["shapes"] == {
        "queries": [1, 192, 32], "context": [1, 10, 48], "output": [1, 192, 32], "weights": [1, 2, 192, 10]
    }  # fmt: skip
    weights, picture = torch.tensor(numbers["weights"]), cross._picture()
    assert weights.shape == (10, 12, 16)
    assert (picture[0] == cross.SHOWN.index("sky")).all()
    assert (picture[-1] == cross.SHOWN.index("grass")).all()
    for number, thing in enumerate(cross.SHOWN):
        mean = weights[:, picture == number].mean(1)
        torch.testing.assert_close(mean, torch.tensor(numbers["mean_weight"][thing]), atol=2e-3, rtol=0)


def test_too_much_noise_is_seen(monkeypatch):
    monkeypatch.setattr(cross, "NOISE", 30.0)
    assert starting(failing("cross"), "Every cell gives its largest")


def test_cells_that_know_their_place_are_seen(monkeypatch):
    class Placed(MultiHeadAttention):
        def forward(self, x, context=None, **options):
            return super().forward(x + torch.arange(x.shape[1])[:, None] / x.shape[1], context, **options)

    monkeypatch.setattr(cross, "MultiHeadAttention", Placed)
    assert starting(failing("cross"), "The layer computes the formula", "Cells are independent")


def test_cells_that_may_also_attend_to_nothing_are_seen(monkeypatch):
    """A vector of zeros after the words is one more key, whose weight is no word's."""

    class Idle(MultiHeadAttention):
        def forward(self, x, context, **options):
            return super().forward(x, torch.cat([context, torch.zeros_like(context[:, :1])], 1), **options)

    monkeypatch.setattr(cross, "MultiHeadAttention", Idle)
    assert starting(failing("cross"), "The output has the image's shape", "The layer computes the formula")


def test_a_layer_that_lets_positions_be_compared_is_seen(monkeypatch):
    class Careless(MultiHeadAttention):
        def forward(self, x, context=None, pattern=None, **options):
            return super().forward(x, context, **options)

    monkeypatch.setattr(cross, "MultiHeadAttention", Careless)
    assert starting(failing("cross"), "The pattern “causal” between")


def test_weights_that_do_not_sum_to_one_are_seen(monkeypatch):
    real = cross.record_attention

    class Halved:
        def __init__(self, layer):
            self.recording = real(layer)

        def __enter__(self):
            self.told = self.recording.__enter__()
            return self

        def __exit__(self, *error):
            return self.recording.__exit__(*error)

        def __getitem__(self, name):
            return [type("Detail", (), {"weights": self.told[name][0].weights / 2})]

    monkeypatch.setattr(cross, "record_attention", Halved)
    assert starting(failing("cross"), "The weights of each cell")
