"""One attention layer as a walkthrough shows it: drawn or given weights, its scores and vectors written in PyTorch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from regard.arguments import a_path, count_of, of_kind, shown, whole
from regard.bias import ALiBi, series
from regard.errors import ArgumentError, CheckpointError, NotFoundError, UnsupportedError
from regard.layers import MultiHeadAttention
from regard.mechanisms import Mechanism, Softmax
from regard.mechanisms.scores import Additive, Concat, Dot, General, ScaledDot, Score
from regard.packages import needed
from regard.patterns import Causal, Full
from regard.positions import Rotary
from regard_lab.walkthrough.steps import RANDOM_NOTE, Axis, FileWeights, Walker


def projected(x: str, matrix: str, bias: str, *, heads: bool = False) -> str:
    """Vectors multiplied by a matrix, or by those of all heads; plus a bias, if named.

    >>> projected("x", "W_q", "b_q", heads=True), projected("x", "W_o", "")
    ('x @ W_q.mT + b_q[:, None]', 'x @ W_o.T')
    """
    product = f"{x} @ {matrix}.mT" if heads else f"{x} @ {matrix}.T"
    if not bias:
        return product
    return f"{product} + {bias}[:, None]" if heads else f"{product} + {bias}"


def rotated(name: str, size: int, angles: str = "angles") -> str:
    """Queries or keys (of one head or of all) rotated by the step of their angles."""
    half = size // 2
    swapped = f"[-{name}[..., {half}:], {name}[..., :{half}]]"
    return f"{name} * {angles}.cos() + torch.cat({swapped}, -1) * {angles}.sin()"


@dataclass(frozen=True)
class ScoreLines:
    """A score function as PyTorch expressions, with placeholders for word i, head h, n queries and m keys.

    Queries and keys {q}, {k} have vectors as rows; {q_i} is the query of word i.

    Args:
        formula: the score of one pair.
        says: an explanation of the formula.
        one, all, heads: the scores of one query (m), of all (n, m) and of all heads (heads, n, m).
        hidden: the hidden layer of a score that has one, (m, hidden); `one` then uses it, as {hidden}.
        hidden_formula: the formula of the hidden layer.
    """

    formula: str
    says: str
    one: str
    all: str
    heads: str
    hidden: str = ""
    hidden_formula: str = ""


DOT = ScoreLines(
    formula="ω_{ij} = q_i · k_j",
    says="The dot product of query and key: large if the two vectors point in similar directions.",
    one="{k} @ {q_i}",
    all="{q} @ {k}.T",
    heads="{Q} @ {K}.mT",
)
GENERAL = ScoreLines(
    formula="ω_{ij} = q_i^T W_a k_j",
    says="Luong's general score: a learned matrix weighs every product of a query component and a key component.",
    one="{k} @ ({q_i} @ W_a[{h}])",
    all="{q} @ W_a[{h}] @ {k}.T",
    heads="{Q} @ W_a @ {K}.mT",
)
ADDITIVE = ScoreLines(
    formula="ω_{ij} = v_a^T h_{ij}",
    says="Bahdanau's additive score: the hidden layer of each pair is reduced to one number, its score.",
    one="{hidden} @ v_a[{h}]",
    all="torch.tanh(({q} @ W_a[{h}].T)[:, None] + {k} @ U_a[{h}].T) @ v_a[{h}]",
    heads='torch.einsum("hijd,hd->hij", torch.tanh(({Q} @ W_a.mT)[:, :, None] + ({K} @ U_a.mT)[:, None]), v_a)',
    hidden="torch.tanh({q_i} @ W_a[{h}].T + {k} @ U_a[{h}].T)",
    hidden_formula="h_{ij} = tanh(W_a q_i + U_a k_j)",
)
CONCAT = ScoreLines(
    formula="ω_{ij} = v_a^T h_{ij}",
    says="Luong's concat score: the hidden layer of each pair is reduced to one number, its score.",
    one="{hidden} @ v_a[{h}]",
    all="torch.tanh(torch.cat([{q}[:, None].expand(-1, {m}, -1), {k}.expand({n}, -1, -1)], -1) @ W_a[{h}].T) "
    "@ v_a[{h}]",
    heads='torch.einsum("hijd,hd->hij", torch.tanh(torch.cat([{Q}[:, :, None].expand(-1, -1, {m}, -1), '
    "{K}[:, None].expand(-1, {n}, -1, -1)], -1) @ W_a[:, None].mT), v_a)",
    hidden="torch.tanh(torch.cat([{q_i}.expand({m}, -1), {k}], -1) @ W_a[{h}].T)",
    hidden_formula="h_{ij} = tanh(W_a [q_i ; k_j])",
)

SCORES = ("scaled_dot", "dot", "general", "concat", "additive")
LINES: dict[type[Score], ScoreLines] = {
    ScaledDot: DOT,
    Dot: DOT,
    General: GENERAL,
    Concat: CONCAT,
    Additive: ADDITIVE,
}
# Parameters of a score by their name in the paper, and whether there is one per key head rather than per query head.
LETTERS: dict[type[Score], dict[str, tuple[str, bool]]] = {
    General: {"weight": ("W_a", False)},
    Concat: {"weight": ("W_a", True), "energy": ("v_a", False)},
    Additive: {
        "query_weight": ("W_a", False),
        "key_weight": ("U_a", True),
        "energy": ("v_a", False),
    },
}


def new_score(name: str, query_dim: int, key_dim: int) -> Score:
    """A score for queries and keys of these sizes, by its name in `SCORES`."""
    if name in ("scaled_dot", "dot"):
        if query_dim != key_dim:
            raise ArgumentError(
                f"query_dim {query_dim} and key_dim {key_dim} differ, and a dot product needs vectors of one size; "
                f"make them equal, or choose the score general, concat or additive"
            )
        return ScaledDot() if name == "scaled_dot" else Dot()
    if name == "general":
        return General(query_dim, key_dim)
    if name == "concat":
        return Concat(query_dim, key_dim, hidden=query_dim)
    return Additive(query_dim, key_dim, hidden=query_dim)


def score_of(mechanism: Mechanism) -> Score:
    """The score function of a softmax mechanism."""
    if not isinstance(mechanism, Softmax) or type(mechanism.score) not in LINES:
        raise UnsupportedError(
            f"this layer uses {mechanism}; a walkthrough needs softmax attention with one of the scores "
            f"{', '.join(SCORES)}"
        )
    return mechanism.score


@dataclass(frozen=True)
class Scene:
    """The layer of a walkthrough, its queries and keys, and how its steps are called.

    Args:
        walker: records the steps.
        layer: in float64.
        readers, read: the axes of the query words, of which one is followed, and of the key words.
        x, c: the names of their vectors; the same in self-attention.
        origin: where the weights of a name come from.
        head: the head that is shown in detail, from 0.
        bias: a bias by distance, added to the scores.
        kind: what titles of all heads begin with.
        tag: the end of all names of a layer in a model, such as "_e0"; empty for the only layer.
        scope: the end of the name of its angles, which all layers of a stack share.
    """

    walker: Walker
    layer: MultiHeadAttention
    readers: Axis
    read: Axis
    x: str
    c: str
    origin: Callable[[str], str]
    head: int = 0
    bias: ALiBi | None = None
    kind: str = "All heads"
    tag: str = ""
    scope: str = ""

    @property
    def word(self) -> int:
        """The index of the followed word."""
        return self.readers.followed

    @property
    def chosen(self) -> str:
        return self.readers.labels[self.word]

    @property
    def crosses(self) -> bool:
        return self.x != self.c

    @property
    def group(self) -> int:
        """The number of query heads that share a key/value head."""
        return self.layer.heads // self.layer.kv_heads

    @property
    def score(self) -> Score:
        return score_of(self.layer.mechanism.declared)

    @property
    def lines(self) -> ScoreLines:
        return LINES[type(self.score)]

    @property
    def multiplies(self) -> bool:
        """Whether the scores are dot products, which PyTorch's fused attention computes."""
        return self.lines is DOT

    @property
    def scaling(self) -> str:
        """The expression that scales the scores; empty if they are not scaled."""
        return f" / math.sqrt({self.layer.head_dim})" if isinstance(self.score, ScaledDot) else ""

    @property
    def causal(self) -> bool:
        return self.layer.pattern.canonical() == Causal() and not self.crosses

    @property
    def varies_by_head(self) -> bool:
        return self.layer.pattern.varies_by_head

    @property
    def mask(self) -> str:
        """The expression of the boolean mask, (n, m) or (heads, n, m); empty if every pair is allowed."""
        n = len(self.readers)
        m = len(self.read)
        if self.causal:
            return f"torch.ones({n}, {n}, dtype=torch.bool).tril()"

        pattern = self.layer.pattern.canonical()
        if pattern == Full():
            return ""
        dense = f'parse("{pattern}").dense({n}, {m}, q_start=0)'
        return f"{dense}[0]" if self.varies_by_head else dense

    def name(self, what: str) -> str:
        """The name of a step of all heads."""
        return f"{what}{self.tag}" if self.tag else f"all_{what}"

    def given(self, name: str) -> str:
        """The name of a weight of this layer, if it has it; else an empty string."""
        tagged = f"{name}{self.tag}"
        return tagged if tagged in self.walker.values else ""


