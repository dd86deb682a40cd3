"""Keys and values of grouped heads factorised into the latents of a LatentAttention.

    1  axes       Rotary turns pair c of every key by the same angle, so the kv_heads complex numbers of a pair may be
                  mixed by a unitary matrix if queries are mixed along: exact. The principal axes of a text bring most
                  of a pair into few numbers (RoRoPE of TransMLA, there with real matrices).
    2  rotation   rope_dim / 2 of these numbers stay rotated and become the rotated key that all heads share: those that
                  contribute most to scores (2-norms, MHA2MLA). The others lose their rotation, which is not exact.
    3  latents    Keys without rotation and values become latent_dim numbers by one principal component analysis, in
                  which keys and values count alike (TransMLA). Errors of keys count by the queries that read them, and
                  errors of values by the output matrix.

With rope_dim = kv_heads · head_dim no number loses its rotation, and with as many latent numbers as there are values
nothing is lost: the converted model is the original, in as many bytes.

Source: TransMLA, Meng et al. 2025 (arXiv 2502.07864); MHA2MLA, Ji et al. 2025 (arXiv 2502.14837).
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from regard.arguments import of_kind, whole
from regard.errors import ArgumentError, UnsupportedError
from regard.mechanisms import Softmax
from regard.positions import frequencies
from regard_lab.conversion.heads import Change, KeySpace, Projections, within_rounding
from regard_lab.conversion.own_models import (
    Calibration,
    Converted,
    attention_layers,
    checked_calibration,
    compared,
    difference,
    headed,
    load_original,
    moments_of,
)
from regard_lab.models import LanguageModel

FLOOR = 1e-5  # least weight of an error, relative to the mean, so that no number is forgotten
Moments = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class LatentSizes:
    """The numbers of a token that a layer caches: latent_dim, and rope_dim rotated ones (by default as many)."""

    latent_dim: int
    rope_dim: int | None = None

    def checked(self, keys: int, values: int, rotary: bool) -> tuple[int, int]:
        """(latent_dim, rope_dim) for a layer with so many numbers in all keys and all values of a token."""
        latent = whole("latent_dim", self.latent_dim, 1)
        least = 2 if rotary else 0  # rotated numbers
        most = keys if rotary else 0
        rope = min(most, latent + latent % 2)
        if self.rope_dim is not None:
            rope = whole("rope_dim", self.rope_dim, 0)
        if rope % 2 or not least <= rope <= most or latent > keys - rope + values:
            raise ArgumentError(
                f"latent_dim is {latent} and rope_dim {rope}; a token has {keys} numbers in keys and {values} in "
                f"values: give an even rope_dim from {least} to {most}, and latent_dim up to the rest"
            )
        return latent, rope


@dataclass(frozen=True)
class KeyAxes:
    """The rows of an orthogonal matrix for the keys of all heads, which commutes with Rotary.

    Args:
        rotated: two rows for each axis of each rotated pair (pairs, kv_heads, 2, kv_heads · head_dim), the largest axis
            first.
        unrotated: those of the numbers that no position rotates (numbers, kv_heads · head_dim).
    """

    rotated: torch.Tensor
    unrotated: torch.Tensor


def principal_axes(layer: Projections, moment: torch.Tensor, space: KeySpace) -> KeyAxes:
    """The axes of the keys of a layer in which few numbers hold most of each rotated pair.

    Args:
        moment: (dim + 1, dim + 1), the mean of x xᵀ for inputs with a 1 as last number.
    """
    heads, size, _ = layer.k.shape
    pairs, rest = space.split(size)
    first, second = pairs.T
    k = torch.complex(layer.k[:, first], layer.k[:, second])
    k = k.transpose(0, 1)  # (pairs, kv_heads, dim + 1)
    products = k @ moment.to(k.dtype) @ k.mH  # (pairs, kv_heads, kv_heads)
    mix = torch.linalg.eigh(products).eigenvectors.flip(-1).mH

    pair = torch.arange(len(pairs))
    rotated = layer.k.new_zeros(len(pairs), heads, 2, heads, size)
    rotated[pair, :, 0, :, first] = mix.real
    rotated[pair, :, 0, :, second] = -mix.imag
    rotated[pair, :, 1, :, first] = mix.imag
    rotated[pair, :, 1, :, second] = mix.real
    identity = torch.eye(heads * size, dtype=rotated.dtype).unflatten(0, (heads, size))
    return KeyAxes(rotated.flatten(-2), identity[:, rest].flatten(0, 1))


def contributions(layer: Projections, moment: torch.Tensor, rotated: torch.Tensor) -> torch.Tensor:
    """How much each axis of each pair contributes to scores, (pairs, kv_heads): E|q|² · E|k|²."""
    kv_heads = layer.kv_heads
    q = layer.q.unflatten(0, (kv_heads, -1))  # (kv_heads, members, head_dim, dim + 1)
    keys = torch.einsum("...n,nw->...w", rotated, layer.k.flatten(0, 1))
    of_heads = rotated.unflatten(-1, (kv_heads, -1))
    queries = torch.einsum("...gd,gmdw->...gmw", of_heads, q).flatten(3, 4)
    return _mean_squares(keys, moment).sum(2) * _mean_squares(queries, moment).sum((2, 3))


def _mean_squares(rows: torch.Tensor, moment: torch.Tensor) -> torch.Tensor:
    """The mean of (row · x)² for rows (..., dim + 1)."""
    return ((rows @ moment) * rows).sum(-1)


def factorised(
    layer: Projections,
    moment: torch.Tensor,
    axes: KeyAxes,
    stays_rotated: torch.Tensor,
    size: int,
) -> dict[str, torch.Tensor]:
    """The matrices to_q, to_latent, to_k and to_v of a LatentAttention; the last column of the first two is the bias.

    Args:
        moment: (dim + 1, dim + 1), the mean of x xᵀ for inputs with a 1 as last number.
        axes: those of `principal_axes`.
        stays_rotated: bool (pairs, kv_heads), for each axis of each pair.
        size: that of the latents.
    """
    kv_heads = layer.kv_heads
    read_by = torch.arange(len(layer.q)) // layer.members  # the key/value head of each head
    # Halves: first numbers of all pairs, then second ones.
    rotated = axes.rotated[stays_rotated].transpose(0, 1).flatten(0, 1)
    plain = torch.cat([axes.rotated[~stays_rotated].flatten(0, 1), axes.unrotated])
    rotated_of_heads = rotated.unflatten(1, (kv_heads, -1))[:, read_by]
    plain_of_heads = plain.unflatten(1, (kv_heads, -1))[:, read_by]

    k = layer.k.flatten(0, 1)
    v = layer.v.flatten(0, 1)
    products_of_q = layer.q @ moment @ layer.q.mT
    weights_of_keys = torch.einsum("nhd,hde,mhe->nm", plain_of_heads, products_of_q, plain_of_heads)
    products_of_o = torch.einsum("ohv,ohw->hvw", layer.o, layer.o)
    weights_of_values = torch.block_diag(*products_of_o.unflatten(0, (kv_heads, -1)).sum(1))
    weights = (weights_of_keys, weights_of_values)
    down, up = compressed((plain @ k, v), weights, moment, size)
    up_to_keys, up_to_values = up.split([len(plain), len(v)])

    # A LatentAttention divides by the root of both sizes.
    scale = (1 + len(rotated) / layer.q.shape[1]) ** 0.5
    rotated_q = torch.einsum("nhd,hdw->hnw", rotated_of_heads, layer.q)
    q = torch.cat([layer.q, rotated_q], 1)
    return {
        "to_q": scale * q.flatten(0, 1),
        "to_latent": torch.cat([down, rotated @ k]),
        "to_k": torch.einsum("nhd,nl->hdl", plain_of_heads, up_to_keys).flatten(0, 1),
        "to_v": up_to_values.unflatten(0, (kv_heads, -1))[read_by].flatten(0, 1),
    }


def compressed(
    parts: tuple[torch.Tensor, ...],
    weights: tuple[torch.Tensor, ...],
    moment: torch.Tensor,
    size: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Matrices down (size, dim + 1) and up (n, size), so that up · down is close to the rows of all parts (n, dim + 1).

    Args:
        weights: of the errors of each part, symmetric; scaled so that each part would count 1 if it were lost.
        size: at most n, with which nothing is lost.
    """
    rows = torch.cat(parts)
    if size == len(rows):
        return rows, torch.eye(size, dtype=rows.dtype)

    scaled = []
    for part, weight in zip(parts, weights, strict=True):
        error_if_lost = (weight @ part @ moment @ part.T).trace()
        scaled.append(weight / error_if_lost.clamp(min=1e-30))
    values, vectors = torch.linalg.eigh(torch.block_diag(*scaled))
    root = values.clamp(min=FLOOR * float(values.mean())).sqrt()
    weighted = root[:, None] * (vectors.mT @ rows)
    components = torch.linalg.eigh(weighted @ moment @ weighted.mT).eigenvectors.flip(-1)
    chosen = components[:, :size]
    return chosen.mT @ weighted, vectors / root @ chosen


