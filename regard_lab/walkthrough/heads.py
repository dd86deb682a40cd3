"""The steps of an attention layer: one head in detail, all heads, the output projection, and the same by one call."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from regard.arguments import count_of
from regard.positions import Rotary
from regard_lab.walkthrough.layer import Scene, give_layer, projected, rotated
from regard_lab.walkthrough.steps import Axis, Walker, numbered


def measure_angles(walker: Walker, rotary: Rotary, words: Axis, size: int, name: str = "angles") -> None:
    """Add the step `angles`, or of another name, of rotary positions, (words, size)."""
    speeds = f"{rotary.base!r} ** (-torch.arange(0, {size}, 2).double() / {size})"
    walker.step(
        f"{name} = (torch.arange({len(words)})[:, None] * {speeds}).repeat(1, 2)", "Angles",
        "Each pair of components has its own frequency; the angles of a word are its position times these frequencies.",
        f"θ_{{ic}} = i · {rotary.base:g}^{{-2c/d}}", axes=(words, numbered("numbers", size)),
    )  # fmt: skip


PROJECTIONS = (
    ("q", "Queries", "A matrix maps the vector of each word to a query, which is compared with all keys."),
    ("k", "Keys", "Another matrix maps the vector of each word to a key."),
    ("v", "Values", "A third matrix maps the vector of each word to a value; outputs are weighted sums of values."),
)


NEARLY_ALL = 0.99  # a weight above which a softmax counts as saturated
USUAL = 1.5  # root mean square of queries and keys up to which scaling does what it should


def project(walker: Walker, scene: Scene) -> tuple[str, str]:
    """Add the projections of the shown head; return the names of the queries and keys that the score compares."""
    layer = scene.layer
    walker.section = "Queries, keys and values" + (f" of head {scene.head}" if layer.heads > 1 else "")
    for letter, title, says in PROJECTIONS:
        source, head, words = (scene.x, scene.head, scene.readers) if letter == "q" else scene.source_of_keys
        size = numbered("numbers", walker.values[f"W_{letter}"].shape[1])
        if letter != "q" and scene.group > 1:
            says += f" Key/value head {head} is shared by {count_of(scene.group, 'query heads')}."
        place = "i" if letter == "q" else "j"
        formula = f"{letter}_{place} = W_{letter} {source}_{place}"
        walker.step(f"{letter} = {source} @ W_{letter}[{head}].T", title, says, formula, axes=(words, size))
    if layer.positions is None:
        return "q", "k"
    measure_angles(walker, layer.positions, scene.read, layer.head_dim)
    for letter, title in (("q", "Rotated queries"), ("k", "Rotated keys")):
        walker.step(
            f"{letter}_turned = {rotated(letter, layer.head_dim)}", title,
            "Rotated by their positions, so that a score depends on the distance of two words.",
            f"R(θ_i) {letter}_i", axes=(scene.readers, numbered("numbers", layer.head_dim)),
        )  # fmt: skip
    return "q_turned", "k_turned"


def follow_word(walker: Walker, scene: Scene, q: str, k: str) -> None:
    """Add the steps of the chosen word, from its scores to its context vector."""
    word, lines, axes = scene.chosen, scene.lines, (scene.read,)
    walker.section = f"One word: “{word}”"
    place = {"q_i": f"{q}[{scene.word}]", "k": k, "h": scene.head, "m": len(scene.read), "hidden": "hidden"}
    if lines.hidden:
        size = numbered("numbers", walker.values["v_a"].shape[-1])
        walker.step(
            f"hidden = {lines.hidden.format(**place)}", "A hidden layer for each pair",
            f"Learned matrices combine the query of “{word}” with each key; tanh limits the result to −1 to 1.",
            lines.hidden_formula, axes=(scene.read, size),
        )  # fmt: skip
    line = f"omega = {lines.one.format(**place)}"
    walker.step(line, "Scores, not yet normalised", lines.says, lines.formula, axes=axes)
    rows = Rows("omega", ("scaled", "masked", "alpha", "z"), f"[{scene.word}]", axes)
    _weigh(
        walker, scene, rows,
        weights=lambda alpha: (
            f"The softmax turns the scores into weights with the sum 1. {_most(scene, alpha)} "
            f"{saturated(walker, scene, alpha[None], (q, k))}"
        ).rstrip(),
        context=f"The sum of all values, multiplied by the weights of “{word}”.",
    )  # fmt: skip


def take_all(walker: Walker, scene: Scene, q: str, k: str) -> None:
    """Add the same steps for all words at once."""
    walker.section = "All words at once"
    pair = scene.readers, scene.read
    place = {"q": q, "k": k, "h": scene.head, "n": len(scene.readers), "m": len(scene.read)}
    walker.step(
        f"scores = {scene.lines.all.format(**place)}", "Scores",
        f"Row i holds the scores of word i; row {scene.word + 1} equals those of “{scene.chosen}” above.",
        "Ω = Q K^T" if scene.multiplies else scene.lines.formula, axes=pair,
    )  # fmt: skip
    names = ("scaled_scores", "masked_scores", "weights", "contexts")
    _weigh(
        walker, scene, Rows("scores", names, "", pair),
        weights=lambda weights: (
            f"Row i holds the weights of word i; each row sums to 1. {saturated(walker, scene, weights, (q, k))}"
        ).rstrip(),
        context="Row i is the context vector of word i.",
    )  # fmt: skip


@dataclass(frozen=True)
class Rows:
    """Names of the steps for one word or for all, the index of the row that is chosen, and the axes of the scores."""

    scores: str
    names: tuple[str, str, str, str]
    chosen: str
    axes: tuple[Axis, ...]


def _weigh(walker: Walker, scene: Scene, rows: Rows, *, weights: Callable[[torch.Tensor], str], context: str) -> None:
    """Add scaling and mask, as the layer has them; then weights and context vectors."""
    name, letter, size = rows.scores, "ω", scene.layer.head_dim
    scaled, masked, alpha, z = rows.names
    if scene.scaling:
        says = (
            f"The more numbers a vector has, the larger its scores: with {count_of(size, 'numbers')} they are "
            f"typically √{size} times those of 1 number. Dividing by √{size} undoes that."
        )
        name = walker.step(
            f"{scaled} = {name}{scene.scaling}", "Scaling", says, "s_{ij} = {ω_{ij}}/{√{d}}", axes=rows.axes
        )
        letter = "s"
    if scene.mask:
        says = "Masked scores become minus infinity, whose exponential is 0."
        line = f"{masked} = {name}.masked_fill(~allowed{rows.chosen}, -math.inf)"
        name = walker.step(line, "Mask", says, f'{letter}_{{ij}} = {{-∞}} " if i may not look at j"', axes=rows.axes)
    walker.step(
        f"{alpha} = {name}.softmax(-1)", "Attention weights", weights,
        f"α_{{ij}} = {{exp({letter}_{{ij}})}}/{{Σ_l exp({letter}_{{il}})}}", axes=rows.axes, scale="weights",
    )  # fmt: skip
    title = "Context vectors" if rows.axes[1:] else "Context vector"
    axes = (*((scene.readers,) if rows.axes[1:] else ()), numbered("numbers", scene.layer.value_dim))
    walker.step(f"{z} = {alpha} @ v", title, context, "z_i = Σ_j α_{ij} v_j", axes=axes)


def _most(scene: Scene, alpha: torch.Tensor) -> str:
    """A sentence about the largest weight of the chosen word."""
    most = int(alpha.argmax())
    itself = " itself" if most == scene.word and not scene.crosses else ""
    return f"“{scene.chosen}” looks most at “{scene.read.labels[most]}”{itself}: {float(alpha[most]):.3f}."


def saturated(walker: Walker, scene: Scene, weights: torch.Tensor, compared: tuple[str, str]) -> str:
    """Why one word gets nearly all the weight in some rows (rows, words), in spite of scaling; "" if none does.

    Scores are products of the queries and keys whose names are `compared`.
    """
    many = len(weights) > 1
    high = (weights > NEARLY_ALL).any(-1) & (weights.shape[-1] > 1)
    if scene.mask:  # the only word that may be looked at has the weight 1 with any scores
        several = walker.values["allowed"].sum(-1) > 1
        high &= several if many else several[scene.word]
    rows = [str(row + 1) for row in high.nonzero().flatten().tolist()]
    if not rows or not (scene.multiplies and scene.scaling):
        return ""
    where = f"In {'row' if len(rows) == 1 else 'rows'} {', '.join(rows)}, one" if many else "One"
    says = f"{where} word gets nearly all the weight although the scores are scaled. "
    size = max(float(walker.values[name].square().mean().sqrt()) for name in compared)
    if size <= USUAL:
        return f"{says}Scaling cannot prevent this: the scores just happen to lie far apart."
    return (
        f"{says}The division by √d expects queries and keys whose numbers are about 1 in size; here "
        f"their size is up to {size:.1f} (root mean square), so the scores still lie far apart."
    )


def join_heads(walker: Walker, scene: Scene) -> None:
    """Add the steps from all heads to the layer's output."""
    if scene.layer.heads > 1:
        walker.section = "Both heads" if scene.layer.heads == 2 else f"All {count_of(scene.layer.heads, 'heads')}"
        every_head(walker, scene, Naming("All heads"))
    else:
        walker.section, says = "The output", "A last matrix maps the result to vectors of the size of the input."
        _map_output(walker, scene, "contexts", "z", Naming(""), says)


