"""Code that calls PyTorch's attention gives the same numbers through regard, and can be observed and changed."""

import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

import regard as rg
from regard import patterns as p
from regard.integrations.torch import MultiheadAttention, ReplacedCall, replaced_attention

BATCH = 2
HEADS = 4
LENGTH = 7
DIM = 12
X = torch.randn(BATCH, LENGTH, DIM, generator=torch.Generator().manual_seed(1))
# True: ignored, as nn.MultiheadAttention means it
PADDED = torch.tensor([[False] * 7, [False] * 4 + [True] * 3])
UNPADDED = ~PADDED[:, None, None]
ADDED = torch.where(PADDED, -torch.inf, 0.0)
CAUSAL = nn.Transformer.generate_square_subsequent_mask(LENGTH)


def qkv(q_len=LENGTH, k_len=LENGTH, kv_heads=HEADS, lead=(BATCH,)):
    shapes = (HEADS, q_len, 5), (kv_heads, k_len, 5), (kv_heads, k_len, 3)
    return [torch.randn(*lead, *shape, requires_grad=True) for shape in shapes]


def shaped(*shapes):
    return [torch.randn(*shape, requires_grad=True) for shape in shapes]


SDPA = {
    "plain": (qkv, {}),
    "causal": (qkv, {"is_causal": True}),
    "causal, more keys": (lambda: qkv(5, 9), {"is_causal": True}),
    "scale": (qkv, {"scale": 0.3}),
    "grouped": (lambda: qkv(kv_heads=2), {"enable_gqa": True}),
    "(q, k) booleans": (qkv, {"attn_mask": torch.eye(LENGTH) + torch.rand(LENGTH, LENGTH) > 0.3}),
    "(b, 1, 1, k) booleans": (qkv, {"attn_mask": UNPADDED}),
    "(1, h, q, k) booleans": (
        qkv,
        {"attn_mask": torch.eye(LENGTH) + torch.rand(1, HEADS, LENGTH, LENGTH) > 0.2},
    ),
    "numbers": (qkv, {"attn_mask": torch.randn(HEADS, LENGTH, LENGTH)}),
    "three axes": (lambda: qkv(lead=()), {"attn_mask": torch.randn(LENGTH, LENGTH)}),
    "five axes": (
        lambda: qkv(lead=(3, 2)),
        {"attn_mask": torch.eye(LENGTH) + torch.rand(3, 2, 1, LENGTH, LENGTH) > 0.2},
    ),
    "one row of queries": (
        lambda: shaped((1, 4, 7, 5), (3, 4, 7, 5), (3, 4, 7, 3)),
        {"is_causal": True},
    ),
    "one row of keys": (lambda: shaped((3, 4, 7, 5), (1, 4, 7, 5), (1, 4, 7, 3)), {}),
    "one row of queries, grouped": (
        lambda: shaped((1, 4, 7, 5), (3, 2, 7, 5), (3, 1, 7, 3)),
        {"enable_gqa": True, "attn_mask": torch.eye(7) + torch.rand(3, 1, 7, 7) > 0.3},
    ),
    "one head of keys, others of values": (
        lambda: shaped((3, 4, 7, 5), (3, 1, 7, 5), (3, 4, 7, 3)),
        {},
    ),
    "other numbers of axes": (
        lambda: shaped((4, 7, 5), (2, 3, 4, 7, 5), (3, 1, 7, 3)),
        {"attn_mask": torch.rand(7) > 0.4},
    ),
    "two axes": (lambda: shaped((7, 5), (9, 5), (9, 3)), {"attn_mask": torch.randn(7, 9)}),
    "upper left, more keys": (lambda: qkv(5, 9), {"attn_mask": causal_upper_left(5, 9)}),
    "upper left, fewer keys": (lambda: qkv(9, 5), {"attn_mask": causal_upper_left(9, 5)}),
    "lower right, more keys": (lambda: qkv(5, 9), {"attn_mask": causal_lower_right(5, 9)}),
}


@pytest.mark.parametrize("name", SDPA)
def test_the_function_gives_the_same_numbers_and_gradients(name):
    make, options = SDPA[name]
    tensors = make()
    expected = F.scaled_dot_product_attention(*tensors, **options)
    with replaced_attention() as seen:
        output = F.scaled_dot_product_attention(*tensors, **options)
    assert (seen.calls, seen.left) == (1, [])
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)
    grad = torch.randn_like(expected)
    gradients = torch.autograd.grad(output, tensors, grad)
    expected_gradients = torch.autograd.grad(expected, tensors, grad)
    torch.testing.assert_close(gradients, expected_gradients, rtol=1e-4, atol=1e-5)


