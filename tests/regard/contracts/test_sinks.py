"""A sink is one more logit in each softmax: its values and gradients on every backend, and what refuses it."""

import pytest
import torch
from asking import ask, computing

import regard as rg
from regard import mechanisms as m
from regard.testing import make_qkv

SIZES = {"batch": 2, "heads": 6, "kv_heads": 3, "q_len": 7, "k_len": 11}
SINK = torch.tensor([0.3, -1.2, 2.5, -torch.inf, 0.0, -0.4], dtype=torch.float64)
WANT = ("log_sum_exp", "entropy", "received", "distance", "sink", "weights")


def qkv(**sizes):
    return make_qkv(**(SIZES | sizes), dtype=torch.float64)


@pytest.mark.parametrize("learning", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_gradients_of_a_call_with_a_sink_are_rounded_once(dtype, learning):
    """Exact gradients rounded to the dtype are off by as much, in norm; rounding the parts too would add 40%."""
    sizes = {"heads": 3, "kv_heads": 3, "q_len": 199, "k_len": 211, "head_dim": 16, "v_dim": 16}
    qkv = make_qkv(**sizes, dtype=dtype)
    sink = SINK[:3].to(dtype)
    grad = torch.randn(qkv[0].shape, dtype=torch.float64).to(dtype)

    def gradients(backend, dtype):
        leaves = [x.to(dtype, copy=True).requires_grad_() for x in qkv]
        learned_sink = sink.to(dtype, copy=True).requires_grad_(learning)
        ask(backend, *leaves, sink=learned_sink).output.backward(grad.to(dtype))
        return [x.grad.double() for x in leaves]

    exact = gradients("reference", torch.float64)
    for backend in computing(*qkv, sink=sink):
        for gradient, expected in zip(gradients(backend, dtype), exact, strict=True):
            rounding = (expected.to(dtype).double() - expected).norm()
            assert (gradient - expected).norm() <= 1.2 * rounding, backend


def test_a_sink_as_heavy_as_all_keys_has_half_of_the_gradient():
    """At this tie the gradient of clamp changed with PyTorch 2.15."""
    q = torch.zeros(1, 6, 1, 5, dtype=torch.float64)
    k = torch.ones(1, 3, 1, 5, dtype=torch.float64)
    for backend in computing(q, k, k, sink=torch.zeros(6)):
        sink = torch.zeros(6, dtype=torch.float64, requires_grad=True)
        log_sum_exp = ask(backend, q, k, k, sink=sink, want="log_sum_exp").log_sum_exp
        (gradient,) = torch.autograd.grad(log_sum_exp.sum(), sink)
        torch.testing.assert_close(gradient, torch.full_like(sink, 0.5))


def test_a_sink_that_weighs_little_has_exact_derivatives():
    """No digit is lost: the gradient is its weight times what the other weights lose, that of the log-sum-exp its
    weight, and the second one its weight times the other weights."""
    q, k, v = qkv()
    for backend in computing(q, k, v, sink=SINK):
        for low in (-5.0, -25.0, -35.0):
            sink = torch.full((6,), low, dtype=torch.float64, requires_grad=True)
            detail = ask(backend, q, k, v, sink=sink, want=("log_sum_exp",))
            weight = (sink.detach()[:, None] - detail.log_sum_exp.detach()).exp()
            (gradient,) = torch.autograd.grad(detail.output.sum(), sink, retain_graph=True)
            expected = -(weight * detail.output.detach().sum(-1)).sum((0, 2))
            torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=0)
            (first,) = torch.autograd.grad(detail.log_sum_exp.sum(), sink, create_graph=True)
            (second,) = torch.autograd.grad(first.sum(), sink)
            expected = (weight * (1 - weight)).sum((0, 2))
            torch.testing.assert_close(second, expected, rtol=1e-12, atol=0)


def test_logits_of_minus_infinity_change_no_bit():
    q, k, v = make_qkv(**SIZES)
    none = torch.full((6,), -torch.inf)
    for backend in computing(q, k, v, pattern="causal"):
        with_sinks = ask(backend, q, k, v, pattern="causal", sink=none, want=WANT)
        without = ask(backend, q, k, v, pattern="causal", want=WANT)
        for name in ("output", *WANT):
            assert torch.equal(getattr(with_sinks, name), getattr(without, name)), (backend, name)


