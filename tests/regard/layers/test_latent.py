"""Latent attention: both forms equal the formula of the paper, with every kind of cache, option and derivative."""

import math
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import regard as rg
from regard.bias import ALiBi
from regard.errors import ArgumentError
from regard.layers import LatentAttention, record_attention
from regard.layers.caches import new_cache
from regard.patterns import KeySpan, PerHead, parse
from regard.positions import Rotary

EXACT = {"rtol": 0, "atol": 1e-12}
DIM = 13
HEADS = 3
LATENT = 7
ROPE = 4
KEY = 5
VALUE = 11
FORMS = ("absorbed", "expanded")


def make_layer(**options: Any) -> LatentAttention:
    torch.manual_seed(3)
    sizes = {
        "latent_dim": LATENT,
        "rope_dim": ROPE,
        "head_dim": KEY,
        "value_dim": VALUE,
        "pattern": "causal",
    }
    layer = LatentAttention(DIM, HEADS, **{**sizes, **options}).double()
    with torch.no_grad():
        for weight in layer.parameters():
            weight.add_(torch.randn_like(weight) / 10)  # sinks and norms begin with equal numbers
    return layer


def vectors(length: int = 9, batch: int = 2, seed: int = 5) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, length, DIM, dtype=torch.float64, generator=generator)


# DeepSeek-V2, equations 37 to 47, without attention or Rotary of regard


def normed(vectors: torch.Tensor, norm: torch.nn.RMSNorm | None) -> torch.Tensor:
    if norm is None:
        return vectors
    mean_square = vectors.square().mean(-1, keepdim=True)
    return vectors / (mean_square + 1e-6).sqrt() * norm.weight


