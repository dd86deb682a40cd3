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
    words: Axis  # whose vectors go through the stack; the chosen one is followed
    scope: str  # "" for a model with one stack, "e" for the encoder, "d" for the decoder
    origin: str  # of the weights, in a few words

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
    stage.give(f"gain_{name}", norm.weight, f"of the norm that gives {name}")
    shifted = stage.give(
        f"shift_{name}", getattr(norm, "bias", None), f"of the norm that gives {name}"
    )
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
    formula += " + b" if shifted else ""
    line += f" + shift_{name}" if shifted else ""
    return stage.walker.step(
        f"{name} = {line}", "Norm", stage.walker.once(says), formula, axes=(stage.words,)
    )


def added(stage: Stage, h: str, part: str, name: str, what: str) -> str:
    """Add the residual step `name = h + part`, with the lengths of both for the followed word."""

    values = stage.walker.values
    word = stage.words.followed
    before, more = (float(values[one][word].norm()) for one in (h, part))
    says = (
        stage.walker.once(
            "A residual connection: the part adds to the vector of a word and does not replace it. "
        )
        + f"To “{stage.words.labels[word]}”, of length {before:.2f}, the {what} adds a vector of length {more:.2f}."
    )
    formula = f"{name[0]}_i + {part[0]}_i"
    return stage.walker.step(
        f"{name} = {h} + {part}", "Residual", says, formula, axes=(stage.words,)
    )


class Part(NamedTuple):
    """A part of a layer with its norm and residual."""

    what: str
    norm: nn.Module
    first: bool  # the norm comes before the part; else it comes after the residual
    inner: str  # the name of the normed vectors that the part reads
    after: str  # the name of the result
    run: Callable[
        [str], str
    ]  # adds the steps of the part for vectors of a name, and returns the name of its output


