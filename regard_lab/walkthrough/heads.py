"""The steps of an attention layer: one head in detail, all heads, the output projection, and the same by one call."""

from collections.abc import Callable

import torch

from regard.arguments import count_of
from regard_lab.walkthrough.layer import Scene, give_layer, projected, rotated
from regard_lab.walkthrough.steps import Axis

PROJECTIONS = (
    (
        "q",
        "Queries",
        "A matrix maps the vector of each word to a query, which is compared with all keys.",
    ),
    ("k", "Keys", "Another matrix maps the vector of each word to a key."),
    (
        "v",
        "Values",
        "A third matrix maps the vector of each word to a value; outputs are weighted sums of values.",
    ),
)
ROTATED = "Rotated by their positions, so that a score depends on the distance of two words."
MASKED = "Masked scores become minus infinity, whose exponential is 0."

# A weight above which a softmax counts as saturated.
NEARLY_ALL = 0.99

# The root mean square of queries and keys up to which scaling does what it should.
USUAL = 1.5


def walk_layer(scene: Scene) -> None:
    """Add every step of the layer, and check the results against the layer itself.

    Raises:
        RegardError: a step differs from another way to compute it.
    """
    walker = scene.walker
    give_layer(scene)
    walker.give("layer", scene.layer, "a regard.MultiHeadAttention with these weights")
    q, k = project(scene)
    if scene.mask:
        _give_mask(scene)
    follow_word(scene, q, k)
    take_all(scene, q, k)

    heads = scene.layer.heads
    if heads == 1:
        walker.section = "The output"
        says = "A last matrix maps the result to vectors of the size of the input."
        _map_output(scene, "contexts", "z", says)
    elif heads == 2:
        walker.section = "Both heads"
        every_head(scene)
    else:
        walker.section = f"All {count_of(heads, 'heads')}"
        every_head(scene)

    compare(scene)


def _give_mask(scene: Scene) -> None:
    """Add the mask of the only layer as a section of its own."""
    line = f"allowed = {scene.mask}"
    says = "A word may look at itself and at earlier words: 1 means allowed, 0 masked."
    scene.walker.section = "The mask"
    scene.walker.step(line, "Mask", says, axes=(scene.readers, scene.read), scale="none")


def project(scene: Scene) -> tuple[str, str]:
    """Add the projections of the shown head; return the names of the queries and keys that the score compares."""
    walker = scene.walker
    layer = scene.layer
    walker.section = "Queries, keys and values"
    if layer.heads > 1:
        walker.section += f" of head {scene.head}"

    for letter, title, says in PROJECTIONS:
        source = scene.x
        head = scene.head
        words = scene.readers
        place = "i"
        if letter != "q":
            source = scene.c
            head = scene.head // scene.group
            words = scene.read
            place = "j"
            if scene.group > 1:
                sharers = count_of(scene.group, "query heads")
                says += f" Key/value head {head} is shared by {sharers}."
        line = f"{letter} = {source} @ W_{letter}[{head}].T"
        formula = f"{letter}_{place} = W_{letter} {source}_{place}"
        walker.step(line, title, says, formula, axes=(words,))
    if layer.positions is None:
        return "q", "k"

    measure_angles(scene)
    for letter, title in (("q", "Rotated queries"), ("k", "Rotated keys")):
        line = f"{letter}_turned = {rotated(letter, layer.head_dim)}"
        walker.step(line, title, ROTATED, f"R(θ_i) {letter}_i", axes=(scene.readers,))
    return "q_turned", "k_turned"


def measure_angles(scene: Scene, name: str = "angles") -> None:
    """Add the step `angles`, or of another name, of rotary positions, (words, size)."""
    size = scene.layer.head_dim
    rotary = scene.layer.positions
    assert rotary is not None
    speeds = f"{rotary.base!r} ** (-torch.arange(0, {size}, 2).double() / {size})"
    scene.walker.step(
        f"{name} = (torch.arange({len(scene.read)})[:, None] * {speeds}).repeat(1, 2)",
        "Angles",
        "Each pair of components has its own frequency; the angles of a word are its position times these frequencies.",
        f"θ_{{ic}} = i · {rotary.base:g}^{{-2c/d}}",
        axes=(scene.read,),
    )


