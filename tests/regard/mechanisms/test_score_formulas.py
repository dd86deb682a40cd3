"""Scores are the formulas of their papers, streamed as in the reference, with every option, statistic and gradient."""

from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from score_calls import BATCH, HEADS, HIDDEN, K_LEN, KEY_DIM, Q_LEN, SCORES, V_DIM, make_call
from score_oracle import Options, attend

import regard as rg
from regard import mechanisms as m
from regard import patterns as p
from regard.backends.native.library import load
from regard.backends.scores import blocking, formulas
from regard.testing import make_qkv

EXACT = {"rtol": 1e-10, "atol": 1e-10}
SPAN = p.KeySpan(torch.tensor([2, 0]), torch.tensor([9, 6]))
PATTERNS = (p.Full(), p.Causal(), p.CausalWindow(4), SPAN)
OPTIONS = {
    "plain": {},
    "scale": {"scale": -0.7},
    "softcap": {"softcap": 1.3},
    "dropout": {"dropout": 0.3, "dropout_seed": 5},
    "start by row": {"q_start": torch.tensor([6, -2]), "pattern": "causal"},
    "everything": {
        "scale": 0.8,
        "softcap": 2.0,
        "dropout": 0.25,
        "dropout_seed": 9,
        "pattern": p.Causal() & SPAN,
        "bias": torch.randn(
            6, Q_LEN, K_LEN, generator=torch.Generator().manual_seed(2), dtype=torch.float64
        ),
    },
}
every = pytest.mark.parametrize("name", SCORES)


@pytest.mark.each_value(pairs=[("name", "backend")])
@every
@pytest.mark.parametrize("backend", ["reference", "streamed"])
@pytest.mark.parametrize("shared", [False, True])
def test_it_is_the_formula_of_its_paper(name, backend, shared):
    bias = np.linspace(-1, 1, 6 * K_LEN).reshape(6, 1, K_LEN)
    options = {"scale": 0.9, "softcap": 2.5}
    for pattern, heads in product(PATTERNS, HEADS):
        call = make_call(name, heads, shared=shared)
        allowed = pattern.dense(Q_LEN, K_LEN).expand(BATCH, 6, Q_LEN, K_LEN).numpy()
        of_formula = Options(**options, bias=bias, window=call.window)
        expected = attend(call.formula, *call.arrays, allowed, of_formula)
        of_call = {**options, "pattern": pattern, "bias": torch.from_numpy(bias)}
        detail = call.ask(backend, ("log_sum_exp", "weights"), **of_call)
        for result in ("output", "log_sum_exp", "weights"):
            expected_numbers = torch.from_numpy(getattr(expected, result))
            torch.testing.assert_close(getattr(detail, result), expected_numbers, **EXACT)


STATISTICS = (
    "log_sum_exp",
    "entropy",
    "received",
    "distance",
    rg.top_keys(3),
    rg.weights_of([1, 4], [5, 2]),
)


def numbers_of(detail, want) -> list[torch.Tensor]:
    """The output and the statistics that were wanted."""
    if not want:
        return [detail.output]
    return [
        detail.output,
        detail.log_sum_exp,
        detail.entropy,
        detail.received,
        detail.distance,
        detail.top_keys.weights,
        detail.chosen_weights,
    ]


@every
@pytest.mark.parametrize("option", OPTIONS)
def test_streaming_equals_the_formula_in_values_statistics_and_gradients(name, option, monkeypatch):
    turn = [*SCORES].index(name) + [*OPTIONS].index(option)  # other sizes for each case
    monkeypatch.setattr(blocking, "PAIRS", (16, 1 << 17)[turn % 2])
    monkeypatch.setattr(formulas, "SLAB", (90, 1 << 17, 1)[turn % 3])
    monkeypatch.setattr(blocking, "ROWS", 6 if turn % 2 == 0 else 256)
    monkeypatch.setattr(blocking, "ALIGNED", 4)
    want = STATISTICS if turn % 2 else ()
    options = {"pattern": SPAN, **OPTIONS[option]}
    learned_bias = []
    if "bias" in options:
        options["bias"] = options["bias"].clone().requires_grad_()
        learned_bias = [options["bias"]]
    generator = torch.Generator().manual_seed(turn)
    slopes = torch.randn(BATCH, 6, Q_LEN, V_DIM, generator=generator, dtype=torch.float64)

    results = {}
    for backend in ("reference", "streamed"):
        call = make_call(name, HEADS[turn % 3], learns=True, shared=turn % 3 == 0)
        output, *statistics = numbers_of(call.ask(backend, want, **options), want)
        numbers = [output * slopes, *statistics]
        loss = 0.0
        for n, x in enumerate(numbers):
            loss = loss + (x.nan_to_num(neginf=0.0) * (1 + n)).square().sum()
        learned = [*call.tensors, *learned_bias]
        grads = torch.autograd.grad(loss, learned, allow_unused=True, materialize_grads=True)
        results[backend] = (*numbers, *grads)
    torch.testing.assert_close(results["streamed"], results["reference"], **EXACT)


@every
def test_new_parameters_fit_and_are_the_same_for_a_seed(name):
    call = make_call(name, dtype=torch.float32)
    mechanism = m.Softmax(call.score)
    parameters = mechanism.new_parameters(6, 3, torch.Generator().manual_seed(0))
    same_seed = mechanism.new_parameters(6, 3, torch.Generator().manual_seed(0))
    another_seed = mechanism.new_parameters(6, 3, torch.Generator().manual_seed(1))
    for part, numbers in parameters.items():
        assert torch.equal(numbers, same_seed[part])
        assert not torch.equal(numbers, another_seed[part])
    call.parameters = dict(parameters)
    assert call.ask().output.isfinite().all()


