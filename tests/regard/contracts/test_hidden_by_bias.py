"""A key that a bias of -inf hides, alone or together with the pattern, changes no bit, even if it is NaN or Inf."""

import itertools
import math
from functools import partial

import numpy as np
import pytest
import torch
from asking import HERE, among, ask, cut

import regard as rg
from regard import patterns as p
from regard.bias import Bias
from regard.core.call import Call
from regard.core.hidden import grid_of_call, prepare, without_masked
from regard.core.tensors import Stored
from regard.testing import make_qkv

FILLINGS = (math.nan, math.inf, -math.inf, 3e38)
SPOILT = ((math.nan, "k"), (math.nan, "v"), (math.inf, "v"), (-math.inf, "k"), (3e38, "v"))


class NearKeys(Bias):
    """Masks the keys that are more than three positions away; heads from the third on also the keys after the query."""

    plan_key = None

    def by_distance(self, distances: torch.Tensor, heads: int) -> torch.Tensor:
        late = (distances > 0) & (torch.arange(heads)[:, None] > 1)
        return torch.where(late | (distances.abs() > 3), -math.inf, -0.1 * distances.abs())


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(11))


def biased(*shape: int, masked: torch.Tensor) -> torch.Tensor:
    return drawn(*shape).masked_fill(masked, -math.inf)


KEYS = torch.arange(11)
LAST = KEYS >= 8
# With q_start=4: the pairs of key 8 that a causal pattern allows.
LATE = (torch.arange(7)[:, None] >= 4) & (KEYS == 8)
CAUSAL = {"q_start": 4, "pattern": "causal"}
ALLOWED_BY_CAUSAL = np.tri(7, 11, 4, dtype=bool)
SECOND = torch.tensor([False, True])[:, None, None]  # the second batch row
LATER_HEADS = (torch.arange(6) > 1)[:, None, None]
# Options, and which keys are hidden: (batch or 1, kv_heads or 1, 11).
HIDDEN = {
    "bias by key": ({"bias": biased(2, 1, 1, 11, masked=LAST)}, LAST),
    "bias by pair": ({"bias": biased(7, 11, masked=LAST)}, LAST),
    "bias by head": (
        {"bias": biased(1, 6, 7, 11, masked=LAST & LATER_HEADS)},
        LAST & (torch.arange(3) > 0)[:, None],
    ),
    "bias by batch row": (
        {"bias": torch.zeros(2, 1, 1, 1).masked_fill(SECOND[..., None], -math.inf)},
        SECOND | (KEYS < 0),
    ),
    "bias by distance": ({"bias": NearKeys(), "q_start": 6}, KEYS < 3),
    "bias by distance, and pattern": (
        {"bias": NearKeys(), "q_start": 6, "pattern": p.DilatedWindow(16, 4)},
        KEYS < 6,
    ),
    "bias by pair, and pattern": ({"bias": biased(7, 11, masked=LATE), **CAUSAL}, KEYS == 8),
    "bias by row and head, and pattern": (
        {"bias": biased(2, 6, 7, 11, masked=LATE & SECOND[..., None]), **CAUSAL},
        (KEYS == 8) & SECOND,
    ),
}
OPTIONS = {
    "plain": {},
    "sink": {"sink": 0.3},
    "softcap": {"softcap": 2.0},
    "dropout": {"dropout": 0.3, "dropout_seed": 1},
}
STATISTICS = ("log_sum_exp", "entropy", "received", "distance", "weights", rg.top_keys(4))
# An option, whether the tensors learn, and statistics.
CALLS = [
    *itertools.product(["plain"], [False, True], [(), STATISTICS]),
    *((option, True, ()) for option in OPTIONS if option != "plain"),
]


def results(backend, options, tensors, learning=False, want=()) -> dict[str, torch.Tensor]:
    """Output, statistics and gradients by name."""
    leaves = {name: x.clone().requires_grad_(learning) for name, x in tensors.items()}
    # fused has no gradient of a bias.
    if learning and isinstance(options["bias"], torch.Tensor) and backend != "fused":
        leaves["bias"] = options["bias"].clone().requires_grad_()
    detail = ask(backend, **{**options, **leaves}, want=want)
    by_name = {"output": detail.output}
    loss = detail.output.sum()
    if want:
        by_name |= {name: getattr(detail, name) for name in want if isinstance(name, str)}
        by_name["top keys"] = detail.top_keys.indices
        by_name["weights of top keys"] = detail.top_keys.weights
        loss = loss + detail.entropy.sum() + detail.distance.sum()
    if learning:
        loss.backward()
        by_name |= {f"gradient of {name}": x.grad for name, x in leaves.items()}
    return {name: x.detach() for name, x in by_name.items()}


