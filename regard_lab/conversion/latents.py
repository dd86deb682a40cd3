"""Keys and values of grouped heads factorised into the latents of a LatentAttention.

A token of a grouped-query layer has kv_heads keys and values. They are linear in the layer's input x, so any basis of
them, and any vector of fewer numbers, is computed from x by one matrix. Three steps make latents of them:

    1  positions    Rotary turns pair c of every key by the same angle, so the kv_heads complex numbers of a pair may be
                    mixed by any unitary matrix if queries are mixed along: exact. The principal axes of a text bring
                    most of each pair into few of its numbers.                      RoRoPE of TransMLA, real matrices
    2  choice       rope_dim / 2 of these numbers stay rotated, and become the rotated key that all heads share: those
                    that contribute most to scores, |q| · |k|, times how far their angle turns within a text. The
                    others lose their rotation, which is not exact.                 2-norm contribution of MHA2MLA
    3  latents      keys without rotation and values become latent_dim numbers by one principal component analysis of
                    both, in which errors of keys count by the queries that read them, and errors of values by the
                    output matrix; the errors of all keys together count as much as those of all values.
                                                                                    joint and balanced as in TransMLA

With rope_dim = kv_heads · head_dim nothing loses its rotation, and with as many latent numbers as there are values
nothing is lost at all: the converted model is the original, in as many bytes.

Source: TransMLA, Meng et al. 2025 (arXiv 2502.07864), section 4; MHA2MLA, Ji et al. 2025 (arXiv 2502.14837), section 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from regard.arguments import count_of, of_kind, whole
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
    load_original,
    moments_of,
    projections_of,
)
from regard_lab.models import LanguageModel

SPAN = 256  # positions of a text, over which the angle of a pair turns
FLOOR = 1e-4  # least weight of an error, relative to the mean, so that no number is forgotten


@dataclass(frozen=True)
class LatentSizes:
    """The numbers of a token that a converted layer caches: latent_dim, and rope_dim rotated ones.

    rope_dim: None for a quarter of the keys of a token with rotary positions, and 0 without.
    """

    latent_dim: int
    rope_dim: int | None = None

    def checked(self, layer: Projections, space: KeySpace) -> tuple[int, int]:
        """(latent_dim, rope_dim) for a layer; an ArgumentError if it has no such latents."""
        kv_heads, pairs = layer.kv_heads, len(space.split(layer.k.shape[1])[0])
        keys, values = (one[..., 0].numel() for one in (layer.k, layer.v))
        most = 2 * kv_heads * pairs
        rope = 2 * max(1, most // 8) * bool(most) if self.rope_dim is None else whole("rope_dim", self.rope_dim, 0)
        if rope % 2 or rope > most or (rope < 2 <= most):
            raise ArgumentError(
                f"rope_dim is {rope}; {count_of(kv_heads, 'key/value heads')} have {kv_heads * pairs} pairs that are "
                f"rotated, so give an even number from {min(2, most)} to {most}"
            )
        latent, largest = whole("latent_dim", self.latent_dim, 1), keys - rope + values
        if latent > largest:
            raise ArgumentError(
                f"latent_dim is {latent}; beside {rope} rotated numbers a token has {largest} numbers of keys and "
                f"values, and nothing is lost with as many; give at most {largest}"
            )
        return latent, rope


@dataclass(frozen=True)
class Axes:
    """Keys and queries of a layer in the principal axes of each rotated pair.

    k: complex rows (pairs, kv_heads, dim + 1); q: (pairs, heads, kv_heads, dim + 1), what reads each of them.
    mix: unitary (pairs, kv_heads, kv_heads), from the heads to the axes.
    contribution: (pairs, kv_heads), of each number to the scores.
    """

    k: torch.Tensor
    q: torch.Tensor
    mix: torch.Tensor
    contribution: torch.Tensor

    @classmethod
    def of(cls, layer: Projections, moment: torch.Tensor, space: KeySpace) -> Axes:
        first, second = space.split(layer.k.shape[1])[0].T
        k, q = (torch.complex(one[:, first], one[:, second]).transpose(0, 1) for one in (layer.k, layer.q))
        wide = moment.to(k.dtype)
        _, vectors = torch.linalg.eigh(k @ wide @ k.mH)  # (pairs, kv_heads, kv_heads), the largest last
        mix = vectors.flip(-1).mH
        k = mix @ k
        readers = torch.arange(len(layer.q)) // layer.members
        q = mix[:, :, readers].transpose(1, 2)[..., None] * q[:, :, None]
        energy = ((one @ wide * one.conj()).sum(-1).real for one in (k, q))
        of_k, of_q = energy
        return cls(k, q, mix, of_k * of_q.sum(1))


def turning(frequencies: torch.Tensor) -> torch.Tensor:
    """The mean of |e^(i·angle) - 1|² over the distances of a text: what is lost without the rotation."""
    distances = torch.arange(SPAN, dtype=torch.float64)
    near = (SPAN - distances) / (SPAN - distances).sum()  # distance t occurs SPAN - t times
    return ((2 - 2 * torch.cos(frequencies[:, None] * distances)) * near).sum(-1)


def choose_pairs(axes: Mapping[str, Axes], frequencies: torch.Tensor, rope_dim: int) -> list[tuple[int, int]]:
    """The pairs and axes that stay rotated in all layers, by their contribution in all of them."""
    if not rope_dim:
        return []
    total = torch.stack([one.contribution for one in axes.values()]).sum(0) * turning(frequencies)[:, None]
    found = total.flatten().topk(rope_dim // 2).indices.sort().values
    return [divmod(int(index), total.shape[1]) for index in found]


def factorised(
    layer: Projections, moment: torch.Tensor, space: KeySpace, axes: Axes, kept: list[tuple[int, int]], latent_dim: int
) -> dict[str, torch.Tensor]:
    """The weights of a LatentAttention by their names, without the output: the last column of q and latent is a bias.

    Args:
        moment: (dim + 1, dim + 1), the mean of x xᵀ for inputs with a 1 as last number.
        kept: the pairs and axes that stay rotated.
    """
    heads, head_dim, _ = layer.q.shape
    group = torch.arange(heads) // layer.members
    keys, reading = _unrotated(layer, space, axes, kept)  # (n, dim + 1), (kv_heads, head_dim, n)
    rows = torch.cat([keys, layer.v.flatten(0, 1)])
    down, up = compressed(rows, moment, _weights(layer, moment, reading), latent_dim)
    of_keys, of_values = up.split([len(keys), len(rows) - len(keys)])
    k, v = (reading @ of_keys)[group], of_values.unflatten(0, (layer.kv_heads, -1))[group]
    rope_k, rope_q = _pairs(axes.k, kept), _pairs(axes.q, kept)
    scale = ((head_dim + len(rope_k)) / head_dim) ** 0.5  # a LatentAttention divides by the root of both sizes
    return {
        "to_q": scale * torch.cat([layer.q, rope_q], 1).flatten(0, 1),
        "to_latent": torch.cat([down, rope_k]),
        "to_k": k.flatten(0, 1),
        "to_v": v.flatten(0, 1),
    }


def _pairs(complex_rows: torch.Tensor, kept: list[tuple[int, int]]) -> torch.Tensor:
    """Real rows of the kept numbers (pairs, ..., kv_heads, dim + 1) as halves: (..., 2 · kept, dim + 1)."""
    pairs, axes = torch.tensor(kept, dtype=torch.long).view(-1, 2).T
    chosen = complex_rows.movedim(-2, 1)[pairs, axes].movedim(0, -2)
    return torch.cat([chosen.real, chosen.imag], -2)


def _unrotated(
    layer: Projections, space: KeySpace, axes: Axes, kept: list[tuple[int, int]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers of the keys without rotation, and each head's key as their sum: (n, dim + 1), (kv_heads, head_dim, n)."""
    kv_heads, head_dim, _ = layer.k.shape
    pairs, rest = space.split(head_dim)
    dropped = [(c, j) for c in range(len(pairs)) for j in range(kv_heads) if (c, j) not in set(kept)]
    rows = _pairs(axes.k, dropped)
    reading = layer.k.new_zeros(kv_heads, head_dim, len(rows) + kv_heads * len(rest))
    for at, (c, j) in enumerate(dropped):  # conj(mix) · (a + ib) = (re a + im b) + i (re b - im a)
        real, imag = axes.mix[c, j].real, axes.mix[c, j].imag
        first, second, b = pairs[c, 0], pairs[c, 1], at + len(dropped)
        reading[:, first, at], reading[:, first, b] = real, imag
        reading[:, second, at], reading[:, second, b] = -imag, real
    for g in range(kv_heads):
        reading[g, rest, len(rows) + g * len(rest) + torch.arange(len(rest))] = 1.0
    return torch.cat([rows, layer.k[:, rest].flatten(0, 1)]), reading


