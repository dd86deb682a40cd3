"""The layer of a walkthrough without a trained model: its weights are drawn from a seed, or given by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from regard.arguments import a_path, count_of, of_kind, shown, whole
from regard.errors import ArgumentError, CheckpointError, NotFoundError
from regard.layers import MultiHeadAttention
from regard.mechanisms import Softmax
from regard.packages import needed
from regard.positions import Rotary
from regard_lab.walkthrough.layer import LETTERS, new_score, score_of
from regard_lab.walkthrough.steps import RANDOM_NOTE, FileWeights

DRAWS = ("normal", "uniform")


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes of the layer and how its weights are drawn.

    Args:
        dim, heads, kv_heads: of the layer.
        query_dim, key_dim, value_dim: sizes of the queries, keys and values of a head; None for dim / heads, and for
            key_dim that of the queries.
        score, positions, causal: as for `walk`.
        draw: "normal" (such that queries and keys have about unit variance) or "uniform" (from 0 to 1).
        seed: of the table of vectors; the draws of the other weights follow it.
        weights_seed: of the other weights, if they have their own seed.

    Raises:
        ArgumentError: sizes below 1, or that do not divide.
    """

    dim: int
    heads: int
    kv_heads: int | None
    query_dim: int | None
    key_dim: int | None
    value_dim: int | None
    score: str
    positions: str
    causal: bool
    draw: str
    seed: int
    weights_seed: int | None

    def __post_init__(self) -> None:
        sizes = {name: getattr(self, name) for name in ("query_dim", "key_dim", "value_dim")}
        for name, size in sizes.items():
            if size is not None:
                whole(name, size, 1)
        divides = (self.query_dim or self.key_dim) is not None and self.value_dim is not None
        if min(self.dim, self.heads) < 1 or (self.dim % self.heads and not divides):
            raise ArgumentError(
                f"dim {self.dim} is not divisible by {count_of(self.heads, 'heads')}; choose "
                f"another dim or another number of heads"
            )
        if self.positions == "sinusoidal" and self.dim % 2:
            raise ArgumentError(f"sinusoidal positions need an even dim, and dim is {self.dim}")

    def layer(self) -> MultiHeadAttention:
        """The layer, with weights that are not drawn yet.

        Raises:
            ArgumentError: sizes that do not fit.
        """
        heads = self.heads
        size = self.query_dim if self.query_dim is not None else self.key_dim
        size = self.dim // heads if size is None else size
        key_dim = size if self.key_dim is None else self.key_dim
        score = new_score(self.score, size, key_dim)
        if self.positions == "rotary" and key_dim != size:
            raise ArgumentError(
                f"rotary positions rotate queries and keys of one size, and query_dim is {size}, key_dim {key_dim}"
            )
        return MultiHeadAttention(
            self.dim,
            heads,
            kv_heads=self.kv_heads,
            head_dim=size,
            value_dim=self.dim // heads if self.value_dim is None else self.value_dim,
            pattern="causal" if self.causal else None,
            mechanism=Softmax(score),
            positions=Rotary() if self.positions == "rotary" else None,
            projection_bias=False,
        )


@dataclass(frozen=True)
class Drawn:
    """A layer and a table of vectors (words, dim) in float64, and where each of their weights comes from."""

    layer: MultiHeadAttention
    table: torch.Tensor
    sizes: Sizes
    given: frozenset[str]

    def origin(self, name: str) -> str:
        """Where the weights of a name come from, in a few words."""
        if name in self.given:
            return "given"
        seed = self.sizes.weights_seed
        return f"drawn with seed {self.sizes.seed if seed is None or name == 'table' else seed}"

    def notes(self) -> tuple[str, ...]:
        """Which weights are random, and what is computed from them; nothing if all were given."""
        random = [name for name in _places(self.layer, self.table) if name not in self.given]
        if not random or not self.given:
            return (RANDOM_NOTE,) if random else ()
        return (
            f"{_and(random)} {'is' if len(random) == 1 else 'are'} not given but random. {_random_results(random)}",
        )


def _random_results(random: Sequence[str]) -> str:
    """Which results depend on random weights: scores need all weights but W_v and W_o, context vectors no W_o."""
    if not {*random} <= {"W_v", "W_o"}:
        return (
            "Scores and weights depend on random numbers, so it means nothing which word gets most weight; watch how "
            "the numbers are calculated."
        )
    results = "context vectors and the output depend" if "W_v" in random else "output depends"
    kept = "Scores and weights" if "W_v" in random else "Scores, weights and context vectors"
    return f"{kept} are computed from given numbers only; the {results} on random ones."