def test_sizes_that_were_not_declared_are_refused_with_their_numbers():
    q = torch.randn(1, 1, 2, 5)
    k = torch.randn(1, 1, 4, 3)
    for score, found in (
        (m.General(4, 3), r"5 numbers and keys 3.* queries of 4 with keys of 3"),
        (m.Additive(5, 4, 7), "queries of 5 with keys of 4"),
        (m.Concat(5, 3, 7, projected_keys=True), "queries of 5 with keys of 7"),
        (m.LocalPredictive(m.General(5, 2), 3), "queries of 5 with keys of 2"),
    ):
        with pytest.raises(rg.ShapeError, match=found):
            rg.attention(q, k, k, mechanism=m.Softmax(score))
    with pytest.raises(rg.ShapeError, match=r"5 numbers.* queries of 6"):
        rg.attention(q, q, q, mechanism=m.Softmax(m.LocalPredictive(m.Dot(), 3, query_dim=6)))
    with pytest.raises(rg.ShapeError, match="head_dim"):
        rg.attention(q, k, k, mechanism=m.Softmax(m.Dot()))


def test_backends_of_dot_products_refuse_other_scores_in_words():
    for name in ("additive", "local dot"):
        call = make_call(name)
        for backend in ("fused", "tiled", "decode"):
            with pytest.raises(rg.UnsupportedError, match="it computes dot products, not"):
                call.ask(backend, pattern="causal_window(2)")


def test_only_keys_that_have_to_be_are_projected_again():
    k = torch.randn(1, 1, 4, KEY_DIM)
    parameters = {"key_weight": torch.randn(1, HIDDEN, KEY_DIM)}
    assert m.Dot().project_keys(k, {}) is k
    assert m.General(5, KEY_DIM).project_keys(k, {}) is k
    additive = m.Additive(5, KEY_DIM, HIDDEN)
    sizes = rg.mechanisms.base.Sizes(BATCH, 6, 3, K_LEN)
    assert additive.project_keys(k, parameters).shape == (1, 1, 4, HIDDEN)
    assert "key_weight" not in additive.with_projected_keys().parameter_shapes(sizes)


# A score of one's own: computed by every backend as it is declared, or refused


@dataclass(frozen=True)
class Cosine(m.Score, enrol=False):
    """The cosine of query and key, times `scale`."""

    projects = True

    def project(self, q, k, parameters):
        return F.normalize(q, dim=-1), F.normalize(k, dim=-1), {}

    def lowered(self):
        return m.ScaledDot()


@pytest.mark.parametrize("backend", ["auto", "reference", "fused", "streamed"])
def test_a_projected_score_is_the_formula_on_every_backend(backend):
    q, k, v = make_qkv(q_len=12, k_len=12)
    options = {"pattern": "causal_window(5)", "scale": 8.0}
    output = rg.attention(q, k, v, mechanism=m.Softmax(Cosine()), backend=backend, **options)
    unit_q = F.normalize(q, dim=-1)
    unit_k = F.normalize(k, dim=-1)
    expected = rg.attention(unit_q, unit_k, v, backend="reference", **options)
    assert torch.allclose(output, expected, atol=1e-5)


def test_a_score_without_a_formula_is_refused():
    class WithoutFormula(m.Score, enrol=False):
        pass

    with pytest.raises(
        rg.ArgumentError,
        match=r"no backend knows the formula of WithoutFormula; define lowered\(\)",
    ):
        m.Softmax(WithoutFormula())


def test_a_projection_that_would_never_be_called_is_refused():
    class Silent(Cosine, enrol=False):
        projects = False

    with pytest.raises(rg.ArgumentError, match=r"Silent defines project, .*`projects = True`"):
        m.Softmax(Silent())


@pytest.mark.parametrize("backend", ["auto", "native", "reference"])
def test_a_projection_to_another_size_declares_it_or_is_refused(backend):
    @dataclass(frozen=True)
    class NegativeDistance(m.Score, enrol=False):
        """-|q - k|² / 2 up to what is the same for every key: one more number in each vector."""

        projects = True

        def project(self, q, k, parameters):
            ones = torch.ones_like(q[..., :1])
            lengths = k.square().sum(-1, keepdim=True)
            return torch.cat([q, ones], -1), torch.cat([k, -lengths / 2], -1), {}

        def lowered(self):
            return m.ScaledDot()

    class DeclaredDistance(NegativeDistance, enrol=False):
        def projected_dim(self, head_dim):
            return head_dim + 1

    class Narrow(NegativeDistance, enrol=False):
        def project(self, q, k, parameters):
            return q[..., :4], k[..., :4], {}

    if backend == "native" and isinstance(load(), str):
        pytest.skip("no native library")
    q, k, v = (x.double() for x in make_qkv(q_len=12, k_len=12))
    call = {"pattern": "causal", "scale": 0.7, "backend": backend}
    for wrong in (NegativeDistance, Narrow):
        with pytest.raises(rg.ShapeError, match=r"project returned .* define projected_dim"):
            rg.attention(q, k, v, mechanism=m.Softmax(wrong()), **call)
    groups = q.shape[1] // k.shape[1]
    scores = -0.35 * torch.cdist(q, k.repeat_interleave(groups, 1)).square()
    hidden = ~torch.ones(12, 12, dtype=torch.bool).tril()
    expected = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v.repeat_interleave(groups, 1)
    found = rg.attention(q, k, v, mechanism=m.Softmax(DeclaredDistance()), **call)
    assert torch.allclose(found, expected, atol=1e-12)
