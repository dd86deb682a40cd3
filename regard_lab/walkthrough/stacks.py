"""Whole models as steps: the parts of each layer, checked layer by layer, and what the model returns at the end.

Names of variables end in a tag that says where they belong: `Q_0` in layer 0, `Q_e0` in the encoder's, `Q_d0` in the
decoder's self-attention, `Q_c0` in its cross-attention.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import nn

from regard.arguments import count_of, of_kind
from regard.bias import ALiBi
from regard.layers import FeedForward, MultiHeadAttention
from regard_lab.models import LanguageModel, TextEncoder, TranslationTransformer
from regard_lab.models.encoder import ClassesHead, WordsHead
from regard_lab.models.language import Stack
from regard_lab.models.layers import Block, DecoderLayer, EncoderLayer, Residual
from regard_lab.walkthrough.heads import every_head
from regard_lab.walkthrough.inputs import embed_run
from regard_lab.walkthrough.layer import Scene, give_layer, give_slopes
from regard_lab.walkthrough.steps import Axis, Walker, numbered


@dataclass
class Stage:
    """A stack of layers that is walked through."""

    walker: Walker

    # Their vectors go through the stack; the chosen word is followed.
    words: Axis

    # "" for a model with one stack, "e" for the encoder, "d" for the decoder.
    scope: str

    # Where the weights come from, in a few words.
    origin: str

    def give(self, name: str, tensor: torch.Tensor | None, says: str) -> bool:
        """Give a weight, if the layer has it."""
        if tensor is not None:
            self.walker.give(name, tensor, f"{says}, {self.origin}")
        return tensor is not None


def normed(stage: Stage, norm: nn.Module, h: str, name: str) -> str:
    """Add the step `name`, the norm of the vectors `h`; return the name of the result, `h` where there is no norm."""
    if isinstance(norm, nn.Identity):
        return h
    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
    whose = f"of the norm that gives {name}"
    stage.give(f"gain_{name}", norm.weight, whose)
    shifted = stage.give(f"shift_{name}", getattr(norm, "bias", None), whose)

    if isinstance(norm, nn.LayerNorm):
        mean = f"{h}.mean(-1, keepdim=True)"
        spread = f"{h}.var(-1, correction=0, keepdim=True)"
        line = f"({h} - {mean}) / ({spread} + {norm.eps!r}).sqrt() * gain_{name}"
        formula = f"g · {{({h[0]}_i - μ_i)}}/{{√{{(σ_i^2 + ε)}}}}"
        says = "The norm gives every vector the mean 0 and the variance 1, then a learned gain"
        says += " and shift." if shifted else "."
    else:
        line = f"{h} / ({h}.square().mean(-1, keepdim=True) + {norm.eps!r}).sqrt() * gain_{name}"
        formula = f'g · {{{h[0]}_i}}/{{√{{("mean"({h[0]}_i^2) + ε)}}}}'
        says = "The norm divides every vector by the root of its mean square, then applies a learned gain."
    if shifted:
        formula += " + b"
        line += f" + shift_{name}"

    walker = stage.walker
    return walker.step(f"{name} = {line}", "Norm", walker.once(says), formula, axes=(stage.words,))


def added(stage: Stage, h: str, part: str, name: str, what: str) -> str:
    """Add the residual step `name = h + part`, with the lengths of both for the followed word."""
    walker = stage.walker
    word = stage.words.followed
    before = float(walker.values[h][word].norm())
    more = float(walker.values[part][word].norm())
    says = walker.once(
        "A residual connection: the part adds to the vector of a word and does not replace it. "
    )
    says += f"To “{stage.words.labels[word]}”, of length {before:.2f}, the {what} adds a vector of length {more:.2f}."
    formula = f"{name[0]}_i + {part[0]}_i"
    return walker.step(f"{name} = {h} + {part}", "Residual", says, formula, axes=(stage.words,))


class Part(NamedTuple):
    """A part of a layer with its norm and residual."""

    what: str
    norm: nn.Module

    # Whether the norm comes before the part; else it comes after the residual.
    first: bool

    # The name of the normed vectors that the part reads, and that of the result.
    inner: str
    after: str

    # Adds the steps of the part for vectors of a name, and returns the name of its output.
    run: Callable[[str], str]


def through_layer(stage: Stage, h: str, parts: Sequence[Part], call: str) -> str:
    """Add the parts of a layer, and check the result, whose name is returned, against a call of the layer on `h`."""
    before = h
    for part in parts:
        if part.first:
            inner = normed(stage, part.norm, h, part.inner)
            output = part.run(inner)
            h = added(stage, h, output, part.after, part.what)
        else:
            output = part.run(h)
            total = added(stage, h, output, f"sum_{part.after}", part.what)
            h = normed(stage, part.norm, total, part.after)
    stage.walker.check(call.format(f"{before}[None]"), h)
    return h


def attend(
    stage: Stage,
    layer: MultiHeadAttention,
    tag: str,
    kind: str,
    x: str,
    *,
    seen: Axis | None = None,
    bias: ALiBi | None = None,
) -> str:
    """Add the steps of attention in all heads of the words' vectors `x`, which look at themselves or at the seen words.

    Returns the name of the output.
    """
    crosses = seen is not None
    scene = Scene(
        stage.walker,
        layer,
        readers=stage.words,
        read=seen if crosses else stage.words,
        x=x,
        c="c" if crosses else x,
        origin=lambda name: stage.origin,
        bias=bias,
        kind=kind,
        tag=tag,
        scope=stage.scope,
    )
    give_layer(scene)
    return every_head(scene)


ACTIVATED = {
    "relu": "torch.relu({})",
    "gelu": "F.gelu({})",
    "gelu-tanh": 'F.gelu({}, approximate="tanh")',
    "silu": "F.silu({})",
    "swiglu": "F.silu({})",
    "geglu": "F.gelu({})",
}


def feed(stage: Stage, layer: FeedForward, tag: str, x: str) -> str:
    """Add the steps of a feed-forward network; return the name of its output."""
    walker = stage.walker
    axes = (stage.words,)
    lines = {}
    for name, projection in (("in", layer.widen), ("gate", layer.gate), ("out", layer.narrow)):
        if projection is not None:
            matrix = f"W_{name}{tag}"
            bias = f"b_{name}{tag}"
            stage.give(matrix, projection.weight, f"matrix of the feed-forward ({name})")
            has_bias = stage.give(bias, projection.bias, f"bias of the feed-forward ({name})")
            source = f"hidden{tag}" if name == "out" else x
            lines[name] = f"{source} @ {matrix}.T"
            if has_bias:
                lines[name] += f" + {bias}"

    activated = ACTIVATED[layer.activation]
    kind = layer.activation.replace("swiglu", "silu").replace("geglu", "gelu").removesuffix("-tanh")
    if "gate" in lines:
        line = f"{activated.format(lines['gate'])} * ({lines['in']})"
        formula = f"u_i = {kind}(W_g {x[0]}_i) · W_1 {x[0]}_i"
    else:
        line = activated.format(lines["in"])
        shift = " + b_1" if layer.widen.bias is not None else ""
        formula = f"u_i = {kind}(W_1 {x[0]}_i{shift})"
    says = walker.once(
        "The feed-forward network computes each word alone: more numbers, a non-linear function."
    )
    walker.step(f"hidden{tag} = {line}", "Feed-forward: hidden layer", says, formula, axes=axes)

    line = f"fed{tag} = {lines['out']}"
    says = walker.once(
        "A second matrix maps the hidden layer back to the size of the word's vector."
    )
    formula = "f_i = W_2 u_i"
    if layer.narrow.bias is not None:
        formula += " + b_2"
    return walker.step(line, "Feed-forward: output", says, formula, axes=axes)


# How many words of a distribution are listed.
LIKELIEST = 5

# The origin of weights that were trained.
LEARNED = "learned"


def through_model(
    walker: Walker,
    model: Stack | TranslationTransformer,
    words: Axis,
    seen: Axis | None,
    spell: str,
    origin: str,
) -> None:
    """Add every step of a model from ids to its output, and check each layer and the output against the model.

    Args:
        walker: has the steps `ids` (and `context_ids`) and their words.
        model: in float64 and eval mode.
        words, seen: the words that are read or written, and those of the context.
        spell: an expression of the words of a list of ids, with a place for the list.
        origin: where the weights come from.

    Raises:
        UnsupportedError: a layer that a walkthrough cannot show.
        RegardError: a step differs from the model.
    """
    pieces = tuple(eval(spell.format(f"list(range({model.config.vocab_size}))"), walker.values))
    vocabulary = Axis("ids", pieces)
    if isinstance(model, TranslationTransformer):
        assert seen is not None
        _translate(walker, model, words, seen, origin)
        final = "final"
        scored = "model(context_ids[None], ids[None])[0]"
    else:
        stage = Stage(walker, words, "", origin)
        h = embed_run(walker, model, words, written=False, result="h0")
        h = _through_blocks(stage, model, h)
        walker.section = "The output"
        final = normed(stage, model.norm, h, "final")
        scored = "model(ids[None])[0]"
        if isinstance(model, TextEncoder):
            _finish_encoder(stage, model, final, vocabulary, spell)
            return

    # A model without a matrix of its own scores words by the table that embeds them.
    parameter = "embedding.weight"
    if getattr(model, "to_vocabulary", None) is not None:
        parameter = "to_vocabulary.weight"
    W_words = model.get_parameter(parameter)
    walker.give("W_words", W_words, f"a vector for each word of the vocabulary, {origin}")

    line = f"scores = {final} @ W_words.T"
    says = (
        "The score of each word of the vocabulary as the next word: its row of W_words times the last vector of the "
        "word shown."
    )
    formula = 's_i = W "final"_i'
    walker.step(line, "Scores of the next word", says, formula, axes=(words, vocabulary))
    walker.check(scored, "scores")
    _distribute(walker, words, vocabulary, spell, "the next word", origin)


def _through_blocks(stage: Stage, model: Stack, h: str) -> str:
    """Add the layers of a language model or text encoder; return the name of the last output."""
    walker = stage.walker
    biases = [getattr(block, "bias", None) for block in model.blocks]
    shared_bias = next((bias for bias in biases if bias is not None), None)
    if shared_bias is not None:
        give_slopes(walker, shared_bias, model.config.heads, stage.words)

    kind = "Masked self-attention" if isinstance(model, LanguageModel) else "Self-attention"
    layers = count_of(len(model.blocks), "layers")
    for number, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        needs = "keys and values of its own for each head, which latents are not"
        attention = of_kind(
            "the attention of this model", block.attention, MultiHeadAttention, needs
        )
        walker.section = f"Layer {number} of {layers}"
        tag = f"_{number}"
        parts = (
            Part(
                "attention",
                block.attention_norm,
                first=True,
                inner=f"x{tag}",
                after=f"h{number}a",
                run=partial(attend, stage, attention, tag, kind, bias=block.bias),
            ),
            Part(
                "feed-forward",
                block.feed_forward_norm,
                first=True,
                inner=f"y{tag}",
                after=f"h{number + 1}",
                run=partial(feed, stage, block.feed_forward, tag),
            ),
        )
        h = through_layer(stage, h, parts, f"model.blocks[{number}]({{}})[0]")
    return h


def _translate(
    walker: Walker, model: TranslationTransformer, words: Axis, seen: Axis, origin: str
) -> None:
    """Add encoder and decoder, up to the vectors `final` that are scored."""
    encoder = Stage(walker, seen, "e", origin)
    decoder = Stage(walker, words, "d", origin)
    walker.section = "From text to vectors"
    h = embed_run(walker, model, seen, written=False, prefix="context_", result="h0")
    g = embed_run(walker, model, words, written=True, result="g0")

    layers = count_of(len(model.encoder), "layers")
    for number, layer in enumerate(model.encoder):
        assert isinstance(layer, EncoderLayer)
        walker.section = f"Encoder, layer {number} of {layers}"
        parts = _encoder_parts(encoder, layer, number)
        h = through_layer(encoder, h, parts, f"model.encoder[{number}]({{}}, None)[0]")

    walker.section = "The encoder's output"
    says = "What the decoder looks at: one vector for each word of the context, computed once."
    h = normed(encoder, model.encoder_norm, h, "normed")
    walker.step(f"c = {h}", "The encoder's output", says, axes=(seen,))
    walker.check("model.encode(context_ids[None])[0][0]", "c")

    layers = count_of(len(model.decoder), "layers")
    start = 0 if model.cross_pattern.compares_positions else None
    for number, layer in enumerate(model.decoder):
        assert isinstance(layer, DecoderLayer)
        walker.section = f"Decoder, layer {number} of {layers}"
        parts = _decoder_parts(decoder, layer, number, seen)
        call = f"model.decoder[{number}]({{}}, c[None], live=None, context_live=None, context_q_start={start})[0]"
        g = through_layer(decoder, g, parts, call)

    walker.section = "The output"
    final = normed(decoder, model.decoder_norm, g, "final")
    if final != "final":
        says = "The vectors of the last layer are scored."
        walker.step(f"final = {final}", "The decoder's output", says, axes=(words,))


def _encoder_parts(stage: Stage, layer: EncoderLayer, number: int) -> tuple[Part, ...]:
    tag = f"_e{number}"
    return (
        _part(
            "attention",
            layer.around_attention,
            inner=f"x{tag}",
            after=f"h{number}a",
            run=partial(attend, stage, layer.attention, tag, "Self-attention"),
        ),
        _part(
            "feed-forward",
            layer.around_feed_forward,
            inner=f"y{tag}",
            after=f"h{number + 1}",
            run=partial(feed, stage, layer.feed_forward, tag),
        ),
    )


def _decoder_parts(stage: Stage, layer: DecoderLayer, number: int, seen: Axis) -> tuple[Part, ...]:
    tag = f"_d{number}"
    cross = f"_c{number}"
    return (
        _part(
            "self-attention",
            layer.around_self_attention,
            inner=f"x{tag}",
            after=f"g{number}a",
            run=partial(attend, stage, layer.self_attention, tag, "Masked self-attention"),
        ),
        _part(
            "cross-attention",
            layer.around_cross_attention,
            inner=f"x{cross}",
            after=f"g{number}c",
            run=partial(attend, stage, layer.cross_attention, cross, "Cross-attention", seen=seen),
        ),
        _part(
            "feed-forward",
            layer.around_feed_forward,
            inner=f"y{tag}",
            after=f"g{number + 1}",
            run=partial(feed, stage, layer.feed_forward, tag),
        ),
    )


def _part(what: str, around: Residual, inner: str, after: str, run: Callable[[str], str]) -> Part:
    return Part(what, around.norm, around.norm_first, inner, after, run)


def _finish_encoder(
    stage: Stage, model: TextEncoder, final: str, vocabulary: Axis, spell: str
) -> None:
    """Add the head of a text encoder."""
    walker = stage.walker
    head = model.head
    walker.check("model.vectors(ids[None])[0]", final)
    if isinstance(head, WordsHead | ClassesHead):
        stage.give("W_dense", head.dense.weight, "matrix of the head")
        stage.give("b_dense", head.dense.bias, "bias of the head")
    if isinstance(head, WordsHead):
        says = "The head of masked words: a matrix and a non-linear function."
        line = f"dense = F.gelu({final} @ W_dense.T + b_dense)"
        formula = '"dense"_i = gelu(W "final"_i + b)'
        walker.step(line, "The head", says, formula, axes=(stage.words,))

        ready = normed(stage, head.norm, "dense", "ready")
        W_words = model.embedding.weight if head.weight is None else head.weight
        stage.give("W_words", W_words, "a vector for each word")
        stage.give("b_words", head.bias, "of the scores")
        says = "The score of each word of the vocabulary at each place."
        axes = (stage.words, vocabulary)
        line = f"scores = {ready} @ W_words.T + b_words"
        walker.step(line, "Scores of the words", says, 's_i = W "ready"_i + b', axes=axes)
        walker.check("model(ids[None])[0]", "scores")
        _distribute(walker, stage.words, vocabulary, spell, "the word at this place", stage.origin)
    elif isinstance(head, ClassesHead):
        _classify(stage, head, final)


def _classify(stage: Stage, head: ClassesHead, final: str) -> None:
    """Add the head that sorts a text into classes."""
    walker = stage.walker
    if head.pooling == "first":
        line = f"pooled = {final}[0]"
        says = "The vector of the text: that of its first word."
    else:
        line = f"pooled = {final}.mean(0)"
        says = "The vector of the text: the mean."
    walker.step(line, "Pooling", says, axes=())

    stage.give("W_classes", head.to_classes.weight, "matrix of the head")
    stage.give("b_classes", head.to_classes.bias, "bias of the head")
    line = "dense = torch.tanh(W_dense @ pooled + b_dense)"
    walker.step(line, "The head", "A matrix and tanh.", "u = tanh(W p + b)", axes=())
    classes = (numbered("classes", head.to_classes.out_features),)
    line = "scores = W_classes @ dense + b_classes"
    walker.step(line, "Scores of the classes", "One score for each class.", axes=classes)
    walker.check("model(ids[None])[0]", "scores")

    line = "probabilities = scores.softmax(-1)"
    says = "The softmax turns the scores into probabilities."
    walker.step(line, "Distribution", says, axes=classes, scale="weights")


def _distribute(
    walker: Walker, words: Axis, vocabulary: Axis, spell: str, what: str, origin: str
) -> None:
    """Add the distribution over the vocabulary, and the likeliest words at the followed one."""
    walker.step(
        "probabilities = scores.softmax(-1)",
        "Distribution",
        f"The softmax turns the scores into probabilities: the distribution of {what}.",
        "p_{iw} = {exp(s_{iw})}/{Σ_v exp(s_{iv})}",
        axes=(words, vocabulary),
        scale="weights",
    )

    top = f"probabilities[{words.followed}].topk({min(LIKELIEST, len(vocabulary))})"
    where = "After" if what == "the next word" else "At"
    spelled = spell.format(f"{top}.indices.tolist()")
    axis = Axis("words", tuple(eval(spelled, walker.values)))
    says = f"{where} “{words.labels[words.followed]}”."
    if origin != LEARNED:
        says += " The weights are random, so this is no prediction about language: any word could come first."
    walker.step(f"likeliest = {spelled}", "The likeliest words", says, axes=(axis,))
    walker.step(
        f"chances = {top}.values",
        "Their probabilities",
        "In the same order.",
        axes=(axis,),
        scale="weights",
    )