# A whole model


def with_latents(
    model: LanguageModel,
    latent_dim: int,
    rope_dim: int | None = None,
    *,
    calibration: Calibration | None = None,
) -> LanguageModel:
    """A copy of a language model with latent attention in each layer.

    Args:
        latent_dim, rope_dim: as in LatentSizes.
        calibration: runs the model on a text, such as `lambda model: model(ids)`; without one the inputs of each layer
            are taken as independent numbers.

    Raises:
        ArgumentError: sizes that the keys and values do not have.
        UnsupportedError: a model of another mechanism.

    >>> model = LanguageModel(LanguageModel.Config(vocab_size=50, dim=32, heads=4, kv_heads=2)).eval()
    >>> same = with_latents(model, latent_dim=16, rope_dim=16)  # 2 key/value heads of 8 numbers
    >>> torch.allclose(same(ids := torch.arange(4, 14)[None]), model(ids), atol=1e-5)
    True
    """
    return _converted(model, LatentSizes(latent_dim, rope_dim), _moments(model, calibration))


def load_latent(
    folder: str | Path, sizes: LatentSizes, *, calibration: Calibration | None = None
) -> Converted:
    """Load a language model, or the best one of a training run, and convert it as `with_latents`.

    Raises:
        CheckpointError: missing or damaged files.
        RegardError: latents that lose nothing change the outputs of the model.
    """
    saved, model = load_original(folder)
    moments = _moments(model, calibration)
    keys, values = _numbers(model)

    lossless = LatentSizes(keys + values)
    if model.config.positions == "rotary":
        lossless = LatentSizes(latent_dim=values, rope_dim=keys)
    wide = deepcopy(model).double()
    largest = difference(_converted(wide, lossless, moments), wide)
    invariance = within_rounding(
        largest, "latents that lose nothing change the outputs of the model"
    )

    converted = _converted(model, sizes, moments)
    latent_dim = converted.config.latent_dim
    rope_dim = converted.config.rope_dim
    numbers = Change(keys + values, latent_dim + (rope_dim or 0))
    return compared(
        saved,
        model,
        converted,
        {"conversion": "latent", "latent_dim": latent_dim, "rope_dim": rope_dim},
        method="latent",
        kv_heads={"numbers of a token, each layer": numbers},
        invariance=invariance,
    )


