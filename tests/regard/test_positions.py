"""Positions hold their formulas far out and in any dtype."""

import math

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import regard as rg
from regard.positions import (
    NTK,
    Learned,
    Linear,
    Llama3,
    Rotary,
    Scaling,
    Sinusoidal,
    YaRN,
    as_rotary,
)

FAR = 100_000


def waves(positions: np.ndarray, dim: int, base: float = 10_000.0) -> np.ndarray:
    angles = positions[:, None] / base ** (np.arange(0, dim, 2) / dim)
    return np.stack([np.sin(angles), np.cos(angles)], -1).reshape(len(positions), dim)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_sinusoidal_is_its_formula_far_out_whatever_the_dtype_of_the_module(dtype):
    positions = np.array([0, 1, 17, FAR - 1, FAR])
    vectors = Sinusoidal(64).to(dtype)(torch.from_numpy(positions))
    np.testing.assert_allclose(vectors.double().numpy(), waves(positions, 64), atol=1e-7)


@pytest.mark.parametrize("pairs", ["halves", "neighbours"])
@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 1e-6), (torch.bfloat16, 2e-2)]
)
def test_rotary_is_its_formula_far_out_in_every_dtype(dtype, bound, pairs):
    positions = torch.tensor([0, 3, FAR])
    x = torch.randn(1, 2, 3, 8).to(dtype)
    rotated = Rotary(pairs=pairs).rotate(x, positions)
    assert rotated.dtype == dtype
    for c in range(4):
        real, imaginary = (c, c + 4) if pairs == "halves" else (2 * c, 2 * c + 1)

        def number(y: torch.Tensor, real: int = real, imaginary: int = imaginary) -> np.ndarray:
            return y[..., real].double().numpy() + 1j * y[..., imaginary].double().numpy()

        turn = np.exp(1j * positions.numpy() * 10_000.0 ** (-2 * c / 8))
        np.testing.assert_allclose(number(rotated), number(x) * turn, atol=bound * 4)


def test_rotary_turns_only_the_dimensions_it_was_given_and_keeps_lengths():
    x = torch.randn(2, 3, 4, 8)
    turned = Rotary(dims=4).rotate(x, torch.arange(4))
    assert torch.equal(turned[..., 4:], x[..., 4:])
    assert not torch.equal(turned[..., :4], x[..., :4])
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))


# Ours, and the same as transformers writes it.
SCALED: dict[str, tuple[Scaling, dict[str, object]]] = {
    "linear": (Linear(3.0), {"rope_type": "linear", "factor": 3.0}),
    "ntk": (NTK(2.5 * 700 / 256 - 1.5), {"rope_type": "dynamic", "factor": 2.5}),
    "yarn": (
        YaRN(7.0, trained=256),
        {"rope_type": "yarn", "factor": 7.0, "original_max_position_embeddings": 256},
    ),
    "yarn of gpt-oss": (
        YaRN(32.0, trained=64, fast=16.0, slow=2.0, attention_factor=1.25, truncated=False),
        {
            "rope_type": "yarn",
            "factor": 32.0,
            "original_max_position_embeddings": 64,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
            "attention_factor": 1.25,
            "truncate": False,
        },
    ),
    "llama3": (
        Llama3(8.0, trained=128, slow=1.0, fast=4.0),
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 128,
        },
    ),
}


