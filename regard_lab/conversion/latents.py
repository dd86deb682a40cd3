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
        rope = self.rope_dim
        rope = (
            min(keys, latent + latent % 2) * rotary if rope is None else whole("rope_dim", rope, 0)
        )
        if rope % 2 or not 2 * rotary <= rope <= keys * rotary or latent > keys - rope + values:
            raise ArgumentError(
                f"latent_dim is {latent} and rope_dim {rope}; a token has {keys} numbers in keys and {values} in "
                f"values: give an even rope_dim from {2 * rotary} to {keys * rotary}, and latent_dim up to the rest"
            )
        return latent, rope


def principal_axes(
    layer: Projections, moment: torch.Tensor, space: KeySpace
) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of an orthogonal matrix for the keys of all heads, which commutes with Rotary: two rows for each axis of
    each rotated pair (pairs, kv_heads, 2, kv_heads · head_dim), the largest first, and those of unrotated numbers."""
    heads, size, _ = layer.k.shape
    pairs, rest = space.split(size)
    at, first, second = torch.arange(len(pairs)), *pairs.T
    k = torch.complex(layer.k[:, first], layer.k[:, second]).transpose(
        0, 1
    )  # (pairs, kv_heads, dim + 1)
    mix = torch.linalg.eigh(k @ moment.to(k.dtype) @ k.mH).eigenvectors.flip(-1).mH
    rows = layer.k.new_zeros(len(pairs), heads, 2, heads, size)
    rows[at, :, 0, :, first], rows[at, :, 0, :, second] = mix.real, -mix.imag
    rows[at, :, 1, :, first], rows[at, :, 1, :, second] = mix.imag, mix.real
    alone = torch.eye(heads * size, dtype=rows.dtype).unflatten(0, (heads, size))[:, rest]
    return rows.flatten(-2), alone.flatten(0, 1)


def contributions(layer: Projections, moment: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """How much each axis of each pair contributes to scores, (pairs, kv_heads): E|q|² · E|k|²."""
    q = layer.q.unflatten(0, (layer.kv_heads, -1))  # (kv_heads, members, head_dim, dim + 1)
    keys = torch.einsum("...n,nw->...w", rows, layer.k.flatten(0, 1))
    queries = torch.einsum(
        "...gd,gmdw->...gmw", rows.unflatten(-1, (layer.kv_heads, -1)), q
    ).flatten(3, 4)
    of_keys, of_queries = (((one @ moment) * one).sum(-1) for one in (keys, queries))
    return of_keys.sum(2) * of_queries.sum((2, 3))


def factorised(
    layer: Projections,
    moment: torch.Tensor,
    axes: tuple[torch.Tensor, torch.Tensor],
    kept: torch.Tensor,
    size: int,
) -> dict[str, torch.Tensor]:
    """The matrices to_q, to_latent, to_k and to_v of a LatentAttention; the last column of the first two is the bias.

    `moment` (dim + 1, dim + 1) is the mean of x xᵀ for inputs with a 1 as last number; `kept`, bool (pairs, kv_heads),
    says which axes of `principal_axes` stay rotated; `size` is that of the latents.
    """
    rows, rest = axes
    group = torch.arange(len(layer.q)) // layer.members  # the key/value head of each head
    # Halves: first numbers of all pairs, then second ones.
    rotated = rows[kept].transpose(0, 1).flatten(0, 1)
    plain = torch.cat([rows[~kept].flatten(0, 1), rest])
    of_heads, reading = (
        one.unflatten(1, (layer.kv_heads, -1))[:, group] for one in (rotated, plain)
    )
    k = layer.k.flatten(0, 1)
    v = layer.v.flatten(0, 1)
    queries = torch.einsum("nhd,hde,mhe->nm", reading, layer.q @ moment @ layer.q.mT, reading)
    outputs = (
        torch.einsum("ohv,ohw->hvw", layer.o, layer.o).unflatten(0, (layer.kv_heads, -1)).sum(1)
    )
    down, up = compressed((plain @ k, v), (queries, torch.block_diag(*outputs)), moment, size)
    of_keys, of_values = up.split([len(plain), len(v)])
    # A LatentAttention divides by the root of both sizes.
    scale = (1 + len(rotated) / layer.q.shape[1]) ** 0.5
    q = torch.cat([layer.q, torch.einsum("nhd,hdw->hnw", of_heads, layer.q)], 1)
    return {
        "to_q": scale * q.flatten(0, 1),
        "to_latent": torch.cat([down, rotated @ k]),
        "to_k": torch.einsum("nhd,nl->hdl", reading, of_keys).flatten(0, 1),
        "to_v": of_values.unflatten(0, (layer.kv_heads, -1))[group].flatten(0, 1),
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
    lost = [(each @ one @ moment @ one.T).trace() for one, each in zip(parts, weights, strict=True)]
    counted = [each / one.clamp(min=1e-30) for one, each in zip(lost, weights, strict=True)]
    values, vectors = torch.linalg.eigh(torch.block_diag(*counted))
    root = values.clamp(min=FLOOR * float(values.mean())).sqrt()
    weighted = root[:, None] * (vectors.mT @ rows)
    chosen = torch.linalg.eigh(weighted @ moment @ weighted.mT).eigenvectors.flip(-1)[:, :size]
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
    wide = deepcopy(model).double()
    lossless = (
        LatentSizes(values, keys)
        if model.config.positions == "rotary"
        else LatentSizes(keys + values)
    )
    largest = difference(_converted(wide, lossless, moments), wide)
    exact = within_rounding(largest, "latents that lose nothing change the outputs of the model")
    other = _converted(model, sizes, moments)
    record = {
        "conversion": "latent",
        "latent_dim": other.config.latent_dim,
        "rope_dim": other.config.rope_dim,
    }
    kept = other.config.latent_dim + (other.config.rope_dim or 0)
    numbers = {"numbers of a token, each layer": Change(keys + values, kept)}
    return compared(
        saved, model, other, record, method="latent", kv_heads=numbers, invariance=exact
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
    if other := [
        str(one.mechanism.declared)
        for one in layers.values()
        if one.mechanism.declared != Softmax()
    ]:
        raise UnsupportedError(
            f"latents compute softmax of scaled dot products, and this model has {other[0]}"
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
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    rotary = config.positions == "rotary"
    layers = attention_layers(model)
    latent_dim, rope_dim = sizes.checked(*_numbers(model), rotary)
    before = {name: headed(layer).read() for name, layer in layers.items()}
    space = KeySpace(next(iter(layers.values())).positions)
    axes = {name: principal_axes(layer, moments[name], space) for name, layer in before.items()}
    total = torch.stack(
        [contributions(layer, moments[name], axes[name][0]) for name, layer in before.items()]
    ).sum(0)
    kept = torch.zeros(total.numel(), dtype=torch.bool)
    kept[total.flatten().topk(rope_dim // 2).indices] = (
        True  # the same pairs in all layers, as the config has them
    )
    kept = kept.view(total.shape)
    turns = frequencies(config.head_dim, config.rotary_base, torch.device("cpu"))
    own = (
        {"rope_dim": rope_dim, "rope_frequencies": tuple(turns[kept.nonzero()[:, 0]].tolist())}
        if rotary
        else {}
    )
    with torch.device("meta"):
        changed = replace(
            config, kv_heads=config.heads, latent_dim=latent_dim, latent_norms=False, **own
        )
        other = LanguageModel(changed)
    for name, layer in before.items():
        for part, rows in factorised(layer, moments[name], axes[name], kept, latent_dim).items():
            has_bias = part in ("to_q", "to_latent")
            state[f"{name}.{part}.weight"] = rows[:, :-1] if has_bias else rows
            state[f"{name}.{part}.bias"] = rows[:, -1]
    dtype = next(model.parameters()).dtype
    weights = {name: state[name].to(dtype).contiguous() for name in other.state_dict()}
    other.load_state_dict(weights, assign=True)
    return other.requires_grad_(True).train(model.training)