REFUSED = [
    (
        (3, 4, 7, 5),
        (3, 2, 7, 5),
        {},
        r"do not broadcast: query \(3, 4, 7, 5\).*; give enable_gqa=True",
    ),
    ((3, 4, 7, 5), (3, 3, 7, 5), {"enable_gqa": True}, "do not divide those of query"),
    ((3, 2, 7, 5), (3, 4, 7, 5), {"enable_gqa": True}, "do not divide those of query"),
    ((2, 4, 7, 5), (3, 4, 7, 5), {}, "do not broadcast"),
    (
        (1, 4, 7, 5),
        (1, 4, 7, 5),
        {"attn_mask": torch.ones(2, 1, 7, 7)},
        "attn_mask .* does not broadcast",
    ),
]


@pytest.mark.parametrize(("q", "k", "options", "sentence"), REFUSED)
def test_axes_that_pytorch_refuses_are_refused_with_a_sentence(q, k, options, sentence):
    q, k, v = shaped(q, k, k)
    with pytest.raises(RuntimeError):
        F.scaled_dot_product_attention(q, k, v, **options)
    with pytest.raises(rg.errors.ShapeError, match=sentence), replaced_attention():
        F.scaled_dot_product_attention(q, k, v, **options)


def test_a_causal_mask_whose_ends_align_is_refused_for_other_lengths():
    with (
        pytest.raises(rg.errors.ShapeError, match=r"give causal_lower_right\(5, 9\)"),
        replaced_attention(),
    ):
        F.scaled_dot_product_attention(*qkv(5, 9), attn_mask=causal_lower_right(9, 9))


def test_a_query_without_a_key_under_a_causal_mask_of_pytorch_gets_zeros():
    with pytest.warns(UserWarning, match="will produce NaNs"):
        mask = causal_lower_right(9, 5)
    tensors = qkv(9, 5)
    with replaced_attention():
        output = F.scaled_dot_product_attention(*tensors, attn_mask=mask)
    assert not output[:, :, :4].any()
    q, k, v = tensors
    expected = F.scaled_dot_product_attention(q[:, :, 4:], k, v, is_causal=True)
    torch.testing.assert_close(output[:, :, 4:], expected)


def test_a_multi_head_layer_refuses_the_causal_masks_of_pytorch_by_name():
    for layer in (
        nn.MultiheadAttention(DIM, 1, batch_first=True),
        MultiheadAttention(DIM, 1, batch_first=True),
    ):
        with (
            pytest.raises(rg.errors.ShapeError, match="attn_mask is a CausalBias"),
            replaced_attention(),
        ):
            layer(X, X, X, attn_mask=causal_upper_left(LENGTH, LENGTH))


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"is_causal": True}, p.Causal),
        ({"attn_mask": CAUSAL}, p.Causal),
        ({"attn_mask": CAUSAL == 0}, p.Causal),
        ({"attn_mask": UNPADDED}, p.KeyMask),
        ({"attn_mask": ADDED[:, None, None].repeat(1, HEADS, 1, 1)}, p.KeyMask),
        ({"attn_mask": torch.rand(LENGTH, LENGTH) > 0.4}, p.Explicit),
        ({"attn_mask": torch.randn(LENGTH, LENGTH)}, p.Full),
    ],
)
def test_a_mask_reaches_the_plan_as_the_pattern_that_it_is(options, kind):
    calls: list[ReplacedCall] = []
    with replaced_attention(lambda call: calls.append(call)):
        F.scaled_dot_product_attention(*qkv(), **options)
    (call,) = calls
    assert type(call.pattern) is kind
    assert (call.number, call.heads, call.q_len, call.k_len) == (0, HEADS, LENGTH, LENGTH)