@dataclass(frozen=True)
class Naming:
    """How the steps of all heads are called: those of the only layer, or those of a layer in a model.

    Args:
        kind: what titles begin with.
        tag: the end of all names of a layer in a model, such as "_e0".
        scope: the end of the name of its angles, which all layers of a stack share.
        once: returns an explanation, or nothing if it was given before.
    """

    kind: str
    tag: str = ""
    scope: str = ""
    once: Callable[[str], str] = str

    def name(self, what: str) -> str:
        return f"{what}{self.tag}" if self.tag else f"all_{what}"


def every_head(walker: Walker, scene: Scene, naming: Naming) -> str:
    """Add the steps of attention in all heads, up to the output of the layer; return its name."""
    layer, once = scene.layer, naming.once
    heads = _numbered_heads(layer.heads, "head")
    q, k, v = _project_all(walker, scene, naming, heads)
    weights = _weigh_all(walker, scene, naming, heads, q, k)
    contexts = walker.step(
        f"{naming.name('contexts')} = {weights} @ {v}", f"{naming.kind}: context vectors",
        once("In each head, the sum of the values by the attention weights."), "z_i^h = Σ_j α_{ij}^h v_j^h",
        axes=(heads, scene.readers, numbered("numbers", layer.value_dim)),
    )  # fmt: skip
    joined = walker.step(
        f"joined{naming.tag} = torch.cat(list({contexts}), dim=-1)",
        f"{naming.kind}: {'heads ' if naming.tag else ''}joined",
        once("The context vectors of all heads, one after the other, for each word."), "r_i = [z_i^1 ; … ; z_i^H]",
        axes=(scene.readers, numbered("numbers", layer.heads * layer.value_dim)),
    )  # fmt: skip
    says = once("A matrix combines the heads into a vector that has the size of the word's vector again.")
    return _map_output(walker, scene, joined, "r", naming, says)


