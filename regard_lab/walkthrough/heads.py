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
NEARLY_ALL = 0.99  # a weight above which a softmax counts as saturated
USUAL = 1.5  # root mean square of queries and keys up to which scaling does what it should


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
        walker.section, says = (
            "The mask",
            "A word may look at itself and at earlier words: 1 means allowed, 0 masked.",
        )
        walker.step(
            f"allowed = {scene.mask}", "Mask", says, axes=(scene.readers, scene.read), scale="none"
        )
    follow_word(scene, q, k)
    take_all(scene, q, k)
    if scene.layer.heads > 1:
        walker.section = (
            "Both heads"
            if scene.layer.heads == 2
            else f"All {count_of(scene.layer.heads, 'heads')}"
        )
        every_head(scene)
    else:
        walker.section, says = (
            "The output",
            "A last matrix maps the result to vectors of the size of the input.",
        )
        _map_output(scene, "contexts", "z", says)
    compare(scene)


def project(scene: Scene) -> tuple[str, str]:
    """Add the projections of the shown head; return the names of the queries and keys that the score compares."""
    walker, layer = scene.walker, scene.layer
    walker.section = "Queries, keys and values" + (
        f" of head {scene.head}" if layer.heads > 1 else ""
    )
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
                says += (
                    f" Key/value head {head} is shared by {count_of(scene.group, 'query heads')}."
                )
        formula = f"{letter}_{place} = W_{letter} {source}_{place}"
        walker.step(
            f"{letter} = {source} @ W_{letter}[{head}].T", title, says, formula, axes=(words,)
        )
    if layer.positions is None:
        return "q", "k"
    measure_angles(scene)
    for letter, title in (("q", "Rotated queries"), ("k", "Rotated keys")):
        line = f"{letter}_turned = {rotated(letter, layer.head_dim)}"
        walker.step(line, title, ROTATED, f"R(θ_i) {letter}_i", axes=(scene.readers,))
    return "q_turned", "k_turned"


def measure_angles(scene: Scene, name: str = "angles") -> None:
    """Add the step `angles`, or of another name, of rotary positions, (words, size)."""
    size, rotary = scene.layer.head_dim, scene.layer.positions
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
    _weigh(
        scene,
        ("omega", "scaled", "masked", "alpha", "z"),
        f"[{scene.word}]",
        axes,
        weights=lambda alpha: (
            f"The softmax turns the scores into weights with the sum 1. {_most(scene, alpha)} "
            f"{saturated(scene, alpha[None], (q, k))}"
        ),
        context=f"The sum of all values, multiplied by the weights of “{word}”.",
    )


def take_all(scene: Scene, q: str, k: str) -> None:
    """Add the same steps for all words at once."""
    scene.walker.section = "All words at once"
    pair = scene.readers, scene.read
    place = {"q": q, "k": k, "h": scene.head, "n": len(scene.readers), "m": len(scene.read)}
    scene.walker.step(
        f"scores = {scene.lines.all.format(**place)}",
        "Scores",
        f"Row i holds the scores of word i; row {scene.word + 1} equals those of “{scene.chosen}” above.",
        "Ω = Q K^T" if scene.multiplies else scene.lines.formula,
        axes=pair,
    )
    _weigh(
        scene,
        ("scores", "scaled_scores", "masked_scores", "weights", "contexts"),
        "",
        pair,
        weights=lambda weights: (
            f"Row i holds the weights of word i; each row sums to 1. {saturated(scene, weights, (q, k))}"
        ),
        context="Row i is the context vector of word i.",
    )


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
        name = walker.step(
            line, "Mask", MASKED, f'{letter}_{{ij}} = {{-∞}} " if i may not look at j"', axes=axes
        )
    walker.step(
        f"{alpha} = {name}.softmax(-1)",
        "Attention weights",
        weights,
        f"α_{{ij}} = {{exp({letter}_{{ij}})}}/{{Σ_l exp({letter}_{{il}})}}",
        axes=axes,
        scale="weights",
    )
    title = "Context vector" if row else "Context vectors"
    walker.step(f"{z} = {alpha} @ v", title, context, "z_i = Σ_j α_{ij} v_j", axes=axes[:-1])