def give_layer(scene: Scene) -> None:
    """Give the walker the weights of the layer, with an axis for heads, under names that end in the tag."""
    layer = scene.layer
    give = scene.walker.give

    # Refuses every mechanism but softmax, before other reasons to refuse the layer.
    score = scene.score
    if layer.options["softcap"] is not None or layer.to_k is None:
        raise UnsupportedError(
            "this layer has a softcap or shares queries and keys; a walkthrough can show neither"
        )
    scaled = layer.positions is not None and (layer.positions.scaling or layer.positions.axes)
    refinements = (
        layer.q_norm,
        layer.to_output_gate,
        layer.value_mix,
        layer.difference,
        layer.to_forget,
    )
    if scaled or any(part is not None for part in refinements):
        raise UnsupportedError(
            "this layer has qk_norm, output_gate, value_residual, differential, forgetting or scaled positions; a "
            "walkthrough shows none of them"
        )

    for what, projection, heads, axes in (
        ("queries", layer.to_q, layer.heads, "heads × query size"),
        ("keys", layer.to_k, layer.kv_heads, "key/value heads × key size"),
        ("values", layer.to_v, layer.kv_heads, "key/value heads × value size"),
    ):
        W = f"W_{what[0]}"
        by_head = projection.weight.unflatten(0, (heads, -1))
        says = f"of the {what}, {scene.origin(W)}"
        give(f"{W}{scene.tag}", by_head, says, f"{axes} × vector size")
        if projection.bias is not None:
            b = f"b_{what[0]}"
            by_head = projection.bias.unflatten(0, (heads, -1))
            says = f"of the {what}, {scene.origin(b)}"
            give(f"{b}{scene.tag}", by_head, says, axes)

    says = f"of the output, {scene.origin('W_o')}"
    give(f"W_o{scene.tag}", layer.to_output.weight, says, "vector size × numbers of all heads")
    if layer.to_output.bias is not None:
        give(f"b_o{scene.tag}", layer.to_output.bias, says)

    for name, (letter, of_keys) in LETTERS.get(type(score), {}).items():
        learned = layer.mechanism.learned[name]
        if of_keys:
            learned = learned.repeat_interleave(scene.group, 0)
        give(f"{letter}{scene.tag}", learned, f"of the score, {scene.origin(letter)}")