def follow_word(scene: Scene, q: str, k: str) -> None:
    """Add the steps of the chosen word, from its scores to its context vector."""
    walker = scene.walker
    word = scene.chosen
    lines = scene.lines
    axes = (scene.read,)
    walker.section = f"One word: “{word}”"
    place = {
        "q_i": f"{q}[{scene.word}]",
        "k": k,
        "h": scene.head,
        "m": len(scene.read),
        "hidden": "hidden",
    }
    if lines.hidden:
        walker.step(
            f"hidden = {lines.hidden.format(**place)}",
            "A hidden layer for each pair",
            f"Learned matrices combine the query of “{word}” with each key; tanh limits the result to −1 to 1.",
            lines.hidden_formula,
            axes=axes,
        )
    line = f"omega = {lines.one.format(**place)}"
    walker.step(line, "Scores, not yet normalised", lines.says, lines.formula, axes=axes)

    def explain(alpha: torch.Tensor) -> str:
        says = f"The softmax turns the scores into weights with the sum 1. {_most(scene, alpha)}"
        return f"{says} {saturated(scene, alpha[None], (q, k))}"

    names = ("omega", "scaled", "masked", "alpha", "z")
    row = f"[{scene.word}]"
    context = f"The sum of all values, multiplied by the weights of “{word}”."
    _weigh(scene, names, row, axes, weights=explain, context=context)


def take_all(scene: Scene, q: str, k: str) -> None:
    """Add the same steps for all words at once."""
    pair = scene.readers, scene.read
    place = {"q": q, "k": k, "h": scene.head, "n": len(scene.readers), "m": len(scene.read)}
    line = f"scores = {scene.lines.all.format(**place)}"
    says = f"Row i holds the scores of word i; row {scene.word + 1} equals those of “{scene.chosen}” above."
    formula = "Ω = Q K^T" if scene.multiplies else scene.lines.formula
    scene.walker.section = "All words at once"
    scene.walker.step(line, "Scores", says, formula, axes=pair)

    def explain(weights: torch.Tensor) -> str:
        says = "Row i holds the weights of word i; each row sums to 1."
        return f"{says} {saturated(scene, weights, (q, k))}"

    names = ("scores", "scaled_scores", "masked_scores", "weights", "contexts")
    context = "Row i is the context vector of word i."
    _weigh(scene, names, "", pair, weights=explain, context=context)


def _weigh(
    scene: Scene,
    names: tuple[str, str, str, str, str],
    row: str,
    axes: tuple[Axis, ...],
    *,
    weights: Callable[[torch.Tensor], str],
    context: str,
) -> None:
    """Add scaling and mask of the scores of one word or of all, as the layer has them; then weights and contexts.

    Args:
        names: of the scores, the scaled and the masked ones, the weights and the context vectors.
        row: the index of the one word's row in the mask; empty for all words.
        axes: of the scores.
        weights, context: the explanations of both; that of the weights is a function of their values.
    """
    walker = scene.walker
    size = scene.layer.head_dim
    name, scaled, masked, alpha, z = names
    letter = "ω"
    if scene.scaling:
        says = (
            f"The more numbers a vector has, the larger its scores: with {count_of(size, 'numbers')} they are "
            f"typically √{size} times those of 1 number. Dividing by √{size} undoes that."
        )
        line = f"{scaled} = {name}{scene.scaling}"
        name = walker.step(line, "Scaling", says, "s_{ij} = {ω_{ij}}/{√{d}}", axes=axes)
        letter = "s"
    if scene.mask:
        line = f"{masked} = {name}.masked_fill(~allowed{row}, -math.inf)"
        formula = f'{letter}_{{ij}} = {{-∞}} " if i may not look at j"'
        name = walker.step(line, "Mask", MASKED, formula, axes=axes)

    line = f"{alpha} = {name}.softmax(-1)"
    formula = f"α_{{ij}} = {{exp({letter}_{{ij}})}}/{{Σ_l exp({letter}_{{il}})}}"
    walker.step(line, "Attention weights", weights, formula, axes=axes, scale="weights")

    title = "Context vector" if row else "Context vectors"
    walker.step(f"{z} = {alpha} @ v", title, context, "z_i = Σ_j α_{ij} v_j", axes=axes[:-1])


def _most(scene: Scene, alpha: torch.Tensor) -> str:
    """A sentence about the largest weight of the chosen word."""
    most = int(alpha.argmax())
    looked_at = f"“{scene.read.labels[most]}”"
    if most == scene.word and not scene.crosses:
        looked_at += " itself"
    return f"“{scene.chosen}” looks most at {looked_at}: {float(alpha[most]):.3f}."