def _most(scene: Scene, alpha: torch.Tensor) -> str:
    """A sentence about the largest weight of the chosen word."""
    most = int(alpha.argmax())
    itself = " itself" if most == scene.word and not scene.crosses else ""
    return f"“{scene.chosen}” looks most at “{scene.read.labels[most]}”{itself}: {float(alpha[most]):.3f}."


def saturated(scene: Scene, weights: torch.Tensor, compared: tuple[str, str]) -> str:
    """Why one word gets nearly all the weight in some rows (rows, words), in spite of scaling; "" if none does.

    Scores are products of the queries and keys whose names are `compared`.
    """
    values = scene.walker.values
    many = len(weights) > 1
    high = (weights > NEARLY_ALL).any(-1) & (weights.shape[-1] > 1)
    if scene.mask:  # the only word that may be looked at has the weight 1 with any scores
        several = values["allowed"].sum(-1) > 1
        high &= several if many else several[scene.word]
    rows = [str(row + 1) for row in high.nonzero().flatten().tolist()]
    if not rows or not (scene.multiplies and scene.scaling):
        return ""
    where = f"In {'row' if len(rows) == 1 else 'rows'} {', '.join(rows)}, one" if many else "One"
    says = f"{where} word gets nearly all the weight although the scores are scaled. "
    size = max(float(values[name].square().mean().sqrt()) for name in compared)
    if size <= USUAL:
        return f"{says}Scaling cannot prevent this: the scores just happen to lie far apart."
    return (
        f"{says}The division by √d expects queries and keys whose numbers are about 1 in size; here "
        f"their size is up to {size:.1f} (root mean square), so the scores still lie far apart."
    )


