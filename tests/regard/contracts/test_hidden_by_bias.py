"""A key that a bias of -inf hides, alone or together with the pattern, changes no bit, even if it is NaN or Inf."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from asking import HERE, ask, computes, cut

import regard as rg
from regard import patterns as p
from regard.bias import Bias
from regard.core.call import Call
from regard.core.hidden import grid_of_call, prepare, without_masked
from regard.core.tensors import Stored
from regard.testing import make_qkv

FILLINGS = (math.nan, math.inf, -math.inf, 3e38)
SPOILT = ((math.nan, "k"), (math.nan, "v"), (math.inf, "v"), (-math.inf, "k"), (3e38, "v"))


class Near(Bias):
    """Masks the keys that are more than three positions away; heads from the third on also the keys after the query."""

    plan_key = None

    def by_distance(self, distances: torch.Tensor, heads: int) -> torch.Tensor:
        late = (distances > 0) & (torch.arange(heads)[:, None] > 1)
        return torch.where(late | (distances.abs() > 3), -math.inf, -0.1 * distances.abs())


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(11))


AT = torch.arange(11)
# with q_start=4: the pairs of key 8 that a causal pattern allows
LATE = (torch.arange(7)[:, None] >= 4) & (AT == 8)
CAUSAL = np.tri(7, 11, 4, dtype=bool)
SECOND = torch.tensor([False, True])[:, None, None]  # the second batch row
# options, the pairs that their pattern allows, and which keys are hidden: (batch or 1, kv_heads or 1, 11)
HIDDEN = {
    "bias by key": (
        {"bias": drawn(2, 1, 1, 11).masked_fill(AT >= 8, -math.inf)},
        np.True_,
        AT >= 8,
    ),
    "bias by pair": ({"bias": drawn(7, 11).masked_fill(AT >= 8, -math.inf)}, np.True_, AT >= 8),
    "bias by head": (
        {
            "bias": drawn(1, 6, 7, 11).masked_fill(
                (AT >= 8) & (torch.arange(6) > 1)[:, None, None], -math.inf
            )
        },
        np.True_,
        (AT >= 8) & (torch.arange(3) > 0)[:, None],
    ),
    "bias by batch row": (
        {"bias": torch.zeros(2, 1, 1, 1).masked_fill(SECOND[..., None], -math.inf)},
        np.True_,
        SECOND | (AT < 0),
    ),
    "bias by distance": ({"bias": Near(), "q_start": 6}, np.True_, AT < 3),
    "bias by distance, and pattern": (
        {"bias": Near(), "q_start": 6, "pattern": p.DilatedWindow(16, 4)},
        ((AT - torch.arange(6, 13)[:, None]) % 4 == 0).numpy(),
        AT < 6,
    ),
    "bias by pair, and pattern": (
        {"bias": drawn(7, 11).masked_fill(LATE, -math.inf), "q_start": 4, "pattern": "causal"},
        CAUSAL,
        AT == 8,
    ),
    "bias by row and head, and pattern": (
        {
            "bias": drawn(2, 6, 7, 11).masked_fill(LATE & SECOND[..., None], -math.inf),
            "q_start": 4,
            "pattern": "causal",
        },
        CAUSAL,
        (AT == 8) & SECOND,
    ),
}
OPTIONS = {
    "plain": {},
    "sink": {"sink": 0.3},
    "softcap": {"softcap": 2.0},
    "dropout": {"dropout": 0.3, "dropout_seed": 1},
}
STATISTICS = ("log_sum_exp", "entropy", "received", "distance", "weights", rg.top_keys(4))


def results(backend, options, tensors, learning=False, want=()) -> dict[str, torch.Tensor]:
    """Output, statistics and gradients by name."""
    leaves = {name: x.clone().requires_grad_(learning) for name, x in tensors.items()}
    # which has no gradient of a bias
    if learning and isinstance(options["bias"], torch.Tensor) and backend != "fused":
        leaves["bias"] = options["bias"].clone().requires_grad_()
    detail = ask(backend, **{**options, **leaves}, want=want)
    found = {"output": detail.output} | {
        one: getattr(detail, one) for one in want if isinstance(one, str)
    }
    if want:
        found |= {
            "top keys": detail.top_keys.indices,
            "weights of top keys": detail.top_keys.weights,
        }
    if learning:
        (
            detail.output.sum() + (detail.entropy.sum() + detail.distance.sum() if want else 0)
        ).backward()
        found |= {f"gradient of {name}": x.grad for name, x in leaves.items()}
    return {name: x.detach() for name, x in found.items()}


def spoilt_by(hidden, filling, where, dtype=torch.float32) -> dict[str, torch.Tensor]:
    """q, k and v with a filling in the hidden keys or values."""
    tensors = dict(zip("qkv", make_qkv(dtype=dtype), strict=True))
    for name in "kv":
        tensors[name][hidden.expand(2, 3, 11)] = filling if name in where else 0.0
    return tensors


@pytest.mark.parametrize("name", HIDDEN)
def test_a_key_hidden_by_a_bias_changes_no_bit_of_output_statistic_or_gradient(name, monkeypatch):
    cut(monkeypatch)
    options, _, hidden = HIDDEN[name]
    calls = [(False, ()), (False, STATISTICS), (True, ()), (True, STATISTICS)]
    computed = set()
    for backend in HERE:
        for option in OPTIONS:
            given = {**options, **OPTIONS[option]}
            for learning, want in calls if option == "plain" else calls[2:3]:
                if not computes(backend, *make_qkv(requires_grad=learning), want=want, **given):
                    continue
                computed.add((backend, learning))
                clean = results(backend, given, spoilt_by(hidden, 0.0, "kv"), learning, want)
                for filling, where in SPOILT if option == "plain" else SPOILT[:2]:
                    found = results(
                        backend, given, spoilt_by(hidden, filling, where), learning, want
                    )
                    different = [one for one in clean if not torch.equal(clean[one], found[one])]
                    assert not different, f"{filling} in {where}, {option}, {want} on {backend}"
    assert computed >= {
        (one, learning) for one in ("reference", "streamed") for learning in (False, True)
    }


def second_derivatives(options, q, k, v):
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    (first,) = torch.autograd.grad(
        (rg.attention(q, k, v, **options) ** 2).sum(), q, create_graph=True
    )
    return torch.autograd.grad((first * q.detach().cos()).sum(), [q, k, v])


def forward_mode(options, q, k, v):
    return torch.func.jvp(
        lambda *x: rg.attention(*x, **options), (q, k, v), (q.cos(), k * 0 + 1, v * 0 + 1)
    )


def functional(options, q, k, v):
    return torch.func.grad(
        lambda *x: rg.attention(*x, **options).square().sum(), argnums=(0, 1, 2)
    )(q, k, v)


GRAPHS = {}  # by the identity of the options


def compiled(options, q, k, v):
    if id(options) not in GRAPHS:
        call = lambda *x: rg.attention(*x, **options)  # noqa: E731
        GRAPHS[id(options)] = torch.compile(call, backend="aot_eager", fullgraph=True)
    graph = GRAPHS[id(options)]
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    return torch.autograd.grad((graph(q, k, v) ** 2).sum(), [q, k, v])


def additive(options, q, k, v):
    mechanism = rg.mechanisms.Softmax(rg.mechanisms.Additive(5, 5, 3))
    parameters = dict(mechanism.new_parameters(generator=torch.Generator().manual_seed(0)))
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    output = rg.attention(q, k, v, mechanism=mechanism, parameters=parameters, **options)
    return torch.autograd.grad((output**2).sum(), [q, k, v, *parameters.values()])


def stored(options, q, k, v):
    options = {**options, "want": STATISTICS[:5]}
    of_half = rg.attention_detail(q, *(Stored(x.bfloat16()) for x in (k, v)), **options)
    scales = (x.abs().amax(-1, keepdim=True) for x in (k, v))
    of_int8 = rg.attention_detail(
        q,
        *(
            Stored(torch.ones_like(x, dtype=torch.int8), s)
            for x, s in zip((k, v), scales, strict=True)
        ),
        **options,
    )
    return [
        getattr(one, name) for one in (of_half, of_int8) for name in ("output", *STATISTICS[:5])
    ]


WAYS = (second_derivatives, forward_mode, functional, compiled, additive, stored)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_what_a_bias_hides_stays_hidden_in(way):
    for name in ("bias by key", "bias by distance", "bias by pair, and pattern"):
        options, _, hidden = HIDDEN[name]
        clean = way(options, *spoilt_by(hidden, 0.0, "kv").values())
        for filling in FILLINGS:
            found = way(options, *spoilt_by(hidden, filling, "kv").values())
            assert all(map(torch.equal, clean, found)), f"{filling}, {name}"


PATTERNS = {
    "causal": ({"pattern": "causal", "q_start": 4}, CAUSAL),
    "explicit": (
        {"pattern": p.Explicit((torch.arange(77) % 3 > 0).view(7, 11))},
        np.arange(77).reshape(7, 11) % 3 > 0,
    ),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_a_bias_of_nan_or_inf_at_a_masked_pair_changes_no_bit(name, monkeypatch):
    cut(monkeypatch)
    given, allowed = PATTERNS[name]
    tensors = dict(zip("qkv", make_qkv(), strict=True))
    bias = drawn(7, 11)
    for backend in HERE:
        for learning in (False, True):
            for want in ((), STATISTICS):
                options = {**given, "bias": bias, "sink": 0.3}
                if not computes(backend, *make_qkv(requires_grad=learning), want=want, **options):
                    continue
                clean = results(backend, options, tensors, learning, want)
                for filling in FILLINGS:
                    options["bias"] = bias.where(torch.from_numpy(allowed), filling)
                    found = results(backend, options, tensors, learning, want)
                    different = [one for one in clean if not torch.equal(clean[one], found[one])]
                    assert not different, f"{filling}, {want} on {backend}"


def test_a_bias_of_nan_reaches_only_the_queries_that_may_look_there():
    bias = drawn(1, 11)
    # for every query; with a causal pattern the first four may not look at key 8
    bias[0, 8] = math.nan
    options = {"pattern": "causal", "q_start": 4}
    for backend in HERE:
        if computes(backend, *make_qkv(), bias=bias, **options):
            clean = ask(backend, *make_qkv(), bias=bias.nan_to_num(), **options).output
            found = ask(backend, *make_qkv(), bias=bias, **options).output
            assert found[:, :, 4:].isnan().all()
            torch.testing.assert_close(found[:, :, :4], clean[:, :, :4])


@pytest.mark.parametrize("name", HIDDEN)
def test_where_no_number_can_be_read_keys_that_a_bias_hides_are_zeroed(name, monkeypatch):
    options, _, hidden = HIDDEN[name]
    hidden = AT < 3 if name == "bias by distance, and pattern" else hidden  # without the pattern
    for start in ({}, {"q_start": torch.full((2,), options.get("q_start", 4))}):
        call = Call(*make_qkv(), **{**options, **start})
        problem = call.problem()
        operands = prepare(
            problem,
            grid_of_call(problem, problem.reachable_keys, call.q_start, call.q.device),
            call,
        )
        monkeypatch.setattr("regard.core.hidden._can_be_read", lambda x: False)
        found = without_masked(problem, operands)
        for before, after in ((operands.k, found.k), (operands.v, found.v)):
            assert torch.equal(after, before.masked_fill(hidden.expand(2, 3, 11)[..., None], 0))


def test_a_call_with_a_bias_inside_vmap_of_a_derivative_reads_no_number():
    q, k, v = make_qkv(dtype=torch.float64)
    bias = torch.zeros(11, dtype=torch.float64).index_fill(0, torch.tensor([2]), -math.inf)
    spoilt = k.index_fill(2, torch.tensor([2]), math.nan)

    def slope(keys: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: torch.func.jvp(
            lambda one: rg.attention(one, keys, v, bias=bias), (x,), (x,)
        )[1]

    found = torch.func.vmap(slope(spoilt))(torch.stack([q, 2 * q]))
    torch.testing.assert_close(found, torch.stack([slope(k)(q), slope(k)(2 * q)]))