def different(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> list[str]:
    return [name for name, x in before.items() if not torch.equal(x, after[name])]


def spoilt_by(hidden, filling, where, dtype=torch.float32) -> dict[str, torch.Tensor]:
    """q, k and v with a filling in the hidden keys or values."""
    tensors = dict(zip("qkv", make_qkv(dtype=dtype), strict=True))
    for name in "kv":
        tensors[name][hidden.expand(2, 3, 11)] = filling if name in where else 0.0
    return tensors


@pytest.mark.each_value(pairs=[("name", "learning")])
@pytest.mark.parametrize(("option", "learning", "want"), CALLS)
@pytest.mark.parametrize("name", HIDDEN)
def test_a_key_hidden_by_a_bias_changes_no_bit_of_output_statistic_or_gradient(
    name, option, learning, want, monkeypatch
):
    cut(monkeypatch)
    options, hidden = HIDDEN[name]
    given = {**options, **OPTIONS[option]}
    backends = among(HERE, *make_qkv(requires_grad=learning), want=want, **given)
    for backend in backends:
        clean = results(backend, given, spoilt_by(hidden, 0.0, "kv"), learning, want)
        for filling, where in SPOILT if option == "plain" else SPOILT[:2]:
            spoilt = spoilt_by(hidden, filling, where)
            wrong = different(clean, results(backend, given, spoilt, learning, want))
            assert not wrong, f"{filling} in {where} on {backend}"
    assert {"reference", "streamed"} <= {*backends}


def second_derivatives(options, q, k, v):
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    loss = (rg.attention(q, k, v, **options) ** 2).sum()
    (first,) = torch.autograd.grad(loss, q, create_graph=True)
    return torch.autograd.grad((first * q.detach().cos()).sum(), [q, k, v])


def forward_mode(options, q, k, v):
    attend = partial(rg.attention, **options)
    return torch.func.jvp(attend, (q, k, v), (q.cos(), k * 0 + 1, v * 0 + 1))


def functional(options, q, k, v):
    def loss(*qkv):
        return rg.attention(*qkv, **options).square().sum()

    return torch.func.grad(loss, argnums=(0, 1, 2))(q, k, v)


GRAPHS = {}  # by the identity of the options


@pytest.fixture(scope="module", autouse=True)
def fresh_compiler():
    """A function is compiled a few times at most, those of other tests included; these graphs serve all tests."""
    torch._dynamo.reset()


def compiled(options, q, k, v):
    def attend(*qkv):
        return rg.attention(*qkv, **options)

    if id(options) not in GRAPHS:
        GRAPHS[id(options)] = torch.compile(attend, backend="aot_eager", fullgraph=True)
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
    names = STATISTICS[:5]
    as_half = [Stored(x.bfloat16()) for x in (k, v)]
    as_int8 = []
    for x in (k, v):
        scale = x.abs().amax(-1, keepdim=True)
        as_int8.append(Stored(torch.ones_like(x, dtype=torch.int8), scale))
    results = []
    for entries in (as_half, as_int8):
        detail = rg.attention_detail(q, *entries, want=names, **options)
        results += [detail.output, *(getattr(detail, name) for name in names)]
    return results


WAYS = (second_derivatives, forward_mode, functional, compiled, additive, stored)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_what_a_bias_hides_stays_hidden_in(way):
    for name in ("bias by key", "bias by distance", "bias by pair, and pattern"):
        options, hidden = HIDDEN[name]
        clean = way(options, *spoilt_by(hidden, 0.0, "kv").values())
        for filling in FILLINGS:
            spoilt = way(options, *spoilt_by(hidden, filling, "kv").values())
            assert all(map(torch.equal, clean, spoilt)), f"{filling}, {name}"


PATTERNS = {
    "causal": (CAUSAL, ALLOWED_BY_CAUSAL),
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
    options = {**given, "bias": bias, "sink": 0.3}
    for learning, want in itertools.product((False, True), ((), STATISTICS)):
        for backend in among(HERE, *make_qkv(requires_grad=learning), want=want, **options):
            clean = results(backend, options, tensors, learning, want)
            for filling in FILLINGS:
                spoilt = {**options, "bias": bias.where(torch.from_numpy(allowed), filling)}
                wrong = different(clean, results(backend, spoilt, tensors, learning, want))
                assert not wrong, f"{filling}, {want} on {backend}"


def test_a_bias_of_nan_reaches_only_the_queries_that_may_look_there():
    bias = drawn(1, 11)
    bias[0, 8] = math.nan  # for every query; with this pattern the first four may not look at it
    qkv = make_qkv()
    for backend in among(HERE, *qkv, bias=bias, **CAUSAL):
        clean = ask(backend, *qkv, bias=bias.nan_to_num(), **CAUSAL).output
        output = ask(backend, *qkv, bias=bias, **CAUSAL).output
        assert output[:, :, 4:].isnan().all()
        torch.testing.assert_close(output[:, :, :4], clean[:, :, :4])


@pytest.mark.parametrize("name", HIDDEN)
def test_where_no_number_can_be_read_keys_that_a_bias_hides_are_zeroed(name, monkeypatch):
    options, hidden = HIDDEN[name]
    if name == "bias by distance, and pattern":  # the bias alone hides fewer
        hidden = KEYS < 3
    hidden = hidden.expand(2, 3, 11)[..., None]
    monkeypatch.setattr("regard.core.hidden._can_be_read", lambda x: False)
    for start in ({}, {"q_start": torch.full((2,), options.get("q_start", 4))}):
        call = Call(*make_qkv(), **{**options, **start})
        problem = call.problem()
        grid = grid_of_call(problem, problem.reachable_keys, call.q_start, call.q.device)
        operands = prepare(problem, grid, call)
        masked = without_masked(problem, operands)
        assert torch.equal(masked.k, operands.k.masked_fill(hidden, 0))
        assert torch.equal(masked.v, operands.v.masked_fill(hidden, 0))


def test_a_call_with_a_bias_inside_vmap_of_a_derivative_reads_no_number():
    q, k, v = make_qkv(dtype=torch.float64)
    bias = torch.zeros(11, dtype=torch.float64).index_fill(0, torch.tensor([2]), -math.inf)
    spoilt = k.index_fill(2, torch.tensor([2]), math.nan)

    def slope(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        def attend(x: torch.Tensor) -> torch.Tensor:
            return rg.attention(x, keys, v, bias=bias)

        return torch.func.jvp(attend, (queries,), (queries,))[1]

    slopes = torch.func.vmap(partial(slope, keys=spoilt))(torch.stack([q, 2 * q]))
    torch.testing.assert_close(slopes, torch.stack([slope(q, k), slope(2 * q, k)]))
