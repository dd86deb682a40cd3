"""The answer to an argument of another library's attention: what to write in its place."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from regard.arguments import suggest
from regard.errors import KeywordError

PADDING = (
    "pattern=KeySpan(0, lengths) for padding behind the keys; for any other padding pattern=KeyMask(mask), where True "
    "means that a key may be looked at (key_padding_mask means the opposite: invert it)"
)
MASK = (
    "a boolean mask is pattern=Explicit(mask), where True means that the query may look at the key (as in "
    "scaled_dot_product_attention; nn.MultiheadAttention means the opposite: invert it); a mask of numbers is bias=mask"
)
WEIGHTS = "regard.attention_detail(..., want='weights') returns the weights"
FEWER = "leave it out: k and v may have fewer heads than q"
OF_CALLS = {
    "attn_mask": MASK,
    "mask": MASK,
    "src_mask": MASK,
    "attention_mask": PADDING,
    "key_padding_mask": PADDING,
    "src_key_padding_mask": PADDING,
    "is_causal": "write pattern='causal'; without equal lengths, the last query stands at the last key",
    "causal": "write pattern='causal'",
    "window_size": "write pattern='causal_window(size)' or pattern='sliding_window(size)'",
    "dropout_p": "write dropout=; in evaluation 0",
    "enable_gqa": FEWER,
    "softmax_scale": "write scale=",
    "need_weights": f"{WEIGHTS}; regard.record_attention(model) records those of layers",
    "average_attn_weights": f"{WEIGHTS} of each head, which weights.mean(1) averages",
    "query": "the arguments are called q, k, v",
    "key": "the arguments are called q, k, v",
    "value": "the arguments are called q, k, v",
}
OF_LAYERS = {
    "embed_dim": "write dim=",
    "d_model": "write dim=",
    "hidden_size": "write dim=",
    "num_heads": "write heads=",
    "nhead": "write heads=",
    "num_kv_heads": "write kv_heads=",
    "num_key_value_heads": "write kv_heads=",
    "kdim": "write context_dim=; keys and values come from the same vectors",
    "vdim": "write context_dim=; keys and values come from the same vectors",
    "bias": "write projection_bias=",
    "batch_first": "leave it out: inputs are always (batch, length, dim)",
    "add_bias_kv": "it has no counterpart here",
    "add_zero_attn": "it has no counterpart here",
    "device": "write layer.to(device)",
    "dtype": "write layer.to(dtype)",
}


def refuse_keywords(function: str, given: Iterable[str], takes: Collection[str], answers: dict[str, str]) -> None:
    """Raise a KeywordError for the first keyword that the function does not take, with what to write instead.

    Args:
        function: the name for the message.
        given: the keywords that were given.
        takes: those that exist.
        answers: what to write for keywords of other libraries.

    >>> refuse_keywords("attention", ["causal"], ("pattern", "scale"), OF_CALLS)
    Traceback (most recent call last):
    regard.errors.KeywordError: attention has no argument 'causal'; write pattern='causal'
    """
    for name in given:
        if name not in takes:
            raise KeywordError(f"{function} has no argument {name!r}; {answers.get(name) or suggest(name, takes)}")
