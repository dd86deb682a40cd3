"""Wrong calls raise one family of errors, whose messages have the request, the numbers and the way out."""

import math
import warnings

import pytest
import torch

import regard as rg
from regard import patterns as p
from regard.backends import BACKENDS

Q = torch.zeros(2, 6, 7, 5)
K = torch.zeros(2, 3, 11, 5)
V = torch.zeros(2, 3, 11, 13)


def prototype(make, *given):
    """A tensor of a prototype kind, for which torch prints a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make(*given)


def call(q=Q, k=K, v=V, **options):
    return lambda: rg.attention(q, k, v, **options)


# what was done wrong: the call, the class, and words that the sentence must hold
WRONG = {
    "rank": (
        call(q=Q[0]),
        rg.ShapeError,
        [
            "q has 3 axes (6, 7, 5)",
            "batch, heads, q_len, head_dim",
            "for one batch row give q[None], for one head q[:, None]",
        ],
    ),
    "two axes": (
        call(q=Q[0, 0]),
        rg.ShapeError,
        ["q has 2 axes (7, 5)", "and one head give q[None, None]"],
    ),
    "head_dim": (
        call(k=K[..., :4]),
        rg.ShapeError,
        ["'head_dim' is 5 in q", "but 4 in k (2, 3, 11, 4)"],
    ),
    "k_len": (call(v=V[:, :, :9]), rg.ShapeError, ["'k_len' is 11 in k", "9 in v"]),
    "batch": (call(k=K[:1], v=V[:1]), rg.ShapeError, ["'batch' is 2 in q", "1 in k"]),
    "heads": (call(q=Q[:, :5]), rg.ShapeError, ["heads is 5", "kv_heads is 3", "multiple"]),
    "kv_heads of v": (call(v=V[:, :1]), rg.ShapeError, ["'kv_heads' is 3 in k", "1 in v"]),
    "integers": (call(Q.long(), K.long(), V.long()), rg.ShapeError, ["int64", "float32"]),
    "complex": (call(Q + 0j, K + 0j, V + 0j), rg.ShapeError, ["complex64"]),
    "eight bits": (
        call(*(x.to(torch.float8_e4m3fn) for x in (Q, K, V))),
        rg.ShapeError,
        ["float8_e4m3fn", "bfloat16"],
    ),
    "dtypes": (
        call(k=K.double()),
        rg.ShapeError,
        ["q has dtype torch.float32", "k torch.float64", "convert"],
    ),
    "device": (call(k=K.to("meta")), rg.ShapeError, ["q is on cpu", "k on meta"]),
    **{
        f"sparse {name}": (
            call(**{name: x.to_sparse()}),
            rg.ShapeError,
            [f"{name} has layout", f"{name}.to_dense()"],
        )
        for name, x in {
            "q": Q,
            "k": K,
            "v": V,
            "bias": torch.zeros(7, 11),
            "sink": torch.zeros(6),
        }.items()
    },
    "strided and nested": (
        call(v=prototype(torch.nested.nested_tensor, [V[0]])),
        rg.ShapeError,
        ["v is a nested tensor of layout torch.strided", "jagged"],
    ),
    "quantised": (
        call(k=prototype(torch.quantize_per_tensor, K, 1.0, 0, torch.quint8)),
        rg.ShapeError,
        ["k is quantised"],
    ),
    "no tensor": (call(q=[1, 2]), rg.ShapeError, ["q is a list"]),
    "integer mask": (
        lambda: p.Explicit(torch.ones(7, 11).int()),
        rg.ArgumentError,
        ["int32", "mask.bool()", "True"],
    ),
    "float mask": (lambda: p.Explicit(torch.ones(7, 11)), rg.ArgumentError, ["float32", "bias="]),
    "mask as pattern": (
        call(pattern=torch.ones(7, 11).bool()),
        rg.ArgumentError,
        ["a Tensor", "Explicit(mask)"],
    ),
    "mask rank": (
        lambda: p.Explicit(torch.ones(11).bool()),
        rg.ShapeError,
        ["(11,)", "(q_len, k_len)"],
    ),
    "mask size": (
        call(pattern=p.Explicit(torch.ones(7, 10).bool())),
        rg.ShapeError,
        ["(7, 10)", "(7, 11)"],
    ),
    "mask heads": (
        call(pattern=p.Explicit(torch.ones(1, 3, 7, 11).bool())),
        rg.ShapeError,
        ["'heads'", "3", "6"],
    ),
    "negated mask size": (
        call(pattern=~p.Explicit(torch.ones(7, 10).bool()) & p.Causal()),
        rg.ShapeError,
        ["(7, 10)", "(7, 11)"],
    ),
    "boolean bias": (
        call(bias=torch.ones(7, 11).bool()),
        rg.ShapeError,
        ["torch.bool", "floating-point", "pattern=Explicit(mask), True = may look"],
    ),
    "padding as bias": (
        call(bias=torch.ones(2, 11).bool()),
        rg.ShapeError,
        ["pattern=KeySpan(start, stop)"],
    ),
    "integer bias": (
        call(bias=torch.ones(7, 11).int()),
        rg.ShapeError,
        ["torch.int32", "floating-point"],
    ),
    "bias shape": (
        call(bias=torch.zeros(2, 7, 11)),
        rg.ShapeError,
        ["(2, 7, 11)", "(2, 6, 7, 11)"],
    ),
    "bias kind": (call(bias=0.5), rg.ArgumentError, ["bias is a float"]),
    "scale": (call(scale=math.nan), rg.ArgumentError, ["scale is nan", "finite"]),
    "scale inf": (call(scale=math.inf), rg.ArgumentError, ["scale is inf"]),
    "scale word": (call(scale="big"), rg.ArgumentError, ["scale is 'big'"]),
    "softcap": (call(softcap=0), rg.ArgumentError, ["softcap is 0", "above 0"]),
    "dropout": (call(dropout=1.5), rg.ArgumentError, ["dropout is 1.5", "0 to 1"]),
    "dropout below": (call(dropout=-0.1), rg.ArgumentError, ["dropout is -0.1"]),
    "dropout nan": (call(dropout=math.nan), rg.ArgumentError, ["dropout is nan"]),
    "seed": (
        call(dropout=0.1, dropout_seed=0.5),
        rg.ArgumentError,
        ["dropout_seed is 0.5", "whole number"],
    ),
    "q_start": (call(q_start=1.5), rg.ArgumentError, ["q_start is 1.5", "int64"]),
    "q_start far": (call(q_start=2**70), rg.ArgumentError, ["q_start is 1180591620717411303424"]),
    "q_start shape": (
        call(q_start=torch.tensor([1, 2, 3])),
        rg.ShapeError,
        ["(3,)", "(batch,) = (2,)"],
    ),
    "q_start dtype": (call(q_start=torch.tensor([1, 2]).int()), rg.ShapeError, ["int32", "int64"]),
    "backend": (
        call(backend="flash"),
        rg.ArgumentError,
        ["'flash'", f"auto, {', '.join(BACKENDS)}"],
    ),
    "fused softcap": (
        call(backend="fused", softcap=1.0),
        rg.UnsupportedError,
        ["'fused'", "softcap", "'auto'"],
    ),
    "strict": (
        call(strict=True, softcap=1.0, backend="reference"),
        rg.UnsupportedError,
        ["strict=True", "dense"],
    ),
    "mechanism": (call(mechanism=3), rg.ArgumentError, ["mechanism is 3", "regard.mechanisms"]),
    "window": (
        lambda: p.SlidingWindow(0),
        rg.ArgumentError,
        ["SlidingWindow's size is 0", "1 or more"],
    ),
    "window kind": (lambda: p.CausalWindow(2.0), rg.ArgumentError, ["CausalWindow's size is 2.0"]),
    "span": (lambda: p.KeySpan(0, 1.5), rg.ArgumentError, ["stop is 1.5"]),
    "span tensor": (
        lambda: p.KeySpan(torch.zeros(2)),
        rg.ArgumentError,
        ["float32", "integers (batch,)"],
    ),
    "span rows": (
        call(pattern=p.KeySpan(torch.zeros(3).long())),
        rg.ShapeError,
        ["3 numbers", "2 rows"],
    ),
    "rule": (lambda: p.Where("causal"), rg.ArgumentError, ["'causal'"]),
    "rule's answer": (
        call(pattern=p.Where(lambda i, j: i - j)),
        rg.ArgumentError,
        ["int64", "boolean"],
    ),
    "want": (
        lambda: rg.attention_detail(Q, K, V, want="wieghts"),
        rg.ArgumentError,
        ["'wieghts'", "top_keys"],
    ),
    "top keys": (lambda: rg.top_keys(0), rg.ArgumentError, ["top_keys' count is 0", "1 or more"]),
    "two top keys": (
        lambda: rg.attention_detail(Q, K, V, want=[rg.top_keys(1), rg.top_keys(2)]),
        rg.ArgumentError,
        ["twice"],
    ),
    "nothing to merge": (lambda: rg.merge_attention([]), rg.ShapeError, ["no piece"]),
    "pieces": (
        lambda: rg.merge_attention([(Q, Q[..., 0]), (Q[:1], Q[:1, ..., 0])]),
        rg.ShapeError,
        ["(1, 6, 7, 5)", "(2, 6, 7, 5)"],
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_says_what_was_found_and_what_is_needed(name):
    wrong, kind, words = WRONG[name]
    with pytest.raises(rg.RegardError) as raised:
        wrong()
    assert type(raised.value) is kind
    sentence = str(raised.value)
    missing = [word for word in words if word not in sentence]
    assert not missing, f"{sentence!r} does not say {missing}"
    assert "\n" not in sentence
    assert len(sentence) < 400


def test_the_family_is_caught_as_pythons_own_kinds_too():
    assert issubclass(rg.ShapeError, ValueError)
    assert issubclass(rg.ArgumentError, ValueError)
    assert issubclass(rg.UnsupportedError, NotImplementedError)
    assert issubclass(rg.MissingPackageError, ImportError)
    kinds = (rg.ShapeError, rg.ArgumentError, rg.UnsupportedError, rg.DataError, rg.CheckpointError)
    assert all(issubclass(kind, rg.RegardError) for kind in kinds)


def test_a_refused_call_draws_no_random_number():
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    with pytest.raises(rg.RegardError):
        rg.attention(Q, K, V, dropout=0.5, bias=torch.zeros(3, 3))
    assert torch.equal(torch.rand(1), expected)


def test_strict_passes_what_is_computed_once_and_refuses_waste_with_the_numbers():
    x = torch.zeros(1, 1, 1024, 8)
    assert rg.attention(x, x, x, pattern="causal", strict=True).shape == x.shape
    assert rg.attention(x, x, x, pattern="causal_window(512)", strict=True).shape == x.shape
    with pytest.raises(rg.UnsupportedError, match=r"pairs where 4090 are kept, more than twice"):
        rg.attention(x, x, x, pattern="causal_window(4)", strict=True)
    with pytest.raises(rg.UnsupportedError, match="unknown without evaluating them"):
        rg.attention(x, x, x, pattern=p.Where(lambda i, j: i >= j), strict=True)


def test_where_axes_are_too_many_none_is_proposed():
    with pytest.raises(rg.ShapeError, match=r"q has 5 axes \(1, 2, 6, 7, 5\); it needs 4: [^;]*$"):
        rg.attention(Q[None], K, V)