def every_head(scene: Scene) -> str:
    """Add the steps of attention in all heads, up to the output of the layer; return its name."""
    walker, layer, once = scene.walker, scene.layer, scene.walker.once
    heads = _numbered_heads(layer.heads, "head")
    q, k, v = _project_all(scene, heads)
    weights = _weigh_all(scene, heads, q, k)
    contexts = walker.step(
        f"{scene.name('contexts')} = {weights} @ {v}",
        f"{scene.kind}: context vectors",
        once("In each head, the sum of the values by the attention weights."),
        "z_i^h = Σ_j α_{ij}^h v_j^h",
        axes=(heads, scene.readers),
    )
    joined = walker.step(
        f"joined{scene.tag} = torch.cat(list({contexts}), dim=-1)",
        f"{scene.kind}: {'heads ' if scene.tag else ''}joined",
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
    name, result, title = (
        ("attended", "a", f"{scene.kind}: output") if scene.tag else ("output", "o", "Output")
    )
    bias = scene.given("b_o")
    return scene.walker.step(
        f"{name}{scene.tag} = {projected(source, f'W_o{scene.tag}', bias)}",
        title,
        says,
        f"{result}_i = W_o {letter}_i" + (" + b_o" if bias else ""),
        axes=(scene.readers,),
    )


def _project_all(scene: Scene, many: Axis) -> tuple[str, str, str]:
    """Add queries, keys and values of all heads, rotated and shared as the layer does; return their names."""
    walker, layer, kind, once, names = scene.walker, scene.layer, scene.kind, scene.walker.once, []
    few = many if scene.group == 1 else _numbered_heads(layer.kv_heads, "key/value head")
    angles = f"angles{scene.scope}"
    if layer.positions is not None and angles not in walker.values:
        measure_angles(scene, angles)
    for letter, what, heads, words, source in (
        ("q", "queries", many, scene.readers, scene.x),
        ("k", "keys", few, scene.read, scene.c),
        ("v", "values", few, scene.read, scene.c),
    ):
        name = f"{letter.upper()}{scene.tag}"
        matrix = f"W_{letter}{scene.tag}"
        bias = scene.given(f"b_{letter}")
        says = once(f"The {what} of every head, each by a matrix of its own.")
        if scene.tag and scene.crosses:
            whose = "the words that are written" if letter == "q" else "the encoder's output"
            says = once(f"In cross-attention, {what} come from {whose}.")
        walker.step(
            f"{name} = {projected(source, matrix, bias, heads=True)}",
            f"{kind}: {what}",
            says,
            f"{letter}_i^h = W_{letter}^h {source[0]}_i" + (f" + b_{letter}^h" if bias else ""),
            axes=(heads, words),
        )
        if layer.positions is not None and letter != "v":
            line = f"{name}_turned = {rotated(name, layer.head_dim, angles)}"
            name = walker.step(line, f"{kind}: {what} rotated", once(ROTATED), axes=(heads, words))
        if scene.group > 1 and letter != "q":
            says = once(f"Each key/value head is shared by {scene.group} neighbouring query heads.")
            line = f"{name}_shared = {name}.repeat_interleave({scene.group}, dim=0)"
            name = walker.step(line, f"{kind}: {what} shared", says, axes=(many, words))
        names.append(name)
    return names[0], names[1], names[2]


def _weigh_all(scene: Scene, many: Axis, q: str, k: str) -> str:
    """Add the scores and the attention weights of all heads; return the name of the weights."""
    walker, kind, once, pairs = (
        scene.walker,
        scene.kind,
        scene.walker.once,
        (many, scene.readers, scene.read),
    )
    scores = scene.lines.heads.format(Q=q, K=k, n=len(scene.readers), m=len(scene.read))
    for parameter in ("W_a", "U_a", "v_a"):
        scores = scores.replace(parameter, f"{parameter}{scene.tag}")
    scores += scene.scaling
    says = "How well each query fits each key" + (
        ", divided by the root of their size." if scene.scaling else "."
    )
    if scene.bias is not None:
        scores += " - slopes[:, None, None] * distances"
        says += " Each head subtracts a slope times the distance of the two words."
    formula = (
        "{q_i^h · k_j^h}/{√{d}}"
        if scene.multiplies and scene.scaling and scene.bias is None
        else ""
    )
    name = walker.step(
        f"{scene.name('scores')} = {scores}", f"{kind}: scores", once(says), formula, axes=pairs
    )
    allowed = f"allowed{scene.tag}"
    filled = ""
    if scene.mask:
        if allowed not in walker.values:
            what = (
                "A word may look at itself and at earlier words"
                if scene.causal
                else "The pattern of this layer"
            )
            says = once(f"{what}: 1 means allowed, 0 masked.")
            axes = pairs if scene.varies_by_head else pairs[1:]
            walker.step(f"{allowed} = {scene.mask}", f"{kind}: mask", says, axes=axes, scale="none")
        line = f"{scene.name('masked')} = {name}.masked_fill(~{allowed}, -math.inf)"
        name = walker.step(line, f"{kind}: masked scores", once(MASKED), axes=pairs)
        filled = (
            "" if walker.values[allowed].any(-1).all() else ".nan_to_num(0)"
        )  # the weights of empty rows are 0
    return walker.step(
        f"{scene.name('weights')} = {name}.softmax(-1){filled}",
        f"{kind}: attention weights",
        lambda weights: _most_of_heads(scene, weights),
        "α_{ij} = {exp(s_{ij})}/{Σ_l exp(s_{il})}",
        axes=pairs,
        scale="weights",
    )


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
    check(f"layer({scene.x}[None]{f', {scene.c}[None]' if scene.crosses else ''})[0]", "output")


def _fused_call(scene: Scene) -> str:
    """The expression of PyTorch's fused attention for all heads."""
    q, k, v = "QKV" if scene.layer.heads > 1 else "qkv"
    if scene.layer.positions is not None:
        q = f"{q}_turned"
        k = f"{k}_turned"
    if scene.group > 1:
        k = f"{k}_shared"
        v = f"{v}_shared"
    options = (", attn_mask=allowed" if scene.mask else "") + (
        "" if scene.scaling else ", scale=1.0"
    )
    return f"F.scaled_dot_product_attention({q}, {k}, {v}{options})"