def saturated(scene: Scene, weights: torch.Tensor, compared: tuple[str, str]) -> str:
    """Why one word gets nearly all the weight in some rows (rows, words), in spite of scaling; "" if none does.

    Scores are products of the queries and keys whose names are `compared`.
    """
    values = scene.walker.values
    many = len(weights) > 1
    high = (weights > NEARLY_ALL).any(-1) & (weights.shape[-1] > 1)
    if scene.mask:
        # The only word that may be looked at has the weight 1 with any scores.
        several = values["allowed"].sum(-1) > 1
        high &= several if many else several[scene.word]
    rows = [str(row + 1) for row in high.nonzero().flatten().tolist()]
    if not rows or not (scene.multiplies and scene.scaling):
        return ""

    word = "One word"
    if many:
        of_rows = "row" if len(rows) == 1 else "rows"
        word = f"In {of_rows} {', '.join(rows)}, one word"
    says = f"{word} gets nearly all the weight although the scores are scaled."
    size = max(float(values[name].square().mean().sqrt()) for name in compared)
    if size <= USUAL:
        return f"{says} Scaling cannot prevent this: the scores just happen to lie far apart."
    return (
        f"{says} The division by √d expects queries and keys whose numbers are about 1 in size; here "
        f"their size is up to {size:.1f} (root mean square), so the scores still lie far apart."
    )


def every_head(scene: Scene) -> str:
    """Add the steps of attention in all heads, up to the output of the layer; return its name."""
    walker = scene.walker
    once = walker.once
    heads = _numbered_heads(scene.layer.heads, "head")
    q, k, v = _project_all(scene, heads)
    weights = _weigh_all(scene, heads, q, k)

    contexts = walker.step(
        f"{scene.name('contexts')} = {weights} @ {v}",
        f"{scene.kind}: context vectors",
        once("In each head, the sum of the values by the attention weights."),
        "z_i^h = Σ_j α_{ij}^h v_j^h",
        axes=(heads, scene.readers),
    )
    title = f"{scene.kind}: heads joined" if scene.tag else f"{scene.kind}: joined"
    joined = walker.step(
        f"joined{scene.tag} = torch.cat(list({contexts}), dim=-1)",
        title,
        once("The context vectors of all heads, one after the other, for each word."),
        "r_i = [z_i^1 ; … ; z_i^H]",
        axes=(scene.readers,),
    )
    says = once(
        "A matrix combines the heads into a vector that has the size of the word's vector again."
    )
    return _map_output(scene, joined, "r", says)


def _map_output(scene: Scene, source: str, letter: str, says: str) -> str:
    """Add the output of the layer, a matrix times the joined heads or the only one."""
    name = "output"
    result = "o"
    title = "Output"
    if scene.tag:
        name = f"attended{scene.tag}"
        result = "a"
        title = f"{scene.kind}: output"

    bias = scene.given("b_o")
    line = f"{name} = {projected(source, f'W_o{scene.tag}', bias)}"
    formula = f"{result}_i = W_o {letter}_i"
    if bias:
        formula += " + b_o"
    return scene.walker.step(line, title, says, formula, axes=(scene.readers,))


def _project_all(scene: Scene, many: Axis) -> tuple[str, str, str]:
    """Add queries, keys and values of all heads, rotated and shared as the layer does; return their names."""
    walker = scene.walker
    once = walker.once
    layer = scene.layer
    few = many
    if scene.group > 1:
        few = _numbered_heads(layer.kv_heads, "key/value head")
    angles = f"angles{scene.scope}"
    if layer.positions is not None and angles not in walker.values:
        measure_angles(scene, angles)

    names = []
    for letter, what, heads, words, source in (
        ("q", "queries", many, scene.readers, scene.x),
        ("k", "keys", few, scene.read, scene.c),
        ("v", "values", few, scene.read, scene.c),
    ):
        title = f"{scene.kind}: {what}"
        says = once(f"The {what} of every head, each by a matrix of its own.")
        if scene.tag and scene.crosses:
            whose = "the words that are written" if letter == "q" else "the encoder's output"
            says = once(f"In cross-attention, {what} come from {whose}.")

        name = f"{letter.upper()}{scene.tag}"
        matrix = f"W_{letter}{scene.tag}"
        bias = scene.given(f"b_{letter}")
        line = f"{name} = {projected(source, matrix, bias, heads=True)}"
        formula = f"{letter}_i^h = W_{letter}^h {source[0]}_i"
        if bias:
            formula += f" + b_{letter}^h"
        walker.step(line, title, says, formula, axes=(heads, words))

        if layer.positions is not None and letter != "v":
            line = f"{name}_turned = {rotated(name, layer.head_dim, angles)}"
            name = walker.step(line, f"{title} rotated", once(ROTATED), axes=(heads, words))
        if scene.group > 1 and letter != "q":
            says = once(f"Each key/value head is shared by {scene.group} neighbouring query heads.")
            line = f"{name}_shared = {name}.repeat_interleave({scene.group}, dim=0)"
            name = walker.step(line, f"{title} shared", says, axes=(many, words))
        names.append(name)
    return names[0], names[1], names[2]


