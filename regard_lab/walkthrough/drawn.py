"""The layer of a walkthrough without a trained model: its weights are drawn from a seed, or given by name."""

from collections.abc import Callable, Mapping, Sequence
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


def new_layer(
    dim: int, heads: int, *, kv_heads: int | None, query_dim: int | None, key_dim: int | None, value_dim: int | None,
    score: str, positions: str, causal: bool,
) -> MultiHeadAttention:  # fmt: skip
    """The layer, with weights that are not drawn yet; options as for `walk`.

    Raises:
        ArgumentError: sizes of heads below 1, or sizes that do not divide or fit.
    """
    for name, given in (("query_dim", query_dim), ("key_dim", key_dim), ("value_dim", value_dim)):
        if given is not None:
            whole(name, given, 1)
    divides = (query_dim or key_dim) is not None and value_dim is not None
    if dim % heads and not divides:
        raise ArgumentError(
            f"dim {dim} is not divisible by {count_of(heads, 'heads')}; choose another dim or another number of heads"
        )
    if positions == "sinusoidal" and dim % 2:
        raise ArgumentError(f"sinusoidal positions need an even dim, and dim is {dim}")
    size = query_dim or key_dim or dim // heads
    scores = new_score(score, size, key_dim or size)
    if positions == "rotary" and (key_dim or size) != size:
        raise ArgumentError(
            f"rotary positions rotate queries and keys of one size, and query_dim is {size}, key_dim {key_dim}"
        )
    return MultiHeadAttention(
        dim, heads, kv_heads=kv_heads, head_dim=size, value_dim=value_dim or dim // heads,
        pattern="causal" if causal else None, mechanism=Softmax(scores),
        positions=Rotary() if positions == "rotary" else None, projection_bias=False,
    )  # fmt: skip


@dataclass(frozen=True)
class Drawn:
    """A layer and a table of vectors (words, dim) in float64; the seeds of both, and the names of given weights."""

    layer: MultiHeadAttention
    table: torch.Tensor
    seed: int
    weights_seed: int | None
    given: frozenset[str]

    def origin(self, name: str) -> str:
        """Where the weights of a name come from, in a few words."""
        if name in self.given:
            return "given"
        own = self.weights_seed is not None and name != "table"
        return f"drawn with seed {self.weights_seed if own else self.seed}"

    def notes(self) -> tuple[str, ...]:
        """Which weights are random, and which results depend on them; nothing if all were given.

        Scores need all weights but W_v and W_o, and context vectors all but W_o.
        """
        random = [name for name in _places(self.layer, self.table) if name not in self.given]
        if not random or not self.given:
            return (RANDOM_NOTE,) if random else ()
        if not {*random} <= {"W_v", "W_o"}:
            results = (
                "Scores and weights depend on random numbers, so it means nothing which word gets most weight; watch "
                "how the numbers are calculated."
            )
        else:
            given, rest = "Scores, weights and context vectors", "the output depends"
            if "W_v" in random:
                given, rest = "Scores and weights", "the context vectors and the output depend"
            results = f"{given} are computed from given numbers only; {rest} on random ones."
        *before, last = random
        names = f"{', '.join(before)} and {last} are" if before else f"{last} is"
        return (f"{names} not given but random. {results}",)


def draw(
    vocabulary: Sequence[str], dim: int, new: Callable[[], MultiHeadAttention], law: str, seed: int,
    weights_seed: int | None, given: Mapping[str, torch.Tensor] | None,
) -> Drawn:  # fmt: skip
    """Draw a table of vectors and the weights of a new layer, and replace those that are given.

    Numbers are drawn in float32, in the order table, W_q, W_k, W_v, W_o, those of the score; the state of torch's
    generator is left unchanged. By the law "normal", queries and keys have about unit variance; by "uniform", weights
    are from 0 to 1.

    Raises:
        ArgumentError: sizes that do not fit, or given weights with an unknown name or another shape.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        table = torch.randn(len(vocabulary), dim)
        layer = new()
        if weights_seed is not None:
            torch.manual_seed(weights_seed)
        weights = [(part.weight, dim) for part in layer.children() if isinstance(part, nn.Linear)]
        weights += [(learned, learned.shape[-1]) for learned in layer.mechanism.learned.values()]
        for weight, inputs in weights:
            if law == "uniform":
                nn.init.uniform_(weight)
            else:
                nn.init.normal_(weight, std=inputs**-0.5)
    layer, table = layer.double().eval().requires_grad_(False), table.double()
    if given is not None:
        _replace(_places(layer, table), given, vocabulary)
    return Drawn(layer, table, seed, weights_seed, frozenset(given or ()))


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
