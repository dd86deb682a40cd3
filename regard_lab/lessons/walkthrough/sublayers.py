"""The parts of a Transformer layer as steps: norm, attention with all heads joined, feed-forward, residual.

Names of variables end in a tag that says where they belong: `Q_0` in layer 0, `Q_e0` in the encoder's, `Q_d0` in the
decoder's self-attention, `Q_c0` in its cross-attention.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn

from regard.errors import UnsupportedError
from regard.layers import FeedForward, MultiHeadAttention
from regard_lab.lessons.walkthrough.layer import LETTERS, Scene
from regard_lab.lessons.walkthrough.one_head import measure_angles
from regard_lab.lessons.walkthrough.steps import Axis, Walker, numbered
from regard_lab.lessons.walkthrough.writing import ROWS


@dataclass
class Stage:
    """A stack of layers that is walked through.

    Args:
        walker: runs the lines.
        words: the words whose vectors go through the stack; the chosen one is followed.
        scope: "" for a model with one stack, "e" for the encoder, "d" for the decoder.
        origin: where weights come from, in a few words.
        explained: explanations that were given already; each is given once.
    """

    walker: Walker
    words: Axis
    scope: str
    origin: str
    explained: set[str] = field(default_factory=set)

    @property
    def word(self) -> int:
        assert self.words.chosen is not None
        return self.words.chosen

    @property
    def chosen(self) -> str:
        return self.words.labels[self.word]

    def once(self, says: str) -> str:
        """An explanation, or nothing if it was given before."""
        if says in self.explained:
            return ""
        self.explained.add(says)
        return says

    def give(self, name: str, tensor: torch.Tensor | None, says: str) -> bool:
        """Give a weight, if the layer has it."""
        if tensor is not None:
            self.walker.give(name, tensor, f"{says}, {self.origin}")
        return tensor is not None

    def vector(self, name: str) -> torch.Tensor:
        """The vector of the followed word in a step (words, numbers)."""
        return self.walker.values[name][self.word]


def normed(stage: Stage, norm: nn.Module, h: str, name: str) -> str:
    """Add the step `name`, the norm of the vectors `h`; return the name of the result, `h` where there is no norm."""
    if isinstance(norm, nn.Identity):
        return h
    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
    stage.give(f"gain_{name}", norm.weight, f"of the norm that gives {name}")
    shifted = stage.give(f"shift_{name}", getattr(norm, "bias", None), f"of the norm that gives {name}")
    size = int(norm.normalized_shape[0])
    if isinstance(norm, nn.LayerNorm):
        mean, spread = f"{h}.mean(-1, keepdim=True)", f"{h}.var(-1, correction=0, keepdim=True)"
        line = f"({h} - {mean}) / ({spread} + {norm.eps!r}).sqrt() * gain_{name}"
        formula = f"g · {{({h[0]}_i - μ_i)}}/{{√{{(σ_i^2 + ε)}}}}"
        says = "The norm gives every vector the mean 0 and the variance 1, then a learned gain"
        says += " and shift." if shifted else "."
    else:
        line = f"{h} / ({h}.square().mean(-1, keepdim=True) + {norm.eps!r}).sqrt() * gain_{name}"
        formula = f'g · {{{h[0]}_i}}/{{√{{("mean"({h[0]}_i^2) + ε)}}}}'
        says = "The norm divides every vector by the root of its mean square, then applies a learned gain."
    formula += " + b" if shifted else ""
    line += f" + shift_{name}" if shifted else ""
    axes = stage.words, numbered("numbers", size)
    return stage.walker.step(f"{name} = {line}", "Norm", stage.once(says), formula, axes=axes)


def added(stage: Stage, h: str, part: str, name: str, what: str) -> str:
    """Add the residual step `name = h + part`, with the lengths of both for the followed word."""

    def says(_: torch.Tensor) -> str:
        before, more = float(stage.vector(h).norm()), float(stage.vector(part).norm())
        first = stage.once("A residual connection: the part adds to the vector of a word and does not replace it.")
        lengths = f"To “{stage.chosen}”, of length {before:.2f}, the {what} adds a vector of length {more:.2f}."
        return f"{first} {lengths}".strip()

    axes = stage.words, numbered("numbers", stage.walker.values[h].shape[1])
    return stage.walker.step(f"{name} = {h} + {part}", "Residual", says, f"{name[0]}_i + {part[0]}_i", axes=axes)


def around(
    stage: Stage, h: str, norm: nn.Module, names: tuple[str, str], part: Callable[[str], str], what: str, first: bool
) -> str:
    """Add a part with its norm and residual; return the name of the result.

    Args:
        stage: the stack.
        h: the name of the vectors that come in.
        norm: before the part if `first`, else after the residual.
        names: of the normed vectors that the part reads, and of the result.
        part: adds the steps of the part for vectors of a name, and returns the name of its output.
        what: the part in words.
        first: whether the norm comes first.
    """
    inner, after = names
    if first:
        return added(stage, h, part(normed(stage, norm, h, inner)), after, what)
    return normed(stage, norm, added(stage, h, part(h), f"sum_{after}", what), after)


def attend(stage: Stage, scene: Scene, tag: str, kind: str) -> str:
    """Add the steps of attention in all heads; return the name of the output.

    Raises:
        UnsupportedError: a mechanism that a walkthrough cannot show.
    """
    _give_attention(stage, scene, tag)
    many = Axis("heads", tuple(f"head {number}" for number in range(scene.layer.heads)))
    q, k, v = _project(stage, scene, tag, kind, many)
    weights = _weigh(stage, scene, tag, kind, many, q, k)
    walker, layer, words = stage.walker, scene.layer, scene.readers
    contexts = walker.step(
        f"contexts{tag} = {weights} @ {v}", f"{kind}: context vectors",
        stage.once("In each head, the sum of the values by the attention weights."), "z_i^h = Σ_j α_{ij}^h v_j^h",
        axes=(many, words, numbered("numbers", layer.value_dim)),
    )  # fmt: skip
    joined = walker.step(
        f"joined{tag} = torch.cat(list({contexts}), dim=-1)", f"{kind}: heads joined",
        stage.once("The context vectors of all heads, one after the other, for each word."),
        "r_i = [z_i^1 ; … ; z_i^H]", axes=(words, numbered("numbers", layer.heads * layer.value_dim)),
    )  # fmt: skip
    bias = f"b_o{tag}" if f"b_o{tag}" in walker.values else ""
    return walker.step(
        f"attended{tag} = {ROWS.projected(joined, f'W_o{tag}', bias=bias)}", f"{kind}: output",
        stage.once("A matrix combines the heads into a vector that has the size of the word's vector again."),
        "a_i = W_o r_i" + (" + b_o" if bias else ""), axes=(words, numbered("numbers", layer.dim)),
    )  # fmt: skip


def _give_attention(stage: Stage, scene: Scene, tag: str) -> None:
    """Give the weights of an attention layer, with an axis for heads, under names that end in the tag."""
    layer = scene.layer
    score = scene.score  # refuses every mechanism but softmax
    if layer.to_k is None or layer.options["softcap"] is not None:
        raise UnsupportedError("this layer has a softcap or shares queries and keys; a walkthrough can show neither")
    parts = (("q", layer.to_q, layer.heads), ("k", layer.to_k, layer.kv_heads), ("v", layer.to_v, layer.kv_heads))
    for letter, projection, heads in parts:
        for sign, tensor in (("W", projection.weight), ("b", projection.bias)):
            split = None if tensor is None else tensor.unflatten(0, (heads, -1))
            stage.give(
                f"{sign}_{letter}{tag}", split, f"{'matrices' if sign == 'W' else 'bias'} of {letter.upper()}{tag}"
            )
    stage.give(f"W_o{tag}", layer.to_output.weight, f"matrix of attended{tag}")
    stage.give(f"b_o{tag}", layer.to_output.bias, f"bias of attended{tag}")
    for name, (letter, of_keys) in LETTERS.get(type(score), {}).items():
        learned = layer.mechanism.learned[name]
        shared = learned.repeat_interleave(scene.group, 0) if of_keys else learned
        stage.give(f"{letter}{tag}", shared, f"of the score in scores{tag}")


def _project(stage: Stage, scene: Scene, tag: str, kind: str, many: Axis) -> tuple[str, str, str]:
    """Add queries, keys and values of all heads, rotated and shared as the layer does; return their names."""
    walker, layer, names = stage.walker, scene.layer, {}
    few = many if scene.group == 1 else Axis("heads", tuple(f"key/value head {n}" for n in range(layer.kv_heads)))
    if layer.positions is not None and f"angles{stage.scope}" not in walker.values:
        measure_angles(walker, layer.positions, scene.read, layer.head_dim, ROWS, f"angles{stage.scope}")
    for letter, what, heads, words, source in (
        ("q", "queries", many, scene.readers, scene.x),
        ("k", "keys", few, scene.read, scene.c),
        ("v", "values", few, scene.read, scene.c),
    ):
        bias = f"b_{letter}{tag}" if f"b_{letter}{tag}" in walker.values else ""
        name = f"{letter.upper()}{tag}"
        matrix = f"W_{letter}{tag}"
        axes = heads, words, numbered("numbers", walker.values[matrix].shape[1])
        says = stage.once(f"The {what} of every head, each by a matrix of its own.")
        if scene.crosses:
            whose = "the words that are written" if letter == "q" else "the encoder's output"
            says = stage.once(f"In cross-attention, {what} come from {whose}.")
        walker.step(
            f"{name} = {ROWS.projected(source, matrix, bias=bias, heads=True)}", f"{kind}: {what}", says,
            f"{letter}_i^h = W_{letter}^h {source[0]}_i" + (f" + b_{letter}^h" if bias else ""), axes=axes,
        )  # fmt: skip
        if layer.positions is not None and letter != "v":
            line = ROWS.rotated(name, layer.head_dim).replace("angles", f"angles{stage.scope}")
            says = stage.once("Rotated by their positions, so that a score depends on the distance of two words.")
            name = walker.step(f"{name}_turned = {line}", f"{kind}: {what} rotated", says, axes=axes)
        if scene.group > 1 and letter != "q":
            says = stage.once(f"Each key/value head is shared by {scene.group} neighbouring query heads.")
            line = f"{name}_shared = {name}.repeat_interleave({scene.group}, dim=0)"
            name = walker.step(line, f"{kind}: {what} shared", says, axes=(many, *axes[1:]))
        names[letter] = name
    return names["q"], names["k"], names["v"]


def _weigh(stage: Stage, scene: Scene, tag: str, kind: str, many: Axis, q: str, k: str) -> str:
    """Add the scores and the attention weights of all heads; return the name of the weights."""
    walker, n, m = stage.walker, len(scene.readers), len(scene.read)
    pairs = many, scene.readers, scene.read
    scores = scene.lines.heads.format(Q=q, K=k, K_t=f"{k}.mT", n=n, m=m)
    for name in ("W_a", "U_a", "v_a"):
        scores = scores.replace(name, f"{name}{tag}")
    scores += scene.scaling
    says = "How well each query fits each key" + (", divided by the root of their size." if scene.scaling else ".")
    if scene.bias is not None:
        scores += " - slopes[:, None, None] * distances"
        says += " Each head subtracts a slope times the distance of the two words."
    formula = "{q_i^h · k_j^h}/{√{d}}" if scene.multiplies and scene.scaling and scene.bias is None else ""
    name = walker.step(
        f"scores{tag} = {scores}", f"{kind}: scores", stage.once(says), formula, axes=pairs
    )  # fmt: skip
    filled = ""
    if scene.mask:
        axes = pairs if scene.varies_by_head else pairs[1:]
        what = "A word may look at itself and at earlier words" if scene.causal else "The pattern of this layer"
        allowed = walker.step(
            f"allowed{tag} = {scene.mask}", f"{kind}: mask", stage.once(f"{what}: 1 means allowed, 0 masked."),
            axes=axes, scale="none",
        )  # fmt: skip
        says = "Masked scores become minus infinity, whose exponential is 0."
        line = f"masked{tag} = {name}.masked_fill(~{allowed}, -math.inf)"
        name = walker.step(line, f"{kind}: masked scores", stage.once(says), axes=pairs)
        filled = "" if bool(walker.values[allowed].any(-1).all()) else ".nan_to_num(0)"
    return walker.step(
        f"weights{tag} = {name}.softmax(-1){filled}", f"{kind}: attention weights",
        lambda weights: _most(stage, scene, weights), "α_{ij} = {exp(s_{ij})}/{Σ_l exp(s_{il})}", axes=pairs,
        scale="weights",
    )  # fmt: skip


def _most(stage: Stage, scene: Scene, weights: torch.Tensor) -> str:
    """Where the followed word looks most, head by head; the first few heads."""
    rows = weights[:4, stage.word]
    looks = (
        f"head {number}: “{scene.read.labels[int(row.argmax())]}” {float(row.max()):.2f}"
        for number, row in enumerate(rows)
    )
    first = stage.once("The softmax turns the scores of each word into weights with the sum 1.")
    return f"{first} The largest weight of “{stage.chosen}” in {'; '.join(looks)}.".strip()


ACTIVATED = {
    "relu": "torch.relu({})", "gelu": "F.gelu({})", "gelu-tanh": 'F.gelu({}, approximate="tanh")',
    "silu": "F.silu({})", "swiglu": "F.silu({})", "geglu": "F.gelu({})",
}  # fmt: skip


def feed(stage: Stage, layer: FeedForward, x: str, tag: str) -> str:
    """Add the steps of a feed-forward network; return the name of its output."""
    walker, lines = stage.walker, {}
    for name, projection in (("in", layer.widen), ("gate", layer.gate), ("out", layer.narrow)):
        if projection is not None:
            stage.give(f"W_{name}{tag}", projection.weight, f"matrix of the feed-forward ({name})")
            has_bias = stage.give(f"b_{name}{tag}", projection.bias, f"bias of the feed-forward ({name})")
            source = f"hidden{tag}" if name == "out" else x
            bias = f" + b_{name}{tag}" if has_bias else ""
            lines[name] = f"{source} @ W_{name}{tag}.T{bias}"
    activated, wide = ACTIVATED[layer.activation], numbered("numbers", walker.values[f"W_in{tag}"].shape[0])
    kind = layer.activation.replace("swiglu", "silu").replace("geglu", "gelu").removesuffix("-tanh")
    if "gate" in lines:
        line = f"{activated.format(lines['gate'])} * ({lines['in']})"
        formula = f"u_i = {kind}(W_g {x[0]}_i) · W_1 {x[0]}_i"
    else:
        line, formula = (
            activated.format(lines["in"]),
            f"u_i = {kind}(W_1 {x[0]}_i" + (" + b_1)" if "+" in lines["in"] else ")"),
        )
    says = stage.once("The feed-forward network computes each word alone: more numbers, a non-linear function.")
    walker.step(f"hidden{tag} = {line}", "Feed-forward: hidden layer", says, formula, axes=(stage.words, wide))
    formula = "f_i = W_2 u_i" + (" + b_2" if f"b_out{tag}" in walker.values else "")
    says = stage.once("A second matrix maps the hidden layer back to the size of the word's vector.")
    axes = stage.words, numbered("numbers", layer.dim)
    return walker.step(f"fed{tag} = {lines['out']}", "Feed-forward: output", says, formula, axes=axes)


def scene_of(
    stage: Stage, attention: MultiHeadAttention, x: str, read: tuple[str, Axis] | None = None, bias: object = None
) -> Scene:
    """The scene of an attention layer in a stack: it reads `x`, or the vectors and words of `read`."""
    c, words = (x, stage.words) if read is None else read
    return Scene(attention, stage.words, words, x, c, stage.word, 0, lambda name: stage.origin, bias)  # ty: ignore