def give_slopes(walker: Walker, bias: ALiBi, heads: int, words: Axis) -> None:
    """Give the slopes of a bias by distance, and add the step of the distances."""
    slopes = series(heads) if bias.slopes is None else bias.slopes
    by_head = torch.tensor(slopes, dtype=torch.float64)
    walker.give("slopes", by_head, "slope of the bias by distance in each head")

    line = f"distances = (torch.arange({len(words)}) - torch.arange({len(words)})[:, None]).abs()"
    says = "The distance of each pair of words, in positions."
    walker.step(line, "Distances", says, "|j - i|", axes=(words, words), scale="none")


DRAWS = ("normal", "uniform")


def new_layer(
    dim: int,
    heads: int,
    *,
    kv_heads: int | None,
    query_dim: int | None,
    key_dim: int | None,
    value_dim: int | None,
    score: str,
    positions: str,
    causal: bool,
) -> MultiHeadAttention:
    """The layer, with weights that are not drawn yet; options as for `walk`."""
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
        dim,
        heads,
        kv_heads=kv_heads,
        head_dim=size,
        value_dim=value_dim or dim // heads,
        pattern="causal" if causal else None,
        mechanism=Softmax(scores),
        positions=Rotary() if positions == "rotary" else None,
        projection_bias=False,
    )


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
        if name == "table" or self.weights_seed is None:
            return f"drawn with seed {self.seed}"
        return f"drawn with seed {self.weights_seed}"

    def notes(self) -> tuple[str, ...]:
        """Which weights are random, and which results depend on them; nothing if all were given.

        Scores need all weights but W_v and W_o, and context vectors all but W_o.
        """
        random = [name for name in _places(self.layer, self.table) if name not in self.given]
        if not random:
            return ()
        if not self.given:
            return (RANDOM_NOTE,)

        if not {*random} <= {"W_v", "W_o"}:
            results = (
                "Scores and weights depend on random numbers, so it means nothing which word gets most weight; watch "
                "how the numbers are calculated."
            )
        elif "W_v" in random:
            results = (
                "Scores and weights are computed from given numbers only; the context vectors and the output depend "
                "on random ones."
            )
        else:
            results = (
                "Scores, weights and context vectors are computed from given numbers only; the output depends on "
                "random ones."
            )

        *before, last = random
        names = f"{', '.join(before)} and {last} are" if before else f"{last} is"
        return (f"{names} not given but random. {results}",)


