"""The drop-in for nn.MultiheadAttention: the same state_dict, arguments, numbers and gradients."""

import copy
from itertools import product

import pytest
import torch
from torch import nn

import regard as rg
from regard.integrations.torch import MultiheadAttention, replaced_attention

DIM = 12
HEADS = 4
BATCH = 3
QUERIES = 5
KEYS = 7
PADDED = torch.tensor(
    [[False] * 7, [False] * 4 + [True] * 3, [True, False, True, False, False, True, False]]
)
OPTIONS = {
    "plain": {},
    "batch first": {"batch_first": True},
    "no biases": {"bias": False},
    "other widths": {"kdim": 6, "vdim": 9},
    "a bias as a key": {"add_bias_kv": True},
    "a zero key": {"add_zero_attn": True},
}
ADDED = torch.randn(QUERIES, KEYS, generator=torch.Generator().manual_seed(1))
MASKED = torch.rand(QUERIES, KEYS, generator=torch.Generator().manual_seed(1)) > 0.7
MASKED_BY_HEAD = (
    torch.rand(BATCH * HEADS, QUERIES, KEYS, generator=torch.Generator().manual_seed(2)) > 0.7
)
MASKS = {
    "none": {},
    "padding": {"key_padding_mask": PADDED},
    "pairs": {"attn_mask": MASKED},
    "numbers": {"attn_mask": ADDED},
    "by head": {"attn_mask": MASKED_BY_HEAD},
    "padding and numbers": {
        "key_padding_mask": PADDED.float().masked_fill(PADDED, -torch.inf),
        "attn_mask": ADDED,
    },
}


def layers(**options):
    theirs = nn.MultiheadAttention(DIM, HEADS, **options)
    ours = MultiheadAttention(DIM, HEADS, **options)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.4)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def inputs(options, queries=QUERIES, keys=KEYS, batch=(BATCH,)):
    shapes = [
        (queries, *batch, DIM),
        (keys, *batch, options.get("kdim", DIM)),
        (keys, *batch, options.get("vdim", DIM)),
    ]
    tensors = [torch.randn(shape) for shape in shapes]
    if options.get("batch_first") and batch:
        tensors = [x.transpose(0, 1).contiguous() for x in tensors]
    return [x.requires_grad_() for x in tensors]


WEIGHTS = (None, True, False)  # none, their mean, those of each head
CASES = [
    (option, mask, WEIGHTS[(row + column) % 3])
    for (row, option), (column, mask) in product(enumerate(OPTIONS), enumerate(MASKS))
]


@pytest.mark.parametrize(("options", "mask", "weights"), CASES)
def test_it_gives_the_numbers_of_pytorchs_layer(options, mask, weights):
    """Every option with every mask, and the three kinds of weights in turn."""
    theirs, ours = layers(**OPTIONS[options])
    tensors = inputs(OPTIONS[options])
    keywords = {
        **MASKS[mask],
        "need_weights": weights is not None,
        "average_attn_weights": bool(weights),
    }
    expected, expected_weights = theirs(*tensors, **keywords)
    output, our_weights = ours(*tensors, **keywords)
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=2e-5)
    assert (our_weights is None) == (weights is None)
    if weights is not None:
        torch.testing.assert_close(our_weights, expected_weights, rtol=1e-5, atol=2e-5)
    grad = torch.randn_like(output)
    wanted = torch.autograd.grad(expected, [*tensors, *theirs.parameters()], grad)
    gradients = torch.autograd.grad(output, [*tensors, *ours.parameters()], grad)
    torch.testing.assert_close(gradients, wanted, rtol=1e-4, atol=2e-4)


def test_a_causal_mask_is_recognised_and_alone_is_refused():
    theirs, ours = layers()
    x = torch.randn(6, BATCH, DIM)
    mask = nn.Transformer.generate_square_subsequent_mask(6)
    torch.testing.assert_close(
        ours(x, x, x, attn_mask=mask, is_causal=True)[0], theirs(x, x, x, attn_mask=mask)[0]
    )
    with pytest.raises(rg.ArgumentError, match="attn_mask"):
        ours(x, x, x, is_causal=True)