def _numbers(model: LanguageModel) -> tuple[int, int]:
    """The numbers in the keys and in the values of a token, in one layer."""
    layer = next(iter(attention_layers(model).values()))
    return layer.kv_heads * layer.head_dim, layer.kv_heads * layer.value_dim


def _moments(model: LanguageModel, calibration: Calibration | None) -> Moments:
    of_kind("model", model, LanguageModel, "a LanguageModel")
    if model.config.latent_dim is not None:
        raise UnsupportedError(
            "this model has latent attention already; convert one with key/value heads"
        )
    calibration = checked_calibration(calibration)
    layers = attention_layers(model)
    for layer in layers.values():
        if layer.mechanism.declared != Softmax():
            raise UnsupportedError(
                f"latents compute softmax of scaled dot products, and this model has {layer.mechanism.declared}"
            )
    if model.config.special:
        raise UnsupportedError(f"latents have none of {model.config.special}, which this model has")

    if calibration is None:
        return {
            name: torch.eye(layer.dim + 1, dtype=torch.float64) for name, layer in layers.items()
        }
    copy = deepcopy(model).double().eval()
    keys = {name: headed(layer).k for name, layer in attention_layers(copy).items()}
    return moments_of(keys, lambda: calibration(copy))


@torch.no_grad()
def _converted(model: LanguageModel, sizes: LatentSizes, moments: Moments) -> LanguageModel:
    config = model.config
    has_rotary = config.positions == "rotary"
    latent_dim, rope_dim = sizes.checked(*_numbers(model), has_rotary)
    layers = attention_layers(model)
    space = KeySpace(next(iter(layers.values())).positions)
    projections = {}
    axes = {}
    contributions_of_layers = []
    for name, layer in layers.items():
        projections[name] = headed(layer).read()
        axes[name] = principal_axes(projections[name], moments[name], space)
        contributions_of_layers.append(
            contributions(projections[name], moments[name], axes[name].rotated)
        )

    # The same axes stay rotated in all layers, since the config has one list of frequencies.
    total = torch.stack(contributions_of_layers).sum(0)  # (pairs, kv_heads)
    largest = total.flatten().topk(rope_dim // 2).indices
    stays_rotated = torch.zeros(total.numel(), dtype=torch.bool)
    stays_rotated[largest] = True
    stays_rotated = stays_rotated.view(total.shape)

    settings = {"kv_heads": config.heads, "latent_dim": latent_dim, "latent_norms": False}
    if has_rotary:
        of_pairs = frequencies(config.head_dim, config.rotary_base, torch.device("cpu"))
        settings["rope_dim"] = rope_dim
        settings["rope_frequencies"] = tuple(of_pairs[stays_rotated.nonzero()[:, 0]].tolist())
    with torch.device("meta"):
        converted = LanguageModel(replace(config, **settings))

    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for name, layer in projections.items():
        matrices = factorised(layer, moments[name], axes[name], stays_rotated, latent_dim)
        for part, rows in matrices.items():
            has_bias = part in ("to_q", "to_latent")
            state[f"{name}.{part}.weight"] = rows[:, :-1] if has_bias else rows
            state[f"{name}.{part}.bias"] = rows[:, -1]
    dtype = next(model.parameters()).dtype
    weights = {name: state[name].to(dtype).contiguous() for name in converted.state_dict()}
    converted.load_state_dict(weights, assign=True)
    return converted.requires_grad_(True).train(model.training)
