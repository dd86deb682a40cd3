"""Layers of PyTorch become layers of regard, and arguments of PyTorch are answered with what to write."""

import pytest
import torch
from torch import nn

import regard as rg

X = torch.randn(2, 5, 12, dtype=torch.float64)
CONTEXT = torch.randn(2, 7, 12, dtype=torch.float64)


def theirs(**options):
    torch.manual_seed(0)
    defaults = {"batch_first": True, "dtype": torch.float64}
    return nn.MultiheadAttention(12, 3, **defaults | options).eval()


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"kdim": 7, "vdim": 7}], ids=str)
def test_a_converted_layer_computes_the_same(options):
    module = theirs(**options)
    for parameter in module.parameters():
        nn.init.normal_(parameter)  # biases of PyTorch begin as zeros, which would hide a wrong one
    layer = rg.MultiHeadAttention.from_torch(module)
    context = CONTEXT[..., : options.get("kdim", 12)]
    torch.testing.assert_close(layer(X, context), module(X, context, context)[0])
    if not options.get("kdim"):
        torch.testing.assert_close(layer(X), module(X, X, X)[0])


@pytest.mark.parametrize("options", [{}, {"kdim": 7, "vdim": 7}], ids=str)
def test_a_state_of_pytorch_is_answered_with_the_ways_to_load_it(options):
    state = theirs(**options).state_dict()
    layer = rg.MultiHeadAttention(12, 3, context_dim=options.get("kdim"))
    with pytest.raises(RuntimeError, match=r"Missing key") as refusal:
        layer.load_state_dict(state)
    last_line = str(refusal.value).splitlines()[-1]
    assert "weights of a torch.nn.MultiheadAttention" in last_line
    assert "MultiHeadAttention.from_torch(module)" in last_line
    assert "regard.integrations.torch.MultiheadAttention" in last_line
    assert layer.load_state_dict(state, strict=False).missing_keys  # as PyTorch promises


def test_weights_dtype_and_mode_are_those_of_the_module():
    module = theirs(dropout=0.25).train()
    layer = rg.MultiHeadAttention.from_torch(module, pattern="causal")
    assert (layer.training, layer.dropout, str(layer.pattern)) == (True, 0.25, "causal")
    assert layer.to_q.weight.dtype == torch.float64
    with torch.no_grad():
        module.in_proj_weight.zero_()
    assert layer.to_q.weight.abs().sum() > 0, "the weights are copied"


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (theirs(batch_first=False), "set module.batch_first = True"),
        (theirs(add_bias_kv=True), "add_bias_kv=True"),
        (theirs(add_zero_attn=True), "add_zero_attn=True"),
        (theirs(kdim=7, vdim=8), "keys of size 7 and values of size 8"),
        (nn.Linear(2, 2), "it needs a torch.nn.MultiheadAttention"),
    ],
    ids=["axes", "bias_kv", "zero_attn", "sizes", "kind"],
)
def test_a_module_that_cannot_be_converted_is_refused(module, words):
    with pytest.raises(rg.RegardError, match=words):
        rg.MultiHeadAttention.from_torch(module)


MASK = torch.ones(5, 5, dtype=torch.bool)
ARGUMENTS = [
    ({"attn_mask": MASK}, r"a boolean mask is pattern=Explicit\(mask\)"),
    ({"key_padding_mask": MASK[:2]}, r"pattern=KeySpan\(0, lengths\)"),
    ({"is_causal": True}, "pattern='causal'"),
    ({"need_weights": True}, "want='weights'"),
    ({"patern": "causal"}, "did you mean 'pattern'|there are"),
]


@pytest.mark.parametrize(
    ("options", "words"), ARGUMENTS, ids=[next(iter(options)) for options, _ in ARGUMENTS]
)
def test_an_argument_of_pytorch_is_answered_with_what_to_write(options, words):
    q = X[:, None]
    layer = rg.MultiHeadAttention(12, 3).double()
    calls = [
        lambda: rg.attention(q, q, q, **options),
        lambda: rg.attention_detail(q, q, q, **options),
        lambda: rg.plan_attention(q, q, q, **options),
        lambda: layer(X, **options),
    ]
    (name,) = options
    for call in calls:
        with pytest.raises(rg.KeywordError, match=f"has no argument '{name}'; .*({words})"):
            call()


LAYER = rg.MultiHeadAttention(12, 3).double()
NO_ARGUMENT = "MultiHeadAttention has no argument '{}'; .*"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: LAYER(X, X, X), r"layer\(x\) in place of layer\(x, x, x\)"),
        (
            lambda: LAYER(query=X, key=X, value=X),
            r"no argument 'query', 'key', 'value'; .*layer\(x, context\)",
        ),
        (
            lambda: rg.MultiHeadAttention(12, 3, num_heads=1),
            NO_ARGUMENT.format("num_heads") + "write heads=",
        ),
        (
            lambda: rg.MultiHeadAttention(12, 3, bias=1),
            NO_ARGUMENT.format("bias") + r"projection_bias= .*regard.bias.ALiBi\(\)",
        ),
        (lambda: rg.MultiHeadAttention(12, 3, hedas=1), NO_ARGUMENT.format("hedas") + "head"),
        (
            lambda: rg.MultiHeadAttention(12, 3, is_causal=1),
            NO_ARGUMENT.format("is_causal") + "pattern='causal'",
        ),
        (
            lambda: rg.MultiHeadAttention(embed_dim=12, num_heads=3),
            r"'embed_dim' \(write dim=\), 'num_heads' \(write heads=\)",
        ),
    ],
)
def test_a_layer_made_or_called_like_that_of_pytorch_says_how_it_is(call, words):
    with pytest.raises(rg.KeywordError, match=words):
        call()


def test_positions_and_mechanisms_may_be_texts():
    layer = rg.MultiHeadAttention(12, 3, positions="rotary", mechanism="performer(8)")
    assert "performer(8, seed=0)" in repr(layer)
    assert "Rotary" in repr(layer)
    q = X[:, None]
    torch.testing.assert_close(
        rg.attention(q, q, q, mechanism="linear"),
        rg.attention(q, q, q, mechanism=rg.mechanisms.LinearTransformer()),
    )
    for positions, words in (("sinusoidal", "added to embeddings"), ("rotry", "give Rotary")):
        with pytest.raises(rg.ArgumentError, match=words):
            rg.MultiHeadAttention(12, 3, positions=positions)


def test_a_bias_or_positions_by_the_name_alibi_are_answered_with_the_bias():
    q = X[:, None]
    with pytest.raises(rg.ArgumentError, match=r"bias is 'alibi'; .*regard.bias.ALiBi\(\)"):
        rg.attention(q, q, q, bias="alibi")
    with pytest.raises(
        rg.ArgumentError, match=r"positions is 'alibi', .*layer\(x, bias=regard.bias.ALiBi\(\)\)"
    ):
        rg.MultiHeadAttention(12, 3, positions="alibi")
