"""Recurrent mechanisms against their papers' steps: heads, decays of any size, long texts, and what is refused."""

import pytest
import torch

import regard as rg
from regard import mechanisms as m
from regard import patterns as p
from regard.backends import recurrence
from regard.layers.caches import RecurrentState
from regard.mechanisms.base import Sizes

MEMBERS = [
    m.Retention(),
    m.Lightning(0.5),
    m.SSD(),
    m.GatedLinear(),
    m.DeltaRule(),
    m.GatedDelta(),
    m.KimiDelta(),
]
every = pytest.mark.parametrize("mechanism", MEMBERS, ids=str)


def given(mechanism, length=70, heads=(2, 2, 4), dims=(5, 3), dtype=torch.float64, decays=0.3):
    """q, k, v of so many heads, and the parameters that the mechanism takes; keys have length 1."""
    q, k, v = (
        torch.randn(2, n, length, dim, dtype=dtype)
        for n, dim in zip(heads, (dims[0], *dims), strict=True)
    )
    sizes = Sizes(2, max(heads), heads[2], length, dims[0])
    parameters = {
        name: torch.rand(shape, dtype=dtype)
        for name, shape in mechanism.parameter_shapes(sizes).items()
    }
    if "log_decay" in parameters:
        parameters["log_decay"] *= -decays
    return q, torch.nn.functional.normalize(k, dim=-1), v, parameters


def test_constant_decays_are_those_of_the_papers():
    v = torch.zeros(1, 4, 0, 1, dtype=torch.float64)
    retained = m.Retention().constant_log_decay(v)[0, :, 0].exp()
    torch.testing.assert_close(
        retained, torch.tensor([31 / 32, 63 / 64, 127 / 128, 255 / 256], dtype=torch.float64)
    )
    slopes = m.Lightning(0.5).constant_log_decay(v)[0, :, 0]
    torch.testing.assert_close(
        slopes, -torch.tensor([1 / 8, 1 / 32, 1 / 128, 1 / 512], dtype=torch.float64)
    )


EXTREMES = {
    "no decay": lambda x: x * 0,
    "strong": lambda x: x * 0 - 20,
    "one of -1e6": lambda x: x.index_fill(2, torch.tensor([100]), -1e6),
    "everything is forgotten at two keys": lambda x: x.index_fill(
        2, torch.tensor([50, 300]), -torch.inf
    ),
    "forgotten at every key": lambda x: x * 0 - torch.inf if x.dim() == 3 else x - torch.inf,
}


@pytest.mark.parametrize(
    "mechanism", [m.SSD(), m.GatedLinear(), m.GatedDelta(), m.KimiDelta()], ids=str
)
@pytest.mark.parametrize("extreme", EXTREMES)
def test_decays_of_any_size_are_as_exact_as_others_with_gradients(mechanism, extreme):
    q, k, v, parameters = given(mechanism, 530, (1, 1, 1), decays=0.1)
    parameters["log_decay"] = EXTREMES[extreme](parameters["log_decay"]).nan_to_num(
        0, neginf=-torch.inf
    )
    parameters["log_decay"] = parameters["log_decay"].masked_fill(
        parameters["log_decay"].isnan(), -torch.inf
    )
    found = {}
    for dtype, backend in ((torch.float64, "reference"), (torch.float32, "linear")):
        leaves = [x.to(dtype).requires_grad_() for x in (q, k, v, *parameters.values())]
        options = {
            "mechanism": mechanism,
            "parameters": dict(zip(parameters, leaves[3:], strict=True)),
        }
        output = rg.attention(*leaves[:3], pattern="causal", backend=backend, **options)
        found[dtype] = output, *torch.autograd.grad(output.square().sum(), leaves)
    for one, exact in zip(found[torch.float32], found[torch.float64], strict=True):
        assert (one - exact).abs().max() <= 3e-5 * exact.abs().max()


@pytest.mark.parametrize("mechanism", [m.GatedDelta(), m.KimiDelta()], ids=str)
def test_a_hundred_thousand_keys_leave_the_memory_right(mechanism):
    q, k, v, parameters = given(mechanism, 100_000, (1, 1, 1), dtype=torch.float32, decays=2e-5)
    half = RecurrentState(mechanism, 2, 1, 5, 3)
    exact = RecurrentState(mechanism, 2, 1, 5, 3, dtype=torch.float64)
    one = half.attend(q, k, v, parameters=parameters)
    other = exact.attend(
        q.double(),
        k.double(),
        v.double(),
        parameters={n: x.double() for n, x in parameters.items()},
    )
    assert one.isfinite().all()
    assert (one - other).abs().max() <= 1e-5 * other.abs().max()


def test_memory_and_pieces_follow_blocks_and_chunks(monkeypatch):
    monkeypatch.setattr(recurrence, "BLOCK", 64)
    for mechanism in MEMBERS:
        q, k, v, parameters = given(mechanism, 201)
        leaves = [x.requires_grad_() for x in (q, k, v, *parameters.values())]
        answers = []
        for backend in ("reference", "linear"):
            found = rg.attention(
                q,
                k,
                v,
                pattern="causal",
                mechanism=mechanism,
                parameters=parameters,
                backend=backend,
            )
            answers.append([found, *torch.autograd.grad(found.square().sum(), leaves)])
        for one, exact in zip(*answers, strict=True):
            assert (one - exact).abs().max() <= 1e-12 * exact.abs().max(), mechanism


def test_a_nan_reaches_only_later_rows_of_its_document_and_value_head():
    ids = torch.tensor([0] * 30 + [1] * 30 + [0] * 10)
    q, k, v, parameters = given(m.GatedDelta())
    options = {
        "pattern": p.Causal() & p.SameDocument(ids),
        "mechanism": m.GatedDelta(),
        "parameters": parameters,
    }
    clean = rg.attention(q, k, v, **options)
    v[0, 3, 10] = torch.nan
    found = rg.attention(q, k, v, **options)
    bad = torch.zeros(2, 4, 70, dtype=torch.bool)
    bad[0, 3, 10:30] = bad[0, 3, 60:] = True
    assert torch.equal(found.isnan().all(-1), bad)
    assert torch.equal(found[~bad], clean[~bad])


def test_what_a_recurrent_mechanism_refuses():
    q, k, v, parameters = given(m.GatedDelta())
    call = {"mechanism": m.GatedDelta(), "parameters": parameters}
    with pytest.raises(rg.UnsupportedError, match="full is not causal; add & causal"):
        rg.attention(q, k, v, **call)
    with pytest.raises(rg.UnsupportedError, match="does not compute entropy"):
        rg.attention_detail(q, k, v, pattern="causal", want="entropy", **call)
    with pytest.raises(rg.ShapeError, match="q has 4, k 2 and v 4 heads"):
        rg.attention(torch.cat((q, q), 1), k, v, pattern="causal", **call)
    with pytest.raises(rg.ShapeError, match="axis 'kv_heads' is 2 in k"):
        rg.attention(q, k, v)
    with pytest.raises(rg.ShapeError, match=r"parameter 'log_decay'.*\(2, 4, 70\)"):
        rg.attention(
            q, k, v, pattern="causal", **{**call, "parameters": {**parameters, "log_decay": q}}
        )