def _weigh_all(scene: Scene, many: Axis, q: str, k: str) -> str:
    """Add the scores and the attention weights of all heads; return the name of the weights."""
    walker = scene.walker
    pairs = (many, scene.readers, scene.read)
    name = _score_all(scene, pairs, q, k)
    filled = ""
    if scene.mask:
        allowed = _mask_all(scene, pairs)
        line = f"{scene.name('masked')} = {name}.masked_fill(~{allowed}, -math.inf)"
        title = f"{scene.kind}: masked scores"
        name = walker.step(line, title, walker.once(MASKED), axes=pairs)
        # A row without any allowed word has the softmax NaN; its weights are 0.
        if not walker.values[allowed].any(-1).all():
            filled = ".nan_to_num(0)"

    def explain(weights: torch.Tensor) -> str:
        return _most_of_heads(scene, weights)

    line = f"{scene.name('weights')} = {name}.softmax(-1){filled}"
    title = f"{scene.kind}: attention weights"
    formula = "α_{ij} = {exp(s_{ij})}/{Σ_l exp(s_{il})}"
    return walker.step(line, title, explain, formula, axes=pairs, scale="weights")


def _score_all(scene: Scene, pairs: tuple[Axis, Axis, Axis], q: str, k: str) -> str:
    """Add the scores of all heads, with the bias by distance where there is one; return their name."""
    scores = scene.lines.heads.format(Q=q, K=k, n=len(scene.readers), m=len(scene.read))
    for parameter in ("W_a", "U_a", "v_a"):
        scores = scores.replace(parameter, f"{parameter}{scene.tag}")
    scores += scene.scaling
    says = "How well each query fits each key"
    says += ", divided by the root of their size." if scene.scaling else "."
    if scene.bias is not None:
        scores += " - slopes[:, None, None] * distances"
        says += " Each head subtracts a slope times the distance of the two words."
    formula = ""
    if scene.multiplies and scene.scaling and scene.bias is None:
        formula = "{q_i^h · k_j^h}/{√{d}}"

    walker = scene.walker
    line = f"{scene.name('scores')} = {scores}"
    return walker.step(line, f"{scene.kind}: scores", walker.once(says), formula, axes=pairs)


def _mask_all(scene: Scene, pairs: tuple[Axis, Axis, Axis]) -> str:
    """Add the mask, unless the head shown in detail has added it; return its name."""
    walker = scene.walker
    allowed = f"allowed{scene.tag}"
    if allowed in walker.values:
        return allowed

    what = "The pattern of this layer"
    if scene.causal:
        what = "A word may look at itself and at earlier words"
    says = walker.once(f"{what}: 1 means allowed, 0 masked.")
    axes = pairs if scene.varies_by_head else pairs[1:]
    title = f"{scene.kind}: mask"
    return walker.step(f"{allowed} = {scene.mask}", title, says, axes=axes, scale="none")


def _most_of_heads(scene: Scene, weights: torch.Tensor) -> str:
    """Where the followed word looks most, head by head; the first few heads."""
    looks = (
        f"head {number}: “{scene.read.labels[int(row.argmax())]}” {float(row.max()):.2f}"
        for number, row in enumerate(weights[:4, scene.word])
    )
    first = scene.walker.once(
        "The softmax turns the scores of each word into weights with the sum 1."
    )
    return f"{first} The largest weight of “{scene.chosen}” in {'; '.join(looks)}."


def _numbered_heads(count: int, what: str) -> Axis:
    return Axis("heads", tuple(f"{what} {number}" for number in range(count)))


def compare(scene: Scene) -> None:
    """Check the results by computing them in other ways."""
    check = scene.walker.check
    many = scene.layer.heads > 1
    check(f"weights[{scene.word}]", "alpha")
    if many:
        check(f"all_weights[{scene.head}]", "weights")
        check(f"all_contexts[{scene.head}]", "contexts")
    if scene.multiplies:
        check(_fused_call(scene), "all_contexts" if many else "contexts")

    vectors = f"{scene.x}[None]"
    if scene.crosses:
        vectors += f", {scene.c}[None]"
    check(f"layer({vectors})[0]", "output")


def _fused_call(scene: Scene) -> str:
    """The expression of PyTorch's fused attention for all heads."""
    q, k, v = "QKV" if scene.layer.heads > 1 else "qkv"
    if scene.layer.positions is not None:
        q = f"{q}_turned"
        k = f"{k}_turned"
    if scene.group > 1:
        k = f"{k}_shared"
        v = f"{v}_shared"

    options = ""
    if scene.mask:
        options += ", attn_mask=allowed"
    if not scene.scaling:
        options += ", scale=1.0"
    return f"F.scaled_dot_product_attention({q}, {k}, {v}{options})"