def rotated(vectors: torch.Tensor, place: int) -> torch.Tensor:
    """Vectors (..., ROPE), whose number c and number c + ROPE / 2 are the parts of a complex number."""
    numbers = torch.complex(vectors[..., : ROPE // 2], vectors[..., ROPE // 2 :])
    angles = [place * 10_000 ** (-2 * c / ROPE) for c in range(ROPE // 2)]
    turned = numbers * torch.exp(1j * torch.tensor(angles, dtype=torch.float64))
    return torch.cat([turned.real, turned.imag], -1)


def linear(vectors: torch.Tensor, module: torch.nn.Linear) -> torch.Tensor:
    product = vectors @ module.weight.T
    return product if module.bias is None else product + module.bias


def weights_of_row(layer: LatentAttention, logits: torch.Tensor, head: int) -> torch.Tensor:
    """The weights of the keys (batch, keys), with the sink of the head if there is one."""
    if layer.sinks is None:
        return logits.softmax(-1)
    sink = layer.sinks[head].expand(len(logits), 1)
    return torch.cat([logits, sink], -1).softmax(-1)[:, :-1]


def by_pairs(layer: LatentAttention, x: torch.Tensor) -> torch.Tensor:
    """The causal layer, pair by pair."""
    q_source = x
    if layer.to_query_latent is not None:
        q_source = normed(linear(x, layer.to_query_latent), layer.query_norm)
    q = linear(q_source, layer.to_q).unflatten(-1, (HEADS, -1))
    latents = linear(x, layer.to_latent)
    c = normed(latents[..., :LATENT], layer.latent_norm)
    k = linear(c, layer.to_k).unflatten(-1, (HEADS, KEY))
    v = linear(c, layer.to_v).unflatten(-1, (HEADS, VALUE))
    rotated_keys = [rotated(latents[:, j, LATENT:], j) for j in range(x.shape[1])]

    rows = []
    for i in range(x.shape[1]):
        rotated_query = rotated(q[:, i, :, KEY:], i)
        outputs = []
        for h in range(HEADS):
            scores = []
            for j in range(i + 1):
                plain = (q[:, i, h, :KEY] * k[:, j, h]).sum(-1)
                scores.append(plain + (rotated_query[:, h] * rotated_keys[j]).sum(-1))
            logits = torch.stack(scores, -1) / math.sqrt(KEY + ROPE)
            weights = weights_of_row(layer, logits, h)
            outputs.append((weights[..., None] * v[:, : i + 1, h]).sum(1))
        rows.append(torch.cat(outputs, -1))
    return linear(torch.stack(rows, 1), layer.to_output)


@pytest.mark.parametrize(
    "options",
    [{}, {"query_latent_dim": 8, "sinks": True}, {"projection_bias": True, "latent_norms": False}],
    ids=["plain", "latent queries and sinks", "biases without norms"],
)
def test_both_forms_equal_the_formula_with_gradients(options):
    layer = make_layer(**options)
    x = vectors()
    weights = list(layer.parameters())
    expected = by_pairs(layer, x)
    expected_grads = torch.autograd.grad(expected.sin().sum(), weights)
    for form in FORMS:
        output = layer(x, form=form)
        grads = torch.autograd.grad(output.sin().sum(), weights)
        torch.testing.assert_close(output, expected, **EXACT, msg=form)
        torch.testing.assert_close(grads, expected_grads, **EXACT)


@dataclass
class LatentCase:
    """Options of a layer, and of its call."""

    layer: dict[str, Any] = field(default_factory=dict)
    call: dict[str, Any] = field(default_factory=dict)


CASES = {
    "padding": LatentCase(call={"pattern": KeySpan(torch.tensor([2, 0]), torch.tensor([9, 5]))}),
    "a window and a softcap": LatentCase(
        {"pattern": "causal_window(4)", "softcap": 2.0, "scale": 0.7}, {"q_start": 0}
    ),
    "a pattern for each head": LatentCase(
        {"pattern": PerHead([parse("causal"), parse("prefix(3)"), parse("strided(2)")])}
    ),
    "a bias and sinks": LatentCase({"sinks": True}, {"bias": ALiBi()}),
    "other positions": LatentCase(
        {"positions": Rotary(pairs="neighbours")}, {"q_start": torch.tensor([0, 3])}
    ),
    "no positions": LatentCase(
        {"rope_dim": 0, "pattern": None}, {"bias": torch.arange(81.0).view(9, 9).double() / 40}
    ),
    "no rotation": LatentCase({"positions": None, "query_latent_dim": 6}),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_forms_are_equal_in_values_gradients_and_second_derivatives(case):
    layer = make_layer(**case.layer)
    x = vectors().requires_grad_()
    learned = (x, *layer.parameters())
    results = []
    for form in FORMS:
        output = layer(x, form=form, **case.call)
        grads = torch.autograd.grad(output.sin().sum(), learned, create_graph=True)
        squares = sum(grad.square().sum() for grad in grads)
        second = torch.autograd.grad(squares, learned)
        results.append([output, *grads, *second])
    for absorbed, expanded in zip(*results, strict=True):
        torch.testing.assert_close(absorbed, expanded, rtol=0, atol=1e-10)


def test_dropout_drops_the_same_weights_in_both_forms():
    layer = make_layer(dropout=0.5)
    x = vectors()
    outputs = []
    for form in FORMS:
        torch.manual_seed(8)
        outputs.append(layer(x, form=form))
    torch.testing.assert_close(*outputs, **EXACT)
    assert not torch.allclose(outputs[0], layer.eval()(x))
    assert torch.equal(layer(x), layer(x))


def test_recorded_statistics_are_those_of_the_heads():
    layer = make_layer()
    x = vectors()
    results = []
    for form in FORMS:
        with record_attention(layer, want=("weights", "entropy", "received")) as recording:
            layer(x, form=form)
        (detail,) = recording[""]
        results.append((detail.weights, detail.entropy, detail.received))
    assert results[0][0].shape == (2, HEADS, 9, 9)
    torch.testing.assert_close(*results, **EXACT)


CACHES = [
    ("dynamic", {}),
    ("static", {"capacity": 12}),
    ("paged", {}),
    ("ring", {}),
    ("dynamic", {"dtype": "bfloat16"}),
    ("static", {"dtype": "float16", "capacity": 9}),
    ("ring", {"dtype": "int8"}),
    ("paged", {"dtype": "int8"}),
]
BOUNDS = {"bfloat16": 0.05, "float16": 0.01, "int8": 0.05}


@pytest.mark.parametrize("form", ["auto", *FORMS])
@pytest.mark.parametrize(("kind", "options"), CACHES)
def test_continuing_equals_computing_at_once(kind, options, form):
    layer = make_layer(pattern="causal_window(4)")
    x = vectors()
    bound = BOUNDS.get(options.get("dtype"), 1e-12)
    with torch.no_grad():
        cache = layer.new_cache(2, kind, **options)
        whole = layer(x)
        parts = [layer(part, cache=cache, form=form) for part in x.split([4, 1, 2, 2], 1)]
        continued = torch.cat(parts, 1)
        torch.testing.assert_close(continued, whole, rtol=0, atol=bound)
        assert cache.length == 9
        if bound > 1e-3:  # a cache that rounds shows it
            assert not torch.equal(continued, whole)


def test_a_cache_is_trained_through_and_cropped_and_reordered():
    layer = make_layer()
    x = vectors()
    cache = layer.new_cache(2)
    weights = list(layer.parameters())
    continued = torch.cat([layer(part, cache=cache) for part in x.split([5, 4], 1)], 1)
    grads = torch.autograd.grad(continued.sin().sum(), weights, retain_graph=True)
    expected = torch.autograd.grad(layer(x).sin().sum(), weights)
    torch.testing.assert_close(grads, expected, **EXACT)
    with torch.no_grad():
        cache.crop(3)
        cache.reorder(torch.tensor([1, 1, 0]))
        texts = torch.cat([x[[1, 1, 0], :3], vectors(4, 3, seed=9)], 1)
        torch.testing.assert_close(layer(texts[:, 3:], cache=cache), layer(texts)[:, 3:], **EXACT)


@pytest.mark.parametrize(
    ("dtype", "bytes_of_number", "bytes_of_scale"),
    [("float64", 8, 0), ("float32", 4, 0), ("bfloat16", 2, 0), ("int8", 1, 4)],
)
@pytest.mark.parametrize("heads", [2, 16])
def test_a_cache_holds_one_latent_and_one_rotated_key_for_each_token(
    dtype, bytes_of_number, bytes_of_scale, heads
):
    layer = LatentAttention(32, heads, latent_dim=24, rope_dim=8, head_dim=16)
    bytes_of_token = (24 + 8) * bytes_of_number + bytes_of_scale
    assert layer.new_cache(3, "static", 50, dtype).nbytes == 3 * 50 * bytes_of_token


def test_values_of_a_joined_cache_lie_in_its_keys():
    cache = new_cache("dynamic", 1, 1, 5, v_dim=3, joined=True)
    keys, values = cache.append(torch.randn(1, 1, 7, 5))
    assert values.data_ptr() == keys.data_ptr()
    assert torch.equal(values, keys[..., :3])


def test_auto_is_the_cheaper_form_and_the_plan_says_why():
    layer = LatentAttention(1024, 16, pattern="causal")
    step = layer.plan(1, 1, 4096)
    prompt = layer.plan(1, 2048)
    assert (step.form, prompt.form) == ("absorbed", "expanded")
    # The step expands 4,096 latents of 512 numbers to 16 heads of 128 + 128, or projects one query and one output.
    expansion = 2 * 4096 * 16 * 512 * (128 + 128)
    assert step.expanded.flops == expansion + 2 * 16 * 4096 * (128 + 64 + 128)
    assert step.absorbed.flops == expansion / 4096 + 2 * 16 * 4096 * (512 + 64 + 512)
    assert str(step).splitlines()[0] == "1 query, 4,096 latents: absorbed, 63.7 times cheaper"
    windowed = LatentAttention(1024, 16, pattern="causal_window(100)").plan(1, 64, 4096)
    assert windowed.absorbed.pairs == 16 * 64 * 163  # keys that one of the queries may look at


def test_a_plan_of_no_texts_has_no_pairs_and_one_of_less_is_refused():
    layer = make_layer()
    nothing = layer.plan(batch=0, q_len=7)
    assert nothing.absorbed.pairs == nothing.expanded.pairs == 0
    with pytest.raises(ArgumentError, match="batch is -1"):
        layer.plan(batch=-1, q_len=7)


@pytest.mark.parametrize("length", [1, 6])
@torch.no_grad()
def test_what_the_plan_says_is_what_is_computed_bit_by_bit(length):
    layer = make_layer().eval()
    x = vectors(length)
    cache = layer.new_cache(2, "static", 40)
    layer(vectors(30), cache=cache)
    outputs = {}
    for form in ("auto", *FORMS):
        cache.crop(30)
        outputs[form] = layer(x, cache=cache, form=form)
    planned = layer.plan(2, length, 30 + length).form
    assert torch.equal(outputs["auto"], outputs[planned])


def test_it_is_compiled_exported_and_cast():
    layer = make_layer(query_latent_dim=8).float().eval()
    x = vectors().float()
    with torch.no_grad():
        whole = layer(x)
        torch._dynamo.reset()
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        cache = layer.new_cache(2, "static", 12)
        parts = [compiled(part, cache=cache) for part in x.split([8, 1], 1)]
        torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=1e-5)
        shapes = {"x": {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}}
        program = torch.export.export(layer, (x,), dynamic_shapes=shapes)
        torch.testing.assert_close(program.module()(x[:1, :5]), layer(x[:1, :5]), rtol=0, atol=1e-5)
        for form in FORMS:
            with torch.autocast("cpu", torch.bfloat16):
                cast = layer(x, form=form)
            assert cast.dtype == torch.bfloat16
            assert 0 < (cast - whole).abs().max() < 0.05


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"latent_dim": 0}, rg.ArgumentError, "latent_dim is 0; it needs a whole number"),
        ({"rope_dim": 3}, rg.ArgumentError, "cannot rotate 3 of 3"),
        ({"kv_lora_rank": 4}, TypeError, "no argument 'kv_lora_rank'; write latent_dim="),
        ({"mechanism": "linear_transformer"}, TypeError, "only softmax of dot products"),
    ],
)
def test_a_layer_that_cannot_be_is_refused(options, error, words):
    with pytest.raises(error, match=words):
        make_layer(**options)


