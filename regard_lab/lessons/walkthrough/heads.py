"""All steps of an attention layer: one head in detail, all heads, the output projection, and the same by one call."""

from __future__ import annotations

from regard.arguments import count_of
from regard_lab.lessons.walkthrough.layer import Scene, give_layer
from regard_lab.lessons.walkthrough.one_head import filled, follow_word, look_around, project, take_all
from regard_lab.lessons.walkthrough.steps import Axis, Walker, numbered


def join_heads(walker: Walker, scene: Scene) -> None:
    """Add the steps from all heads to the layer's output."""
    layer, writing = scene.layer, scene.writing
    mix = "A last matrix combines the heads into vectors of the size of the input."
    bias = "b_o" if "b_o" in walker.values else ""
    formula = "o_i = W_o {}_i" + (" + b_o" if bias else "")
    output = writing.axes(scene.readers, numbered("numbers", layer.dim))
    if layer.heads == 1:
        walker.section = "The output"
        line = f"output = {writing.projected('contexts', 'W_o', bias=bias)}"
        walker.step(
            line,
            "Output",
            "A last matrix maps the result to vectors of the size of the input.",
            formula.format("z"),
            axes=output,
        )
        return
    walker.section = "Both heads" if layer.heads == 2 else f"All {count_of(layer.heads, 'heads')}"
    _attend(walker, scene, *_project(walker, scene))
    width = numbered("numbers", layer.heads * layer.value_dim)
    walker.step(
        f"joined = {writing.joined('all_contexts')}", "Concatenation",
        "The context vectors of all heads, concatenated.", "r_i = [z_i^1 ; … ; z_i^H]",
        axes=writing.axes(scene.readers, width),
    )  # fmt: skip
    line = f"output = {writing.projected('joined', 'W_o', bias=bias)}"
    walker.step(line, "Output", mix, formula.format("r"), axes=output)


def compare(walker: Walker, scene: Scene) -> None:
    """Check the results by computing them in other ways."""
    many = scene.layer.heads > 1
    walker.check(f"weights[{scene.word}]", "alpha")
    if many:
        walker.check(f"all_weights[{scene.head}]", "weights")
        walker.check(f"all_contexts[{scene.head}]", "contexts")
    if scene.multiplies and scene.bias is None:
        walker.check(_fused_call(scene), "all_contexts" if many else "contexts")
    walker.check(_layer_call(scene), "output")


def _fused_call(scene: Scene) -> str:
    """The expression of PyTorch's fused attention for all heads."""
    layer, many, writing = scene.layer, scene.layer.heads > 1, scene.writing
    q, k, v = ("Q", "K", "V") if many else ("q", "k", "v")
    if layer.positions is not None:
        q, k = f"{q}_turned", f"{k}_turned"
    if scene.group > 1:
        k, v = f"{k}_shared", f"{v}_shared"
    inputs = [writing.by_row(name, heads=many) for name in (q, k, v)]
    if scene.mask:
        inputs.append(f"attn_mask={'allowed_by_head' if many and scene.varies_by_head else 'allowed'}")
    if layer.options["scale"] is not None or not scene.scaling:
        inputs.append(f"scale={layer.options['scale'] or 1.0!r}")
    return writing.by_row(f"F.scaled_dot_product_attention({', '.join(inputs)})", heads=many)


def _layer_call(scene: Scene) -> str:
    """The expression that calls the layer itself with a batch of one text."""
    writing = scene.writing
    inputs = [f"{writing.by_row(scene.x)}[None]"]
    if scene.crosses:
        inputs.append(f"{writing.by_row(scene.c)}[None]")
    if scene.bias is not None:
        inputs.append("bias=ALiBi()")
    if scene.crosses and scene.layer.pattern.compares_positions:
        inputs.append("q_start=0")
    return writing.by_row(f"layer({', '.join(inputs)})[0]")


