"""Keywords of other libraries' attention: what to write in the place of each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import wraps
from inspect import signature
from typing import ParamSpec, TypeVar

from regard.arguments import suggest
from regard.errors import KeywordError

MASK = (
    "a boolean mask is pattern=Explicit(mask), where True means that the query may look at the key (as in "
    "scaled_dot_product_attention; nn.MultiheadAttention means the opposite: invert it); a mask of numbers is bias=mask"
)
PADDING = (
    "pattern=KeySpan(0, lengths) for padding behind the keys; for any other padding pattern=KeyMask(mask), where True "
    "means that a key may be looked at (key_padding_mask means the opposite: invert it)"
)
PADDING_MASKS = ("attention_mask", "key_padding_mask", "src_key_padding_mask")
WEIGHTS = "regard.attention_detail(..., want='weights') returns the weights"
CAUSAL = "write pattern='causal'"
WINDOW = "write pattern='causal_window(size)' or pattern='sliding_window(size)'"
OF_CALLS = {
    **dict.fromkeys(("attn_mask", "mask", "src_mask"), MASK),
    **dict.fromkeys(PADDING_MASKS, PADDING),
    **dict.fromkeys(("query", "key", "value"), "the arguments are called q, k, v"),
    "is_causal": f"{CAUSAL}; if q and k have different lengths, regard aligns the last query with the last key, and "
    "PyTorch the first ones",
    "causal": CAUSAL,
    "window_size": WINDOW,
    "dropout_p": "write dropout=; in evaluation 0",
    "enable_gqa": "leave it out: k and v may have fewer heads than q",
    "softmax_scale": "write scale=",
    "need_weights": f"{WEIGHTS}; regard.record_attention(model) records those of layers",
    "average_attn_weights": f"{WEIGHTS} of each head, which weights.mean(1) averages",
}
INPUTS = (
    "the inputs are called x and context: "
    "layer(x), or layer(x, context), whose keys and values come from the context"
)
OF_INPUTS = {
    **OF_CALLS,
    **dict.fromkeys(("query", "key", "value", "q", "k", "v", "hidden_states"), INPUTS),
}
OF_LAYERS = {
    **dict.fromkeys(("embed_dim", "d_model", "hidden_size"), "write dim="),
    **dict.fromkeys(("num_heads", "nhead"), "write heads="),
    **dict.fromkeys(("num_kv_heads", "num_key_value_heads"), "write kv_heads="),
    **dict.fromkeys(
        ("kdim", "vdim"), "write context_dim=; keys and values come from the same vectors"
    ),
    **dict.fromkeys(("causal", "is_causal"), CAUSAL),
    **dict.fromkeys(("add_bias_kv", "add_zero_attn"), "it has no counterpart here"),
    "bias": "write projection_bias= for biases of the projections; a bias of the scores is given to the call, as in "
    "layer(x, bias=regard.bias.ALiBi())",
    "window_size": WINDOW,
    "batch_first": "leave it out: inputs are always (batch, length, dim)",
    "device": "write layer.to(device)",
    "dtype": "write layer.to(dtype)",
}
OF_MODELS = {
    **dict.fromkeys(
        (*PADDING_MASKS, "mask"),
        "leave it out: positions that hold the id PAD (0) are padding, which nothing looks at",
    ),
    **dict.fromkeys(("src", "tgt"), "the ids are called source and target"),
    **dict.fromkeys(
        ("causal", "is_causal"),
        "a language model and a decoder are causal already; patterns belong to the config",
    ),
    "input_ids": "the ids are the first argument, model(ids)",
    "labels": "the model returns logits; torch.nn.functional.cross_entropy(logits, labels) gives a loss",
}
ArgumentsP = ParamSpec("ArgumentsP")
ReturnT = TypeVar("ReturnT")


def refuse_keywords(
    function: str, keywords: Iterable[str], takes: Collection[str], ways: dict[str, str]
) -> None:
    """Raise a KeywordError for keywords that the function does not take, with what to write instead of each.

    >>> refuse_keywords("attention", ["causal"], ("pattern", "scale"), OF_CALLS)
    Traceback (most recent call last):
    regard.errors.KeywordError: attention has no argument 'causal'; write pattern='causal'
    >>> refuse_keywords("a layer", ["embed_dim", "num_heads"], ("dim", "heads"), OF_LAYERS)
    Traceback (most recent call last):
    regard.errors.KeywordError: a layer has no arguments 'embed_dim' (write dim=), 'num_heads' (write heads=)
    """
    named: dict[str, list[str]] = {}  # keywords by what to write instead
    for name in keywords:
        if name not in takes:
            way = ways.get(name) or suggest(name, takes)
            named.setdefault(way, []).append(repr(name))
    if len(named) > 1:
        listed = ", ".join(f"{', '.join(names)} ({way})" for way, names in named.items())
        raise KeywordError(f"{function} has no arguments {listed}")
    for way, names in named.items():
        raise KeywordError(f"{function} has no argument {', '.join(names)}; {way}")


def refusing_keywords(
    name: str, ways: dict[str, str]
) -> Callable[[Callable[ArgumentsP, ReturnT]], Callable[ArgumentsP, ReturnT]]:
    """A decorator: a keyword that the function does not take raises a KeywordError with what to write instead.

    It is checked before Python looks for missing arguments, so that `layer(query=x)` is refused with it as well.

    >>> @refusing_keywords("a layer", OF_LAYERS)
    ... def layer(dim): return dim
    >>> layer(d_model=64)
    Traceback (most recent call last):
    regard.errors.KeywordError: a layer has no argument 'd_model'; write dim=
    """

    def decorate(function: Callable[ArgumentsP, ReturnT]) -> Callable[ArgumentsP, ReturnT]:
        takes = tuple(key for key in signature(function).parameters if key != "self")

        @wraps(function)
        def call(*args: ArgumentsP.args, **options: ArgumentsP.kwargs) -> ReturnT:
            for key in options:
                if key not in takes:
                    refuse_keywords(name, options, takes, ways)
            return function(*args, **options)

        return call

    return decorate