def draw_layer(
    vocabulary: Sequence[str],
    dim: int,
    new: Callable[[], MultiHeadAttention],
    law: str,
    seed: int,
    weights_seed: int | None,
    given: Mapping[str, torch.Tensor] | None,
) -> Drawn:
    """Draw a table of vectors and the weights of a new layer, and replace those that are given.

    Numbers are drawn in float32, in the order table, W_q, W_k, W_v, W_o, those of the score; the state of torch's
    generator is left unchanged. By the law "normal", queries and keys have about unit variance; by "uniform", weights
    are from 0 to 1.
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
    layer = layer.double().eval().requires_grad_(False)
    table = table.double()
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
        raise NotFoundError(
            f"{path} cannot be read as safetensors: {error.strerror or error}"
        ) from error
    except (SafetensorError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise CheckpointError(f"{path} cannot be read as safetensors: {reason}") from error


def _places(layer: MultiHeadAttention, table: torch.Tensor) -> dict[str, torch.Tensor]:
    """The tensors of the layer by the names that lines use, with an axis for heads; changing them changes the layer."""
    assert layer.to_k is not None
    places = {"table": table}
    for name, projection, heads in (
        ("W_q", layer.to_q, layer.heads),
        ("W_k", layer.to_k, layer.kv_heads),
        ("W_v", layer.to_v, layer.kv_heads),
    ):
        places[name] = projection.weight.unflatten(0, (heads, -1))
    places["W_o"] = layer.to_output.weight
    score = score_of(layer.mechanism.declared)
    for name, (letter, _) in LETTERS.get(type(score), {}).items():
        places[letter] = layer.mechanism.learned[name]
    return places


AXES = {
    "table": "(words, dim)",
    "W_q": "(heads, query_dim, dim)",
    "W_k": "(kv_heads, key_dim, dim)",
    "W_v": "(kv_heads, value_dim, dim)",
    "W_o": "(dim, heads · value_dim)",
}


def _replace(
    places: dict[str, torch.Tensor], given: Mapping[str, torch.Tensor], vocabulary: Sequence[str]
) -> None:
    """Write the given weights into the layer; a matrix of one head may lack the axis for heads."""
    of_kind("weights", given, Mapping, "tensors by name")
    if unknown := sorted(str(name) for name in given if name not in places):
        raise ArgumentError(
            f"there are no weights {', '.join(unknown)[:80]}; this layer has {', '.join(places)}"
        )
    for name, tensor in given.items():
        place = places[name]
        if not isinstance(tensor, torch.Tensor) or not tensor.dtype.is_floating_point:
            raise ArgumentError(
                f"{name} is {shown(tensor)}; it needs a tensor of floating-point numbers"
            )
        lacks_heads = tensor.dim() == place.dim() - 1 and len(place) == 1
        fitting = tensor[None] if lacks_heads else tensor
        if fitting.shape != place.shape:
            needed_shape = f"{tuple(place.shape)}"
            if name in AXES:
                needed_shape += f", which is {AXES[name]}"
            if name == "table":
                needed_shape += f", for the vocabulary {', '.join(vocabulary)}"[:200]
            raise ArgumentError(
                f"{name} has shape {tuple(tensor.shape)}; with these options it needs {needed_shape}; "
                f"change the file or the sizes"
            )
        if not bool(fitting.isfinite().all()):
            raise ArgumentError(
                f"{name} holds numbers that are not finite; a walkthrough needs finite ones"
            )
        place.copy_(fitting)