@pytest.mark.parametrize("name", SCALED)
def test_scaled_rotary_has_the_angles_of_transformers(name):
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling, written = SCALED[name]
    base = 5_000.0
    config = transformers.LlamaConfig(
        hidden_size=3 * 26,
        num_attention_heads=3,
        max_position_embeddings=256,
        rope_parameters={**written, "rope_theta": base},
    )
    function = ROPE_INIT_FUNCTIONS[str(written["rope_type"])]
    angles, magnitude = function(config, device="cpu", seq_len=700)
    assert scaling.magnitude == pytest.approx(magnitude, rel=1e-6)
    of_scaling = scaling.frequencies(26, base, torch.device("cpu"))
    torch.testing.assert_close(of_scaling.float(), angles, rtol=1e-6, atol=0)

    # The scaling is used.
    x = torch.randn(1, 2, 3, 26)
    positions = torch.tensor([0, 1, 90])
    rotary = Rotary(base, scaling=scaling)
    plain = Rotary(base).rotate(x, positions)
    scaled = rotary.rotate(x, positions)
    assert not torch.allclose(plain[:, :, 2], scaled[:, :, 2] / scaling.magnitude)
    torch.testing.assert_close(scaled[:, :, 0], x[:, :, 0] * scaling.magnitude)
    from_seven = rotary.rotate_from(x, 7)
    torch.testing.assert_close(from_seven, rotary.rotate(x, torch.tensor([7, 8, 9])))


def test_rotary_rotates_pairs_by_the_axes_of_places_in_an_image():
    x = torch.randn(2, 3, 4, 14)
    places = torch.randint(0, 50, (2, 4, 3))
    rotary = Rotary(dims=12, axes=(2, 3, 1))
    rotated = rotary.rotate(x, places)
    for pair, axis in enumerate((0, 0, 1, 1, 1, 2)):
        by_axis = Rotary(dims=12).rotate(x, places[..., axis])
        for c in (pair, pair + 6):
            torch.testing.assert_close(rotated[..., c], by_axis[..., c])
    assert torch.equal(rotated[..., 12:], x[..., 12:])
    words = torch.tensor([5, 6, 7, 8])[None, :, None].expand(2, 4, 3)  # on every axis the same
    torch.testing.assert_close(rotary.rotate(x, words), rotary.rotate_from(x, 5))
    with pytest.raises(rg.ShapeError, match=r"\(batch, length, 3\)"):
        rotary.rotate(x, places[..., :2])
    with pytest.raises(rg.ArgumentError, match="6 pairs, and 7 are rotated"):
        Rotary(axes=(2, 3, 1)).rotate(x, places)


def test_rotary_takes_positions_for_each_batch_row():
    x = torch.randn(2, 3, 4, 8)
    positions = torch.tensor([[0, 1, 2, 3], [7, 8, 9, 10]])
    both = Rotary().rotate(x, positions)
    for row in range(2):
        alone = Rotary().rotate(x[row : row + 1], positions[row])
        # An entry is two products of at most |x| each, and cosines and sines of positions up to 10 are off by 10 eps.
        bound = float(25 * 2**-23 * x.abs().max())
        torch.testing.assert_close(both[row : row + 1], alone, rtol=0, atol=bound)


def test_learned_refuses_positions_without_a_vector():
    table = Learned(16, 4)
    assert torch.equal(table(torch.tensor([[3, 15]]))[0, 1], table.weight[15])
    for positions in ([16], [-1]):
        with pytest.raises(rg.ShapeError, match="0 to 15"):
            table(torch.tensor(positions))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Sinusoidal(5),
        lambda: Sinusoidal(0),
        lambda: Learned(0, 4),
        lambda: Rotary(dims=3),
        lambda: Rotary(pairs="odd"),
        lambda: Rotary().check(7),
        lambda: Rotary(dims=8).check(6),
        lambda: Rotary(base=0),
        lambda: Rotary(base=-1.0),
        lambda: Rotary(base=math.nan),
        lambda: Rotary(frequencies=()),
        lambda: Rotary(dims=4, frequencies=(0.5,)),
        lambda: Rotary(frequencies=(math.inf,)),
        lambda: Linear(0.0),
        lambda: YaRN(4.0, trained=-1),
        lambda: YaRN(4.0, trained=9, fast=1.0, slow=2.0),
        lambda: Rotary(scaling=2.0),
        lambda: Llama3(8.0, trained=9, slow=4.0, fast=4.0),
        lambda: Rotary(axes=(1, 0)),
        lambda: Rotary(frequencies=(1.0,), scaling=Linear(2.0)),
        lambda: NTK(2.0).frequencies(2, 9.0, torch.device("cpu")),
    ],
)
def test_sizes_that_are_no_pairs_bases_and_scalings_are_refused_in_a_sentence(wrong):
    with pytest.raises(rg.ArgumentError, match=r"\w+ \w+"):
        wrong()


