"""Keys and values become latents: exact where nothing is dropped, otherwise what is dropped and nothing else."""

import json

import pytest
import torch

from regard.errors import ArgumentError, UnsupportedError
from regard_lab.conversion import LatentSizes, load_latent, with_latents
from regard_lab.conversion.heads import KeySpace
from regard_lab.conversion.latents import compressed, contributions, factorised, principal_axes
from regard_lab.conversion.own_models import PROVENANCE_FILE, difference, headed
from regard_lab.models import LanguageModel, TextEncoder

IDS = torch.randint(4, 50, (3, 11), generator=torch.Generator().manual_seed(1))


def model(**options) -> LanguageModel:
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "dim": 24, "heads": 6, "kv_heads": 3, "layers": 2, "head_dim": 4}
    made = LanguageModel(LanguageModel.Config(**{**sizes, **options})).double().eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) / 10)
    return made


def calibration(made: LanguageModel) -> None:
    made(IDS)


WHOLE = {  # options, latent_dim and rope_dim with which nothing is lost
    "rotary": ({}, 12, 12),
    "one head": ({"kv_heads": 1, "biases": True}, 4, 4),
    "more latents than needed to keep the bytes": (
        {"positions": "learned", "norm": "layer", "biases": True},
        24,
        None,
    ),
    "alibi and windows": (
        {"positions": "alibi", "pattern": ("causal_window(3)", "full")},
        24,
        None,
    ),
}


@pytest.mark.parametrize("calibrated", [False, True])
@pytest.mark.parametrize("name", WHOLE)
def test_with_all_numbers_the_model_is_the_same(name, calibrated):
    options, latent_dim, rope_dim = WHOLE[name]
    made = model(**options)
    again = with_latents(
        made, latent_dim, rope_dim, calibration=calibration if calibrated else None
    )
    assert difference(again, made) < 1e-12
    assert difference(with_latents(made, latent_dim - 1, rope_dim), made) > 1e-4
    narrow = made.float()
    latent = with_latents(narrow, latent_dim, rope_dim)
    assert (latent(IDS) - narrow(IDS)).abs().max() < 1e-5 * narrow(IDS).abs().max()


def test_it_is_saved_trained_and_continued_and_keeps_half_the_bytes(tmp_path):
    made = model().float()
    made.save(tmp_path / "in")
    converted = load_latent(tmp_path / "in", LatentSizes(8, 4), calibration=calibration)
    report = converted.report
    assert str(report.kv_bytes["token"]) == f"{2 * 2 * 3 * 4 * 4} -> {2 * (8 + 4) * 4}"
    assert report.kv_bytes["token"].before == 2 * report.kv_bytes["token"].after
    assert report.invariance < 1e-12
    converted.save(tmp_path / "out")
    assert json.loads((tmp_path / "out" / PROVENANCE_FILE).read_text())["latent_dim"] == 8
    loaded = LanguageModel.load(tmp_path / "out").eval()
    assert loaded.config == converted.after.config
    with torch.no_grad():
        state = loaded.start(IDS[:, :5])
        steps = [state.next_scores, *(loaded.step(ids, state) for ids in IDS[:, 5:].T)]
        torch.testing.assert_close(torch.stack(steps, 1), loaded(IDS)[:, 4:], rtol=0, atol=1e-4)
    loss = torch.nn.functional.cross_entropy(
        loaded.train()(IDS[:, :-1]).flatten(0, 1), IDS[:, 1:].flatten()
    )
    loss.backward()
    assert all(
        parameter.grad is not None and parameter.grad.isfinite().all()
        for parameter in loaded.parameters()
    )