def encoder_of(count, nested=False, **options):
    """PyTorch's encoder, and the same weights in one with our layers."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(DIM, HEADS, 16, dropout=0.0, batch_first=True)
    theirs = nn.TransformerEncoder(layer, count, enable_nested_tensor=nested)
    ours = copy.deepcopy(theirs)
    for layer in ours.layers:
        weights = layer.self_attn.state_dict()
        layer.self_attn = MultiheadAttention(DIM, HEADS, batch_first=True, **options)
        layer.self_attn.load_state_dict(weights)
    return theirs, ours


@pytest.mark.parametrize("training", [True, False])
def test_inside_pytorchs_encoder_its_fast_path_does_not_skip_the_layer(training):
    theirs, encoder = encoder_of(2)
    theirs.train(training)
    encoder.train(training)
    x = torch.randn(BATCH, KEYS, DIM)
    padded = torch.arange(KEYS) >= torch.tensor([[7], [4], [5]])
    with torch.set_grad_enabled(training):
        expected = theirs(x, src_key_padding_mask=padded)
        output = encoder(x, src_key_padding_mask=padded)
        torch.testing.assert_close(output[~padded], expected[~padded], rtol=1e-5, atol=1e-5)
        encoder.layers[0].self_attn.pattern = rg.patterns.SlidingWindow(2)
        assert not torch.allclose(encoder(x, src_key_padding_mask=padded), output)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_of_pytorchs_encoder_are_refused_with_the_way_out():
    theirs, encoder = encoder_of(1, nested=True)
    theirs.eval()
    encoder.eval()
    padded = torch.arange(KEYS) >= torch.tensor([[7], [4], [5]])
    x = torch.randn(BATCH, KEYS, DIM)
    with torch.no_grad():
        with pytest.raises(
            rg.UnsupportedError, match=r"set encoder\.use_nested_tensor = False, or"
        ):
            encoder(x, src_key_padding_mask=padded)
        encoder.use_nested_tensor = False
        expected = theirs.layers[0](x, src_key_padding_mask=padded)
        output = encoder(x, src_key_padding_mask=padded)
        torch.testing.assert_close(output[~padded], expected[~padded])


def test_its_attention_is_recorded_inside_pytorchs_encoder():
    encoder = encoder_of(2, pattern="sliding_window(2)")[1].eval()
    x = torch.randn(BATCH, KEYS, DIM)
    expected = encoder(x)
    with rg.record_attention(encoder, ("weights", "entropy")) as recording:
        torch.testing.assert_close(encoder(x), expected)
    assert list(recording.details) == ["layers.0.self_attn", "layers.1.self_attn"]
    (first,) = recording["layers.0.self_attn"]
    weights = encoder.layers[0].self_attn(x, x, x, average_attn_weights=False)[1]
    torch.testing.assert_close(first.weights, weights)
    assert first.entropy.shape == (BATCH, HEADS, KEYS)


def test_recording_pytorchs_own_layer_names_the_way():
    layer = nn.MultiheadAttention(DIM, HEADS)
    with (
        pytest.raises(rg.ArgumentError, match=r"replaced_attention\(want=...\)"),
        rg.record_attention(layer),
    ):
        pass


def test_a_block_in_which_no_call_arrives_says_so_unless_another_error_ends_it():
    layer = rg.MultiHeadAttention(dim=DIM, heads=HEADS)
    x = torch.randn(BATCH, KEYS, DIM)
    said = r"no call of F\.scaled_dot_product_attention was seen .* rg\.record_attention"
    with pytest.raises(rg.RegardError, match=said), replaced_attention(want="weights"):
        layer(x)
    with pytest.raises(ZeroDivisionError), replaced_attention(want="weights"):
        _ = 1 / 0


def test_a_query_without_a_key_gets_zeros_before_the_last_projection():
    _, ours = layers(bias=False)
    everything = torch.ones(BATCH, KEYS, dtype=torch.bool)
    output, weights = ours(*inputs({}), key_padding_mask=everything)
    assert not output.any()
    assert not weights.any()


def test_dropout_is_applied_in_training_alone_and_never_to_the_weights():
    layer = MultiheadAttention(DIM, HEADS, dropout=0.5)
    x = torch.randn(KEYS, BATCH, DIM)
    layer.train()
    output, weights = layer(x, x, x)
    assert not torch.equal(layer(x, x, x)[0], output)
    torch.testing.assert_close(weights.sum(-1), torch.ones(BATCH, KEYS))
    layer.eval()
    assert torch.equal(layer(x, x, x)[0], layer(x, x, x)[0])


X = torch.zeros(BATCH, QUERIES, DIM)


@pytest.mark.parametrize(
    ("tensors", "masks", "words"),
    [
        (
            (X, X, X),
            {"key_padding_mask": PADDED},
            r"key_padding_mask has shape \(3, 7\); .*\(batch, keys\) = \(3, 5\)",
        ),
        (
            (X, X, X),
            {"attn_mask": torch.zeros(5, 6)},
            r"attn_mask has shape \(5, 6\); .*\(queries, keys\) = \(5, 5\)",
        ),
        (
            (X[..., :6], X, X),
            {},
            r"query has shape \(3, 5, 6\); this layer needs \(batch, length, 12\)",
        ),
        ((X, X[:1], X[:1]), {}, r"batch is 3 in query \(3, 5, 12\) and 1 in key"),
        ((X, X, X[:, :4]), {}, "has length 5 and value .* 4; each key needs its value"),
        ((X, X[0], X[0]), {}, "all need a batch axis, or none"),
        ((X[0], X[0], X[0]), {"key_padding_mask": PADDED[:, :5]}, r"need \(keys,\) = \(5,\)"),
        (([1.0], X, X), {}, "query is .*; this layer needs a tensor"),
        ((X, X, X), {"key_padding_mask": PADDED[:, :5].long()}, "key_padding_mask"),
    ],
)
def test_inputs_and_masks_that_do_not_fit_are_refused_with_the_numbers(tensors, masks, words):
    with pytest.raises((rg.ShapeError, rg.ArgumentError), match=words):
        MultiheadAttention(DIM, HEADS, batch_first=True)(*tensors, **masks)