def _project(walker: Walker, scene: Scene) -> tuple[str, str, str]:
    """Add queries, keys and values of all heads, rotated and shared as the layer does; return their names."""
    layer, writing = scene.layer, scene.writing
    many = Axis("heads", _names(layer.heads, "head"))
    few = many if scene.group == 1 else Axis("heads", _names(layer.kv_heads, "key/value head"))
    names = {}
    for letter, what, heads, words, source in (
        ("q", "Queries", many, scene.readers, scene.x),
        ("k", "Keys", few, scene.read, scene.c),
        ("v", "Values", few, scene.read, scene.c),
    ):
        bias = f"b_{letter}" if f"b_{letter}" in walker.values else ""
        axes = writing.axes(words, numbered("numbers", walker.values[f"W_{letter}"].shape[1]))
        says = f"{what} of every head; each head has its own matrix."
        name = names[letter] = letter.upper()
        walker.step(
            f"{name} = {writing.projected(source, f'W_{letter}', bias=bias, heads=True)}", f"{what} of all heads", says,
            f"{letter}_i^h = W_{letter}^h {source}_i", axes=(heads, *axes),
        )  # fmt: skip
        if layer.positions is not None and letter != "v":
            name = names[letter] = f"{name}_turned"
            line = f"{name} = {writing.rotated(letter.upper(), layer.head_dim)}"
            walker.step(
                line,
                f"{what} rotated",
                "Rotated by their positions, in the same way in each head.",
                axes=(heads, *axes),
            )
        if scene.group > 1 and letter != "q":
            says = f"Each of the {layer.kv_heads} key/value heads is shared by {scene.group} neighbouring query heads."
            line = f"{name}_shared = {name}.repeat_interleave({scene.group}, dim=0)"
            names[letter] = walker.step(line, f"{what} shared", says, axes=(many, *axes))
    return names["q"], names["k"], names["v"]


def _attend(walker: Walker, scene: Scene, q: str, k: str, v: str) -> None:
    """Add scores, weights and context vectors of all heads."""
    layer, writing, allowed = scene.layer, scene.writing, "allowed"
    heads = Axis("heads", _names(layer.heads, "head"))
    if scene.varies_by_head:
        allowed = walker.step(
            f"allowed_by_head = {scene.mask}", "Masks", "Each head has its own pattern; 1 means allowed.",
            axes=(heads, scene.readers, scene.read), scale="none",
        )  # fmt: skip
    place: dict[str, str | int] = {"Q": writing.by_row(q, heads=True), "K": writing.by_row(k, heads=True)}
    place |= {"K_t": writing.by_column(k, heads=True), "n": len(scene.readers), "m": len(scene.read)}
    scores = scene.lines.heads.format(**place) + scene.scaling
    scores += " - slopes[:, None, None] * distances" if scene.bias is not None else ""
    if scene.mask:
        whole = f"({scores})" if " " in scores else scores
        scores = f"{whole}.masked_fill(~{allowed}, -math.inf)"
    walker.step(
        f"all_scores = {scores}", "Scores of all heads", "The steps that led to the scores of one head, in one line.",
        axes=(heads, scene.readers, scene.read),
    )  # fmt: skip
    walker.step(
        f"all_weights = all_scores.softmax(-1){filled(walker)}", "Attention weights of all heads",
        "Each head has weights of its own.", axes=(heads, scene.readers, scene.read),
        scale="weights",
    )  # fmt: skip
    walker.step(
        f"all_contexts = {writing.weighted('all_weights', v, heads=True)}", "Context vectors of all heads",
        "The weighted sum of values in each head.", "z_i^h = Σ_j α_{ij}^h v_j^h",
        axes=(heads, *writing.axes(scene.readers, numbered("numbers", layer.value_dim))),
    )  # fmt: skip


def _names(count: int, what: str) -> tuple[str, ...]:
    return tuple(f"{what} {number}" for number in range(count))


def walk_layer(walker: Walker, scene: Scene) -> None:
    """Add every step of the layer, and check the results against the layer itself.

    Raises:
        UnsupportedError: a layer that a walkthrough cannot show.
        RegardError: a step differs from another way to compute it.
    """
    give_layer(walker, scene)
    q, k = project(walker, scene)
    look_around(walker, scene)
    follow_word(walker, scene, q, k)
    take_all(walker, scene, q, k)
    join_heads(walker, scene)
    compare(walker, scene)