def test_numbers_that_are_not_kept_lose_their_rotation_and_nothing_else():
    """The layer's scores from complex numbers: head by head, pair by pair, axis by axis."""
    made = model(layers=1)
    layer = headed(made.get_submodule("blocks.0.attention")).read()
    space = KeySpace(made.blocks[0].attention.positions)
    moment = torch.eye(25, dtype=torch.float64)
    axes = principal_axes(layer, moment, space)
    rows = axes.rotated
    every = rows.flatten(0, 2)
    torch.testing.assert_close(every @ every.T, torch.eye(12, dtype=torch.float64))
    mix = torch.complex(
        rows[:, :, 0].unflatten(-1, (3, 4))[..., :2], rows[:, :, 1].unflatten(-1, (3, 4))[..., :2]
    )
    seen = torch.tensor([[True, False, False], [True, False, True]])
    weights = factorised(layer, moment, axes, seen, 18)
    x, y = torch.randn(2, 25, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    # angles between positions 9 and 2
    turns = (9 - 2) * torch.tensor([1.0, 0.01], dtype=torch.float64)
    latents = weights["to_latent"] @ y
    for head in range(6):
        group = head // 2
        wanted = 0.0
        for c in range(2):
            q = torch.complex(layer.q[head, c] @ x, layer.q[head, c + 2] @ x)
            keys = torch.complex(layer.k[:, c] @ y, layer.k[:, c + 2] @ y)
            for axis in range(3):
                of_axis = mix[c, axis, :, c]
                angle = turns[c] if seen[c, axis] else torch.zeros_like(turns[c])
                wanted += float(
                    (
                        q.conj() * of_axis[group].conj() * (of_axis @ keys) * torch.exp(1j * angle)
                    ).real
                )
        mine = weights["to_q"].unflatten(0, (6, 10))[head] @ x
        plain = mine[:4] @ weights["to_k"].unflatten(0, (6, 4))[head] @ latents[:18]
        query, key = (
            torch.complex(vectors[:3], vectors[3:]) for vectors in (mine[4:], latents[18:])
        )
        rotated = (query.conj() * key * torch.exp(1j * turns[[0, 1, 1]])).real.sum()
        assert float((plain + rotated) * 10**-0.5) == pytest.approx(wanted / 2, abs=1e-12)


def test_the_numbers_that_stay_rotated_are_those_that_are_large_and_read():
    made = model(layers=1, kv_heads=1)
    with torch.no_grad():
        attention = made.blocks[0].attention
        attention.to_k.weight[[0, 2]] *= 9  # of pair 0, which no head reads
        attention.to_q.weight.view(6, 4, 24)[:, [0, 2]] /= 99
    layer = headed(made.get_submodule("blocks.0.attention")).read()
    moment = torch.eye(25, dtype=torch.float64)
    axes = principal_axes(layer, moment, KeySpace(attention.positions))
    measured = contributions(layer, moment, axes.rotated)
    pairs = [[0, 2], [1, 3]]
    wanted = [layer.k[0, pair].square().sum() * layer.q[:, pair].square().sum() for pair in pairs]
    torch.testing.assert_close(measured[:, 0], torch.stack(wanted))
    assert with_latents(made, 4, 2).config.rope_frequencies == (0.01,)


def test_latents_have_the_least_weighted_error_of_all_of_their_size():
    numbers = torch.Generator().manual_seed(2)
    rows, inputs = (
        torch.randn(*sizes, dtype=torch.float64, generator=numbers) for sizes in ((9, 7), (7, 40))
    )
    moment = inputs @ inputs.T / 40
    weights = []
    for size in (4, 5):
        root = torch.randn(size, size, dtype=torch.float64, generator=numbers)
        weights.append(root @ root.T)
    parts = rows.split([4, 5])
    scaled = [
        weight / (weight @ part @ moment @ part.T).trace()
        for weight, part in zip(weights, parts, strict=True)
    ]
    of_both = torch.block_diag(*scaled)
    values = torch.linalg.svdvals(
        torch.linalg.cholesky(of_both).T @ rows @ torch.linalg.cholesky(moment)
    )
    for size in (1, 3, 6):
        down, up = compressed(parts, tuple(weights), moment, size)
        assert (down.shape, up.shape) == ((size, 7), (9, size))
        lost = up @ down - rows
        error = float((of_both @ lost @ moment @ lost.T).trace())
        # Eckart and Young 1936
        assert error == pytest.approx(float(values[size:].square().sum()), rel=1e-6)


def test_a_text_chooses_better_latents_than_none():
    made = model(layers=1)
    with torch.no_grad():
        made.embedding.weight[:, 6:] = 0  # inputs fill a quarter of the dimensions
    calibrated, blind = (
        with_latents(made, 8, 12, calibration=moments) for moments in (calibration, None)
    )
    assert difference(calibrated, made) < 1e-12  # 6 dimensions need no more latents
    assert difference(blind, made) > 1e-3


REFUSED = [
    (
        {},
        (13, 12),
        ArgumentError,
        "latent_dim is 13 and rope_dim 12; a token has 12 numbers in keys and 12 in values",
    ),
    ({}, (8, 14), ArgumentError, "give an even rope_dim from 2 to 12"),
    ({}, (8, 5), ArgumentError, "rope_dim 5"),
    ({}, (8, 0), ArgumentError, "from 2 to 12"),
    ({"positions": "alibi"}, (8, 2), ArgumentError, "from 0 to 0"),
    (
        {"mechanism": "linear", "positions": "none"},
        (8, None),
        UnsupportedError,
        "latents compute softmax",
    ),
    ({"latent_dim": 5, "kv_heads": None}, (8, 4), UnsupportedError, "has latent attention already"),
]


@pytest.mark.parametrize(("options", "sizes", "error", "words"), REFUSED)
def test_what_has_no_such_latents_is_refused_in_words(options, sizes, error, words):
    with pytest.raises(error, match=words):
        with_latents(model(**options), *sizes)
    with pytest.raises(ArgumentError, match="a LanguageModel"):
        with_latents(TextEncoder(TextEncoder.Config(vocab_size=9, dim=8, heads=2)), 4)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"latent_dim": 0}, "latent_dim is 0"),
        ({"latent_dim": 8, "kv_heads": 3}, "kv_heads is 3, and latents have all 6 heads"),
        ({"latent_dim": 8, "rope_dim": 3}, "rope_dim is 3; it must be even"),
        (
            {"latent_dim": 8, "positions": "alibi", "rope_dim": 4},
            "need latent_dim and rotary positions",
        ),
        ({"latent_dim": 8, "rope_frequencies": 3}, "rope_frequencies"),
        ({"latent_dim": 8, "mechanism": "linear"}, "latent attention is softmax"),
        ({"rope_dim": 4}, "need latent_dim and rotary"),
    ],
)
def test_settings_that_no_latents_have_are_refused(options, words):
    with pytest.raises(ArgumentError, match=words):
        LanguageModel.Config(**{"vocab_size": 50, "dim": 24, "heads": 6, **options})