def through_layer(stage: Stage, h: str, parts: Sequence[Part], call: str) -> str:
    """Add the parts of a layer, and check the result, whose name is returned, against a call of the layer on `h`."""
    before = h
    for part in parts:
        if part.first:
            h = added(
                stage, h, part.run(normed(stage, part.norm, h, part.inner)), part.after, part.what
            )
        else:
            h = normed(
                stage,
                part.norm,
                added(stage, h, part.run(h), f"sum_{part.after}", part.what),
                part.after,
            )
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
    c, read = (x, stage.words) if seen is None else ("c", seen)
    scene = Scene(
        stage.walker,
        layer,
        stage.words,
        read,
        x,
        c,
        lambda name: stage.origin,
        0,
        bias,
        kind,
        tag,
        stage.scope,
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
    lines = {}
    for name, projection in (("in", layer.widen), ("gate", layer.gate), ("out", layer.narrow)):
        if projection is not None:
            stage.give(f"W_{name}{tag}", projection.weight, f"matrix of the feed-forward ({name})")
            has_bias = stage.give(
                f"b_{name}{tag}", projection.bias, f"bias of the feed-forward ({name})"
            )
            source = f"hidden{tag}" if name == "out" else x
            bias = f" + b_{name}{tag}" if has_bias else ""
            lines[name] = f"{source} @ W_{name}{tag}.T{bias}"
    activated = ACTIVATED[layer.activation]
    axes = (stage.words,)
    kind = layer.activation.replace("swiglu", "silu").replace("geglu", "gelu").removesuffix("-tanh")
    line = activated.format(lines["in"])
    formula = f"u_i = {kind}(W_1 {x[0]}_i" + (" + b_1)" if "+" in lines["in"] else ")")
    if "gate" in lines:
        line = f"{activated.format(lines['gate'])} * ({lines['in']})"
        formula = f"u_i = {kind}(W_g {x[0]}_i) · W_1 {x[0]}_i"
    says = stage.walker.once(
        "The feed-forward network computes each word alone: more numbers, a non-linear function."
    )
    walker.step(f"hidden{tag} = {line}", "Feed-forward: hidden layer", says, formula, axes=axes)
    formula = "f_i = W_2 u_i" + (" + b_2" if f"b_out{tag}" in walker.values else "")
    says = stage.walker.once(
        "A second matrix maps the hidden layer back to the size of the word's vector."
    )
    return walker.step(
        f"fed{tag} = {lines['out']}", "Feed-forward: output", says, formula, axes=axes
    )


LIKELIEST = 5  # words of a distribution that are listed
LEARNED = "learned"  # the origin of weights that were trained


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
        h = _through_blocks(
            stage, model, embed_run(walker, model, words, written=False, result="h0")
        )
        walker.section = "The output"
        final = normed(stage, model.norm, h, "final")
        scored = "model(ids[None])[0]"
        if isinstance(model, TextEncoder):
            _finish_encoder(stage, model, final, vocabulary, spell)
            return
    own = (
        "embedding.weight"
        if getattr(model, "to_vocabulary", None) is None
        else "to_vocabulary.weight"
    )
    walker.give(
        "W_words", model.get_parameter(own), f"a vector for each word of the vocabulary, {origin}"
    )
    line = f"scores = {final} @ W_words.T"
    says = "The score of each word of the vocabulary as the next word: its row of W_words times the last vector of the "
    says += "word shown."
    walker.step(
        line, "Scores of the next word", says, 's_i = W "final"_i', axes=(words, vocabulary)
    )
    walker.check(scored, "scores")
    _distribute(walker, words, vocabulary, spell, "the next word", origin)


def _through_blocks(stage: Stage, model: Stack, h: str) -> str:
    """Add the layers of a language model or text encoder; return the name of the last output."""
    walker = stage.walker
    biased = [
        block.bias for block in model.blocks if isinstance(block, Block) and block.bias is not None
    ]
    if biased:
        give_slopes(walker, biased[0], model.config.heads, stage.words)
    kind = "Masked self-attention" if isinstance(model, LanguageModel) else "Self-attention"
    for number, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        needs = "keys and values of its own for each head, which latents are not"
        attention = of_kind(
            "the attention of this model", block.attention, MultiHeadAttention, needs
        )
        walker.section, tag = (
            f"Layer {number} of {count_of(len(model.blocks), 'layers')}",
            f"_{number}",
        )
        parts = (
            Part(
                "attention",
                block.attention_norm,
                True,
                f"x{tag}",
                f"h{number}a",
                partial(attend, stage, attention, tag, kind, bias=block.bias),
            ),
            Part(
                "feed-forward",
                block.feed_forward_norm,
                True,
                f"y{tag}",
                f"h{number + 1}",
                partial(feed, stage, block.feed_forward, tag),
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
    for number, layer in enumerate(model.encoder):
        assert isinstance(layer, EncoderLayer)
        walker.section = f"Encoder, layer {number} of {count_of(len(model.encoder), 'layers')}"
        parts = (
            _part(
                "attention",
                layer.around_attention,
                f"x_e{number}",
                f"h{number}a",
                partial(attend, encoder, layer.attention, f"_e{number}", "Self-attention"),
            ),
            _part(
                "feed-forward",
                layer.around_feed_forward,
                f"y_e{number}",
                f"h{number + 1}",
                partial(feed, encoder, layer.feed_forward, f"_e{number}"),
            ),
        )
        h = through_layer(encoder, h, parts, f"model.encoder[{number}]({{}}, None)[0]")
    walker.section = "The encoder's output"
    says = "What the decoder looks at: one vector for each word of the context, computed once."
    h = normed(encoder, model.encoder_norm, h, "normed")
    walker.step(f"c = {h}", "The encoder's output", says, axes=(seen,))
    walker.check("model.encode(context_ids[None])[0][0]", "c")
    start = 0 if model.cross_pattern.compares_positions else None
    for number, layer in enumerate(model.decoder):
        assert isinstance(layer, DecoderLayer)
        walker.section = f"Decoder, layer {number} of {count_of(len(model.decoder), 'layers')}"
        parts = (
            _part(
                "self-attention",
                layer.around_self_attention,
                f"x_d{number}",
                f"g{number}a",
                partial(
                    attend, decoder, layer.self_attention, f"_d{number}", "Masked self-attention"
                ),
            ),
            _part(
                "cross-attention",
                layer.around_cross_attention,
                f"x_c{number}",
                f"g{number}c",
                partial(
                    attend,
                    decoder,
                    layer.cross_attention,
                    f"_c{number}",
                    "Cross-attention",
                    seen=seen,
                ),
            ),
            _part(
                "feed-forward",
                layer.around_feed_forward,
                f"y_d{number}",
                f"g{number + 1}",
                partial(feed, decoder, layer.feed_forward, f"_d{number}"),
            ),
        )
        call = f"model.decoder[{number}]({{}}, c[None], live=None, context_live=None, context_q_start={start})[0]"
        g = through_layer(decoder, g, parts, call)
    walker.section = "The output"
    final = normed(decoder, model.decoder_norm, g, "final")
    if final != "final":
        says = "The vectors of the last layer are scored."
        walker.step(f"final = {final}", "The decoder's output", says, axes=(words,))


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
        walker.step(
            line, "The head", says, '"dense"_i = gelu(W "final"_i + b)', axes=(stage.words,)
        )
        ready = normed(stage, head.norm, "dense", "ready")
        stage.give(
            "W_words",
            model.embedding.weight if head.weight is None else head.weight,
            "a vector for each word",
        )
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
    first = head.pooling == "first"
    says = "The vector of the text: " + ("that of its first word." if first else "the mean.")
    walker.step(f"pooled = {final}{'[0]' if first else '.mean(0)'}", "Pooling", says, axes=())
    stage.give("W_classes", head.to_classes.weight, "matrix of the head")
    stage.give("b_classes", head.to_classes.bias, "bias of the head")
    line = "dense = torch.tanh(W_dense @ pooled + b_dense)"
    walker.step(line, "The head", "A matrix and tanh.", "u = tanh(W p + b)", axes=())
    classes = (numbered("classes", head.to_classes.out_features),)
    line = "scores = W_classes @ dense + b_classes"
    walker.step(line, "Scores of the classes", "One score for each class.", axes=classes)
    walker.check("model(ids[None])[0]", "scores")
    says = "The softmax turns the scores into probabilities."
    walker.step(
        "probabilities = scores.softmax(-1)", "Distribution", says, axes=classes, scale="weights"
    )


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