def _weights(layer: Projections, moment: torch.Tensor, reading: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """How errors count: of keys by the queries that read them, of values by the output."""
    group = torch.arange(len(layer.q)) // layer.members
    queries = layer.q @ moment @ layer.q.mT  # (heads, head_dim, head_dim)
    keys = torch.einsum("hdn,hde,hem->nm", reading[group], queries, reading[group])
    outputs = torch.einsum("ohv,ohw->hvw", layer.o, layer.o).unflatten(0, (layer.kv_heads, -1)).sum(1)
    return keys, torch.block_diag(*outputs)


def compressed(
    rows: torch.Tensor, moment: torch.Tensor, weights: tuple[torch.Tensor, torch.Tensor], size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Matrices down (size, dim + 1) and up (n, size) with up · down close to rows (n, dim + 1) for the inputs.

    Args:
        weights: of the errors of the first rows, and of the others, each symmetric; each is scaled so that the rows
            themselves would count 1 in all.
        size: with n numbers or more, nothing is lost.
    """
    if size >= len(rows):
        more = size - len(rows)
        up = torch.eye(len(rows), dtype=rows.dtype)
        return torch.nn.functional.pad(rows, (0, 0, 0, more)), torch.nn.functional.pad(up, (0, more))
    roots, inverses = [], []
    for one, part in zip(weights, rows.split([len(each) for each in weights]), strict=True):
        values, vectors = torch.linalg.eigh(one)
        values = values.clamp(min=FLOOR * float(values.mean())) if len(values) else values
        total = (vectors * values @ vectors.mT @ part @ moment * part).sum().clamp(min=1e-30)
        root = (values / total).sqrt()
        roots.append(vectors * root @ vectors.mT)
        inverses.append(vectors / root @ vectors.mT)
    root, inverse = torch.block_diag(*roots), torch.block_diag(*inverses)
    weighted = root @ rows
    _, axes = torch.linalg.eigh(weighted @ moment @ weighted.mT)
    chosen = axes.flip(-1)[:, :size]
    return chosen.mT @ weighted, inverse @ chosen


# A whole model


@torch.no_grad()
def with_latents(
    model: LanguageModel, latent_dim: int, rope_dim: int | None = None, *, calibration: Calibration | None = None
) -> LanguageModel:
    """A copy of a language model with latent attention in each layer.

    Args:
        model: with softmax of scaled dot products.
        latent_dim, rope_dim: numbers of a token that each layer caches, as in LatentSizes.
        calibration: runs the model on a text, such as `lambda model: model(ids)`; without one the inputs of each layer
            are taken as independent numbers.

    Raises:
        ArgumentError: sizes that the keys and values do not have.
        UnsupportedError: another model, or one of another mechanism.

    >>> model = LanguageModel(LanguageModel.Config(vocab_size=50, dim=32, heads=4, kv_heads=2)).eval()
    >>> same = with_latents(model, latent_dim=16, rope_dim=16)  # 2 key/value heads of 8 numbers
    >>> torch.allclose(same(ids := torch.arange(4, 14)[None]), model(ids), atol=1e-5)
    True
    """
    of_kind("model", model, LanguageModel, "a LanguageModel")
    return _with_latents(model, LatentSizes(latent_dim, rope_dim), _moments(model, calibration))


def load_latent(folder: str | Path, sizes: LatentSizes, *, calibration: Calibration | None = None) -> Converted:
    """Load a language model, or the best one of a training run, and convert it to latent attention.

    Raises:
        CheckpointError: missing or damaged files.
        ArgumentError, UnsupportedError: as `with_latents`.
        RegardError: latents that lose nothing change the outputs of the model.
    """
    saved, model = load_original(folder)
    of_kind("the model", model, LanguageModel, "a LanguageModel")
    moments = _moments(model, calibration)
    layer = next(iter(_projections(model).values()))
    keys, values = (one[..., 0].numel() for one in (layer.k, layer.v))
    rotary = model.config.positions == "rotary"
    whole_one = LatentSizes(values, keys) if rotary else LatentSizes(keys + values, 0)
    exact = difference(_with_latents(deepcopy(model).double(), whole_one, moments), model)
    invariance = within_rounding(exact, "with latents that lose nothing the outputs of the model change")
    other = _with_latents(model, sizes, moments)
    kept = (other.config.latent_dim or 0) + (other.config.rope_dim or 0)
    numbers = {"numbers of a token, each layer": Change(keys + values, kept)}
    record = {"conversion": "latent", "latent_dim": other.config.latent_dim, "rope_dim": other.config.rope_dim}
    return compared(saved, model, other, record, method="latent", kv_heads=numbers, invariance=invariance)


def _projections(model: LanguageModel) -> dict[str, Projections]:
    state = model.state_dict()
    return {name: projections_of(model, name, state) for name in attention_layers(model)}


def _moments(model: LanguageModel, calibration: Calibration | None) -> dict[str, torch.Tensor]:
    """The mean of x xᵀ for the inputs of each layer, as in `moments_of`."""
    if model.config.latent_dim is not None:
        raise UnsupportedError("this model has latent attention already; convert one with key/value heads")
    calibration, layers = checked_calibration(calibration), attention_layers(model)
    if other := [str(one.mechanism.declared) for one in layers.values() if one.mechanism.declared != Softmax()]:
        raise UnsupportedError(f"latents compute softmax of scaled dot products, and this model has {other[0]}")
    if calibration is None:
        return {name: torch.eye(layer.dim + 1, dtype=torch.float64) for name, layer in layers.items()}
    return moments_of(deepcopy(model).double().eval(), layers, calibration)


@torch.no_grad()
def _with_latents(model: LanguageModel, sizes: LatentSizes, moments: Mapping[str, torch.Tensor]) -> LanguageModel:
    config, before = model.config, _projections(model)
    rotary = config.positions == "rotary"
    space = KeySpace(next(iter(attention_layers(model).values())).positions)
    latent_dim, rope_dim = sizes.checked(next(iter(before.values())), space)
    axes = {name: Axes.of(layer, moments[name], space) for name, layer in before.items()}
    turns = frequencies(config.head_dim, config.rotary_base, torch.device("cpu"))
    kept = choose_pairs(axes, turns, rope_dim)
    own = {"rope_dim": rope_dim, "rope_frequencies": tuple(float(turns[c]) for c, _ in kept)} if rotary else {}
    changed = replace(config, kv_heads=config.heads, latent_dim=latent_dim, latent_norms=False, **own)
    with torch.device("meta"):
        other = LanguageModel(changed)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for name, layer in before.items():
        for part in ("to_k", "to_v"):
            state.pop(f"{name}.{part}.bias", None)
        for part, rows in factorised(layer, moments[name], space, axes[name], kept, latent_dim).items():
            has_bias = part in ("to_q", "to_latent")
            state[f"{name}.{part}.weight"] = rows[:, :-1] if has_bias else rows
            if has_bias and config.biases:
                state[f"{name}.{part}.bias"] = rows[:, -1]
    dtype = next(model.parameters()).dtype
    other.load_state_dict({name: tensor.to(dtype).contiguous() for name, tensor in state.items()}, assign=True)
    return other.requires_grad_(True).train(model.training)