LAYERS = {
    "without weights": {"need_weights": False},
    "with weights": {},
    "weights by head": {"average_attn_weights": False},
    "padded": {"key_padding_mask": PADDED},
    "causal": {"attn_mask": CAUSAL, "is_causal": True, "need_weights": False},
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_multi_head_layer_gives_the_same_output_and_weights(name):
    layer = nn.MultiheadAttention(DIM, HEADS, batch_first=True).train(name != "padded")
    expected = layer(X, X, X, **LAYERS[name])
    with replaced_attention() as seen:
        output, weights = layer(X, X, X, **LAYERS[name])
    assert (seen.calls, seen.left) == (1, [])
    torch.testing.assert_close((output, weights), expected, rtol=1e-5, atol=1e-5)
    assert (weights is None) == (expected[1] is None)


def test_weights_after_dropout_are_left_to_pytorch_and_that_is_said():
    layer = nn.MultiheadAttention(DIM, HEADS, dropout=0.5, batch_first=True)
    with replaced_attention() as seen:
        layer(X, X, X)
    assert seen.calls == 0
    assert seen.left == ["the weights of a multi-head attention are wanted after dropout"]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("training", [True, False])
def test_an_encoder_is_seen_on_its_fast_path_too(training):
    layer = nn.TransformerEncoderLayer(DIM, HEADS, 16, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 3).train(training)
    with torch.no_grad():
        expected = encoder(X, src_key_padding_mask=PADDED)
        with replaced_attention(want="entropy") as seen:
            output = encoder(X, src_key_padding_mask=PADDED)
    assert seen.calls == 3
    assert [detail.entropy.shape for detail in seen.details] == [(BATCH, HEADS, LENGTH)] * 3
    torch.testing.assert_close(output[~PADDED], expected[~PADDED], rtol=1e-5, atol=1e-5)


def test_patterns_can_be_exchanged_layer_by_layer():
    layer = nn.TransformerEncoderLayer(DIM, HEADS, 16, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2).eval()
    chosen = {0: "sliding_window(2)", 1: None}
    with replaced_attention(lambda call: chosen[call.number], want="weights") as seen:
        encoder(X)
    first, second = (detail.weights for detail in seen.details)
    assert torch.equal(first > 0, p.SlidingWindow(2).dense(LENGTH, LENGTH).expand_as(first))
    assert bool((second > 0).all())


def test_everything_is_as_before_after_the_block_even_after_an_error():
    before = F.scaled_dot_product_attention
    fast = torch.backends.mha.get_fastpath_enabled()
    layer = nn.MultiheadAttention(DIM, HEADS, batch_first=True)
    with pytest.raises(rg.RegardError, match="attn_mask"), replaced_attention():
        F.scaled_dot_product_attention(*qkv(), attn_mask=CAUSAL, is_causal=True)
    with pytest.raises(KeyError), replaced_attention(lambda call: {}[call.number]):
        layer(X, X, X)
    assert F.scaled_dot_product_attention is before
    assert torch.backends.mha.get_fastpath_enabled() == fast


def test_other_threads_are_answered_by_pytorch():
    layer = nn.MultiheadAttention(DIM, HEADS, batch_first=True)
    inside = threading.Event()
    outside = threading.Event()
    outputs = []

    def call_beside() -> None:
        inside.wait(10)
        outputs.append(F.scaled_dot_product_attention(*qkv()))
        outside.set()

    def pattern(call: ReplacedCall) -> None:
        inside.set()  # while this thread is inside of the layer, whose function the name stands for
        assert outside.wait(10)

    thread = threading.Thread(target=call_beside)
    thread.start()
    with replaced_attention(pattern) as seen:
        layer(X, X, X)
    thread.join()
    assert (seen.calls, len(outputs)) == (1, 1)


def test_an_unknown_pattern_is_refused_before_the_block():
    with pytest.raises(rg.ArgumentError, match="causl"), replaced_attention("causl"):
        raise AssertionError


def test_a_model_of_diffusers_whose_last_processor_cannot_be_attached_stays_as_it_was():
    from regard.integrations.diffusers import attach

    class Processor:
        def __call__(self, attn, x):
            return x

    class Sealed:
        __slots__ = ()  # so its copies cannot get another class
        __call__ = Processor.__call__

    class ProcessorLayer(nn.Module):
        def __init__(self, processor):
            super().__init__()
            self.processor = processor

        def set_processor(self, processor):
            self.processor = processor

    processors = [Processor(), Sealed()]
    model = nn.Sequential(*map(ProcessorLayer, processors))
    with pytest.raises(TypeError):
        attach(model)
    assert [layer.processor for layer in model] == processors