def _map_output(walker: Walker, scene: Scene, source: str, letter: str, naming: Naming, says: str) -> str:
    """Add the output of the layer, a matrix times the joined heads or the only one."""
    tag, result = naming.tag, ("attended", "a") if naming.tag else ("output", "o")
    bias = f"b_o{tag}" if f"b_o{tag}" in walker.values else ""
    return walker.step(
        f"{result[0]}{tag} = {projected(source, f'W_o{tag}', bias)}",
        f"{naming.kind}: output" if tag else "Output", says,
        f"{result[1]}_i = W_o {letter}_i" + (" + b_o" if bias else ""),
        axes=(scene.readers, numbered("numbers", scene.layer.dim)),
    )  # fmt: skip


def _project_all(walker: Walker, scene: Scene, naming: Naming, many: Axis) -> tuple[str, str, str]:
    """Add queries, keys and values of all heads, rotated and shared as the layer does; return their names."""
    layer, tag, once, names = scene.layer, naming.tag, naming.once, {}
    few = many if scene.group == 1 else _numbered_heads(layer.kv_heads, "key/value head")
    angles = f"angles{naming.scope}"
    if layer.positions is not None and angles not in walker.values:
        measure_angles(walker, layer.positions, scene.read, layer.head_dim, angles)
    for letter, what, heads, words, source in (
        ("q", "queries", many, scene.readers, scene.x),
        ("k", "keys", few, scene.read, scene.c),
        ("v", "values", few, scene.read, scene.c),
    ):
        name, matrix, bias = f"{letter.upper()}{tag}", f"W_{letter}{tag}", f"b_{letter}{tag}"
        bias = bias if bias in walker.values else ""
        axes = words, numbered("numbers", walker.values[matrix].shape[1])
        says = once(f"The {what} of every head, each by a matrix of its own.")
        if tag and scene.crosses:
            whose = "the words that are written" if letter == "q" else "the encoder's output"
            says = once(f"In cross-attention, {what} come from {whose}.")
        walker.step(
            f"{name} = {projected(source, matrix, bias, heads=True)}", f"{naming.kind}: {what}", says,
            f"{letter}_i^h = W_{letter}^h {source[0]}_i" + (f" + b_{letter}^h" if bias else ""), axes=(heads, *axes),
        )  # fmt: skip
        if layer.positions is not None and letter != "v":
            says = once("Rotated by their positions, so that a score depends on the distance of two words.")
            line = rotated(name, layer.head_dim, angles)
            name = walker.step(f"{name}_turned = {line}", f"{naming.kind}: {what} rotated", says, axes=(heads, *axes))
        if scene.group > 1 and letter != "q":
            says = once(f"Each key/value head is shared by {scene.group} neighbouring query heads.")
            line = f"{name}_shared = {name}.repeat_interleave({scene.group}, dim=0)"
            name = walker.step(line, f"{naming.kind}: {what} shared", says, axes=(many, *axes))
        names[letter] = name
    return names["q"], names["k"], names["v"]