def test_merged_pieces_take_the_sink_once():
    q, k, v = qkv()
    sink = SINK.masked_fill(SINK.isinf(), 1)
    first = rg.attention_detail(q, k[:, :, :4], v[:, :, :4], sink=sink)
    rest = rg.attention_detail(q, k[:, :, 4:], v[:, :, 4:])
    pieces = [(detail.output, detail.log_sum_exp) for detail in (first, rest)]
    output, log_sum_exp = rg.merge_attention(pieces)
    whole = rg.attention_detail(q, k, v, sink=sink)
    torch.testing.assert_close(output, whole.output)
    torch.testing.assert_close(log_sum_exp, whole.log_sum_exp)


def test_documents_of_a_jagged_batch_share_the_logits_of_heads():
    lengths = (3, 5)
    sink = torch.linspace(-1, 1, 4)
    documents = [torch.randn(n, 4, 8) for n in lengths]
    nested = torch.nested.nested_tensor(documents, layout=torch.jagged).transpose(1, 2)
    output = rg.attention(nested, nested, nested, pattern="causal", sink=sink)
    for of_document, document in zip(output.unbind(), documents, strict=True):
        x = document.transpose(0, 1)[None]
        alone = rg.attention(x, x, x, pattern="causal", sink=sink)
        torch.testing.assert_close(of_document[None], alone)
    sentence = "a sink for each batch row is not computed for documents"
    with pytest.raises(rg.UnsupportedError, match=sentence):
        rg.attention(nested, nested, nested, sink=torch.zeros(2, 4))


def test_a_plan_takes_sinks_like_those_it_was_made_for():
    q, k, v = make_qkv(**SIZES)
    sink = torch.linspace(-1, 1, 6)
    plan = rg.plan_attention(q, k, v, sink=sink)
    assert "with sinks" in str(plan)
    assert torch.equal(plan.run(q, k, v, sink=2 * sink), rg.attention(q, k, v, sink=2 * sink))
    sentence = r"made with a tensor as sink; hand it to run\(sink=...\)"
    with pytest.raises(rg.ArgumentError, match=sentence):
        plan.run(q, k, v)
    with pytest.raises(rg.ArgumentError, match="made without a tensor as sink"):
        rg.plan_attention(q, k, v).run(q, k, v, sink=sink)
    with pytest.raises(rg.ArgumentError, match=r"sink \(1, 6\) and was given sink \(2, 6\)"):
        plan.run(q, k, v, sink=torch.zeros(2, 6))


@pytest.mark.parametrize(
    ("sink", "error", "words"),
    [
        (
            torch.zeros(5),
            rg.ShapeError,
            r"one logit for each query head: floating-point \(heads,\) = \(6,\)",
        ),
        (torch.zeros(3, 6), rg.ShapeError, r"\(batch, heads\) = \(2, 6\)"),
        (torch.zeros(2, 6, 7), rg.ShapeError, "one logit for each query head"),
        (torch.zeros(6, dtype=torch.int64), rg.ShapeError, "floating-point"),
        (torch.zeros(6, device="meta"), rg.ShapeError, "q is on cpu but sink on meta"),
        ("6", rg.ArgumentError, "sink is '6'"),
        (True, rg.ArgumentError, "sink is True"),
    ],
)
def test_other_sinks_are_refused_with_the_numbers(sink, error, words):
    q, k, v = make_qkv(**SIZES)
    with pytest.raises(error, match=words):
        rg.attention(q, k, v, sink=sink)


@pytest.mark.parametrize(
    "mechanism",
    [m.LinearTransformer(), m.Performer(8, seed=0), m.LSH(4, 4, 1, seed=0)],
    ids=lambda mechanism: type(mechanism).__name__,
)
def test_mechanisms_without_a_softmax_over_keys_refuse_sinks(mechanism):
    x = torch.randn(1, 6, 8, 4)
    with pytest.raises(rg.UnsupportedError, match="has no sink, since its paper defines none"):
        rg.attention(x, x, x, mechanism=mechanism, sink=torch.zeros(6))
    sentence = "has no sinks, since its weights are no softmax over the keys"
    with pytest.raises(rg.UnsupportedError, match=sentence):
        rg.MultiHeadAttention(dim=12, heads=6, mechanism=mechanism, sinks=True)


def test_every_softmax_score_takes_sinks():
    q, k, v = qkv()
    score = m.Softmax(m.Additive(5, 5, hidden=4))
    generator = torch.Generator().manual_seed(1)
    parameters = score.new_parameters(heads=6, kv_heads=3, generator=generator).double()
    options = {"mechanism": score, "parameters": parameters, "sink": SINK}
    with torch.no_grad():
        expected = ask("reference", q, k, v, want=WANT, **options)
        streamed = ask("streamed", q, k, v, want=WANT, **options)
    torch.testing.assert_close(streamed.output, expected.output)
    torch.testing.assert_close(streamed.received, expected.received)