ROTARIES = [
    Rotary(),
    Rotary(dims=4),
    Rotary(base=500.0, pairs="neighbours"),
    Rotary(frequencies=(0.3, 2.0, 0.3)),
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rotary", ROTARIES, ids=str)
def test_neighbouring_positions_give_the_bits_of_the_same_positions(rotary, dtype):
    x = torch.randn(2, 3, 5, 8, dtype=dtype)
    for start in (0, 7, 7, -3, 1019, 1020, 2047, 100_000):  # tables of 1,024 positions are kept
        learning = [x.clone().requires_grad_() for _ in range(2)]
        found = rotary.rotate_from(learning[0], start)
        wanted = rotary.rotate(learning[1], start + torch.arange(5))
        assert torch.equal(found, wanted), start
        grads = [
            torch.autograd.grad((y * x).sum(), z)[0]
            for y, z in zip((found, wanted), learning, strict=True)
        ]
        assert torch.equal(*grads), start


def test_pairs_turn_by_their_own_frequencies_and_those_of_the_base_are_the_default():
    x = torch.randn(1, 2, 5, 8, dtype=torch.float64)
    places = torch.arange(5)
    same = tuple(100.0 ** (-c / 4) for c in range(4))
    torch.testing.assert_close(
        Rotary(frequencies=same).rotate(x, places), Rotary(base=100.0).rotate(x, places)
    )
    turned = Rotary(frequencies=(0.3, 2.0)).rotate(x, places)
    pairs = torch.complex(x[..., :2], x[..., 2:4]) * torch.exp(
        1j * places[:, None] * torch.tensor([0.3, 2.0]).double()
    )
    torch.testing.assert_close(turned, torch.cat([pairs.real, pairs.imag, x[..., 4:]], -1))


def test_cosines_kept_in_inference_mode_are_not_used_where_gradients_are_wanted():
    rotary = Rotary(base=321.0)
    x = torch.randn(1, 2, 3, 8)
    with torch.inference_mode():
        in_inference_mode = rotary.rotate_from(x, 4)
    learning = x.clone().requires_grad_()
    rotated = rotary.rotate_from(learning, 4)
    rotated.sum().backward()
    assert learning.grad is not None
    assert torch.equal(rotated, in_inference_mode)


def test_cosines_made_in_a_fake_mode_are_not_kept():
    rotary = Rotary(base=123.0)
    x = torch.randn(1, 2, 3, 8)
    with FakeTensorMode() as mode:
        assert rotary.rotate_from(mode.from_tensor(x), 4).shape == x.shape
    assert torch.equal(rotary.rotate_from(x, 4), rotary.rotate(x, 4 + torch.arange(3)))


@pytest.mark.parametrize(
    ("positions", "said"),
    [
        ("sinusoidal", "sinusoidal positions are added to embeddings, before the layer"),
        (Sinusoidal(4), "sinusoidal positions are added to embeddings, before the layer"),
        ("learned", "learned positions are added to embeddings, before the layer"),
        ("alibi", r"is a bias by distance; .*bias=regard.bias.ALiBi\(\)"),
        ("T5", r"is a bias by distance; .*bias=regard.bias.T5Relative\(heads\)"),
        ("rotation", "positions is 'rotation'; give Rotary"),
        (7, "positions is 7; give Rotary"),
    ],
)
def test_positions_that_no_layer_takes_are_refused_with_their_place(positions, said):
    with pytest.raises(rg.ArgumentError, match=said):
        as_rotary(positions)


def test_learned_vectors_begin_small_and_around_zero():
    """So that the words, whose vectors are larger, are told apart from the start."""
    vectors = Learned(64, 500).weight.detach()
    assert vectors.mean().abs() < 0.001
    assert 0.019 < vectors.std() < 0.021