def _weigh_all(walker: Walker, scene: Scene, naming: Naming, many: Axis, q: str, k: str) -> str:
    """Add the scores and the attention weights of all heads; return the name of the weights."""
    once, tag, pairs = naming.once, naming.tag, (many, scene.readers, scene.read)
    scores = scene.lines.heads.format(Q=q, K=k, n=len(scene.readers), m=len(scene.read))
    for parameter in ("W_a", "U_a", "v_a"):
        scores = scores.replace(parameter, f"{parameter}{tag}")
    scores += scene.scaling
    says = "How well each query fits each key" + (", divided by the root of their size." if scene.scaling else ".")
    if scene.bias is not None:
        scores += " - slopes[:, None, None] * distances"
        says += " Each head subtracts a slope times the distance of the two words."
    formula = "{q_i^h · k_j^h}/{√{d}}" if scene.multiplies and scene.scaling and scene.bias is None else ""
    name = walker.step(
        f"{naming.name('scores')} = {scores}", f"{naming.kind}: scores", once(says), formula, axes=pairs
    )  # fmt: skip
    allowed, filled = f"allowed{tag}", ""
    if scene.mask:
        if allowed not in walker.values:
            what = "A word may look at itself and at earlier words" if scene.causal else "The pattern of this layer"
            walker.step(
                f"{allowed} = {scene.mask}", f"{naming.kind}: mask", once(f"{what}: 1 means allowed, 0 masked."),
                axes=pairs if scene.varies_by_head else pairs[1:], scale="none",
            )  # fmt: skip
        says = once("Masked scores become minus infinity, whose exponential is 0.")
        line = f"{naming.name('masked')} = {name}.masked_fill(~{allowed}, -math.inf)"
        name = walker.step(line, f"{naming.kind}: masked scores", says, axes=pairs)
        filled = "" if walker.values[allowed].any(-1).all() else ".nan_to_num(0)"  # the weights of empty rows are 0
    return walker.step(
        f"{naming.name('weights')} = {name}.softmax(-1){filled}", f"{naming.kind}: attention weights",
        lambda weights: _most_of_heads(scene, weights, once), "α_{ij} = {exp(s_{ij})}/{Σ_l exp(s_{il})}", axes=pairs,
        scale="weights",
    )  # fmt: skip