BESIDE_KEYS = new_cache("dynamic", 2, 1, 11, v_dim=7)
NARROWER = new_cache("dynamic", 2, 1, 11, v_dim=6, joined=True)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"form": "both"}, rg.ArgumentError, "form"),
        ({"cache": 3}, rg.ArgumentError, "cache is 3; make one"),
        ({"cache": BESIDE_KEYS}, rg.ShapeError, "values of 7 numbers beside the keys"),
        ({"cache": NARROWER}, rg.ShapeError, "values of 6 numbers in the"),
        ({"context": vectors()}, TypeError, "context"),
    ],
)
def test_a_call_that_cannot_be_is_refused(options, error, words):
    with pytest.raises(error, match=words):
        make_layer()(vectors(), **options)


def test_caches_and_layers_of_another_kind_refuse_each_other():
    joined = new_cache("paged", 1, 1, 5, v_dim=3, joined=True)
    with pytest.raises(
        rg.ShapeError, match="append to a joined paged cache: values are in the keys"
    ):
        joined.append(torch.zeros(1, 1, 2, 5), torch.zeros(1, 1, 2, 3))
    with pytest.raises(rg.ShapeError, match="append to a static cache: give keys and values"):
        new_cache("static", 1, 1, 5, capacity=3).append(torch.zeros(1, 1, 2, 5))
    with pytest.raises(
        rg.ArgumentError, match="v_dim is 6, and in a joined cache at most head_dim, 5"
    ):
        new_cache("dynamic", 1, 1, 5, v_dim=6, joined=True)
    latent = make_layer().new_cache(2)
    with pytest.raises(rg.ShapeError, match="joined"):
        rg.MultiHeadAttention(DIM, 1).double()(vectors(), cache=latent)
    assert latent.length == 0