def _and(names: Sequence[str]) -> str:
    """
    >>> _and(["W_v", "W_o"]), _and(["W_o"])
    ('W_v and W_o', 'W_o')
    """
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)


def draw(vocabulary: Sequence[str], sizes: Sizes, given: Mapping[str, torch.Tensor] | None) -> Drawn:
    """Draw a layer and a table of vectors, and replace the weights that are given.

    Numbers are drawn in float32, in the order table, W_q, W_k, W_v, W_o, those of the score; the state of torch's
    generator is left unchanged.

    Raises:
        ArgumentError: sizes that do not fit, or given weights with an unknown name or another shape.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(sizes.seed)
        table = torch.randn(len(vocabulary), sizes.dim)
        layer = sizes.layer()
        if sizes.weights_seed is not None:
            torch.manual_seed(sizes.weights_seed)
        for projection in layer.children():
            if isinstance(projection, nn.Linear):
                _fill(projection.weight, sizes.draw, sizes.dim)
        for learned in layer.mechanism.learned.values():
            _fill(learned, sizes.draw, learned.shape[-1])
    layer, table = layer.double().eval().requires_grad_(False), table.double()
    if given is not None:
        _replace(_places(layer, table), given, vocabulary)
    return Drawn(layer, table, sizes, frozenset(given or ()))


def read_weights(path: str | Path) -> FileWeights:
    """The tensors of a safetensors file, by name.

    Raises:
        CheckpointError: a file that cannot be read as safetensors.
        MissingPackageError: safetensors is not installed.
    """
    path = a_path("weights", path)
    with needed("safetensors", "reading weights"):
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    if Path(path).is_dir():
        raise NotFoundError(f"{path} is a folder; name a safetensors file inside it")
    try:
        return FileWeights(path, load_file(path))
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise NotFoundError(f"{path} cannot be read as safetensors: {error.strerror or error}") from error
    except (SafetensorError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise CheckpointError(f"{path} cannot be read as safetensors: {reason}") from error


def _fill(weight: torch.Tensor, law: str, inputs: int) -> None:
    if law == "uniform":
        nn.init.uniform_(weight)
    else:
        nn.init.normal_(weight, std=inputs**-0.5)


def _places(layer: MultiHeadAttention, table: torch.Tensor) -> dict[str, torch.Tensor]:
    """The tensors of the layer by the names that lines use, with an axis for heads; changing them changes the layer."""
    assert layer.to_k is not None
    places = {"table": table}
    for name, projection, heads in (
        ("W_q", layer.to_q, layer.heads), ("W_k", layer.to_k, layer.kv_heads), ("W_v", layer.to_v, layer.kv_heads)
    ):  # fmt: skip
        places[name] = projection.weight.unflatten(0, (heads, -1))
    places["W_o"] = layer.to_output.weight
    names = LETTERS.get(type(score_of(layer.mechanism.declared)), {})
    return places | {letter: layer.mechanism.learned[name] for name, (letter, _) in names.items()}


AXES = {
    "table": "(words, dim)", "W_q": "(heads, query_dim, dim)", "W_k": "(kv_heads, key_dim, dim)",
    "W_v": "(kv_heads, value_dim, dim)", "W_o": "(dim, heads · value_dim)",
}  # fmt: skip


def _replace(places: dict[str, torch.Tensor], given: Mapping[str, torch.Tensor], vocabulary: Sequence[str]) -> None:
    """Write the given weights into the layer; a matrix of one head may lack the axis for heads."""
    of_kind("weights", given, Mapping, "tensors by name")
    if unknown := sorted(str(name) for name in given if name not in places):
        raise ArgumentError(f"there are no weights {', '.join(unknown)[:80]}; this layer has {', '.join(places)}")
    for name, tensor in given.items():
        place = places[name]
        if not isinstance(tensor, torch.Tensor) or not tensor.dtype.is_floating_point:
            raise ArgumentError(f"{name} is {shown(tensor)}; it needs a tensor of floating-point numbers")
        fitting = tensor[None] if tensor.dim() == place.dim() - 1 and len(place) == 1 else tensor
        if fitting.shape != place.shape:
            of = f", for the vocabulary {', '.join(vocabulary)}"[:200] if name == "table" else ""
            raise ArgumentError(
                f"{name} has shape {tuple(tensor.shape)}; with these options it needs {tuple(place.shape)}"
                f"{', which is ' + AXES[name] if name in AXES else ''}{of}; change the file or the sizes"
            )
        if not bool(fitting.isfinite().all()):
            raise ArgumentError(f"{name} holds numbers that are not finite; a walkthrough needs finite ones")
        place.copy_(fitting)