def _most_of_heads(scene: Scene, weights: torch.Tensor, once: Callable[[str], str]) -> str:
    """Where the followed word looks most, head by head; the first few heads."""
    looks = (
        f"head {number}: “{scene.read.labels[int(row.argmax())]}” {float(row.max()):.2f}"
        for number, row in enumerate(weights[:4, scene.word])
    )
    first = once("The softmax turns the scores of each word into weights with the sum 1.")
    return f"{first} The largest weight of “{scene.chosen}” in {'; '.join(looks)}.".strip()


def _numbered_heads(count: int, what: str) -> Axis:
    return Axis("heads", tuple(f"{what} {number}" for number in range(count)))


def compare(walker: Walker, scene: Scene) -> None:
    """Check the results by computing them in other ways."""
    many = scene.layer.heads > 1
    walker.check(f"weights[{scene.word}]", "alpha")
    if many:
        walker.check(f"all_weights[{scene.head}]", "weights")
        walker.check(f"all_contexts[{scene.head}]", "contexts")
    if scene.multiplies:
        walker.check(_fused_call(scene), "all_contexts" if many else "contexts")
    walker.check(f"layer({scene.x}[None]{f', {scene.c}[None]' if scene.crosses else ''})[0]", "output")


def _fused_call(scene: Scene) -> str:
    """The expression of PyTorch's fused attention for all heads."""
    layer, many = scene.layer, scene.layer.heads > 1
    q, k, v = ("Q", "K", "V") if many else ("q", "k", "v")
    if layer.positions is not None:
        q, k = f"{q}_turned", f"{k}_turned"
    if scene.group > 1:
        k, v = f"{k}_shared", f"{v}_shared"
    inputs = [q, k, v]
    if scene.mask:
        inputs.append("attn_mask=allowed")
    if not scene.scaling:
        inputs.append("scale=1.0")
    return f"F.scaled_dot_product_attention({', '.join(inputs)})"


def walk_layer(walker: Walker, scene: Scene) -> None:
    """Add every step of the layer, and check the results against the layer itself.

    Raises:
        RegardError: a step differs from another way to compute it.
    """
    give_layer(walker, scene)
    walker.give("layer", scene.layer, "a regard.MultiHeadAttention with these weights")
    q, k = project(walker, scene)
    if scene.mask:
        walker.section, says = "The mask", "A word may look at itself and at earlier words: 1 means allowed, 0 masked."
        walker.step(f"allowed = {scene.mask}", "Mask", says, axes=(scene.readers, scene.read), scale="none")
    follow_word(walker, scene, q, k)
    take_all(walker, scene, q, k)
    join_heads(walker, scene)
    compare(walker, scene)
