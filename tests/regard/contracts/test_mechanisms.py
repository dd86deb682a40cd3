"""The rules that hold for every mechanism; its laws are in test_mechanism_laws.py, its formula in mechanisms/."""

import pytest
import torch
from asking import among, ask
from mechanism_cells import LENGTH, MECHANISMS, make_call

import regard as rg
from regard import patterns as p
from regard.backends import BACKENDS
from regard.mechanisms.base import OPTIONS, STATISTICS, takes

EXACT = {"rtol": 1e-11, "atol": 1e-11}
NAMES = tuple(MECHANISMS)
every = pytest.mark.parametrize("name", NAMES)


def attend(call, **options) -> torch.Tensor:
    return rg.attention(*call.tensors, **call.options, **options)


def pattern_of(call) -> dict[str, str]:
    return {"pattern": "causal"} if call.always_causal else {}


def fast(call, **options) -> list[str]:
    """The backends beside the reference that offer to compute a call."""
    others = [name for name in BACKENDS if name != "reference"]
    return among(others, *call.tensors, **call.options, **options)


@every
@pytest.mark.parametrize("kv_heads", [1, 3, 6])
def test_every_backend_equals_the_formula_with_gradients(name, kv_heads):
    """The keys have padding and holes if the mechanism supports them; one batch row sees no key."""
    call = make_call(name, requires_grad=True, kv_heads=kv_heads)
    pattern = p.Full()
    if takes(call.mechanism, p.KeySpan):
        pattern &= p.KeySpan(torch.tensor([0, 3]), torch.tensor([9, 3]))
        if takes(call.mechanism, p.KeyMask):
            pattern &= p.KeyMask(torch.arange(LENGTH) % 3 > 0)
    if call.always_causal:
        pattern &= p.Causal()

    def results(backend: str) -> list[torch.Tensor]:
        output = ask(backend, *call.tensors, **call.options, pattern=pattern).output
        loss = output.sin().sum()
        return [output, *torch.autograd.grad(loss, call.learning, materialize_grads=True)]

    expected = results("reference")
    others = fast(call, pattern=pattern)
    assert others, "only the reference computes it"
    for backend in others:
        torch.testing.assert_close(results(backend), expected, **EXACT)
    assert not expected[0][1].any() or pattern == p.Full()


@every
def test_a_hidden_key_changes_no_bit_of_output_or_gradient_even_as_nan_on_any_backend(name):
    if not takes(MECHANISMS[name], p.KeySpan):
        return
    starts = torch.tensor([1, 3])
    stops = torch.tensor([9, 8])
    keys = torch.arange(LENGTH)
    hidden = (keys < starts[:, None]) | (keys >= stops[:, None])  # (batch, keys)
    pattern = p.KeySpan(starts, stops)
    if make_call(name).always_causal:
        pattern &= p.Causal()

    def results(backend: str, filling: float) -> list[torch.Tensor]:
        call = make_call(name, requires_grad=True)
        spoilt = [call.k, call.v]
        spoilt += [call.parameters[x] for x in call.mechanism.computed & set(call.parameters or {})]
        with torch.no_grad():
            for x in spoilt:
                by_key = hidden[:, None] if x.dim() == 3 else hidden[:, None, :, None]
                x.masked_fill_(by_key, filling)
        # Of the queries these: those that are keys themselves may be spoilt where they are hidden.
        rows = slice(3, 8)
        output = ask(backend, *call.tensors, **call.options, pattern=pattern).output[:, :, rows]
        gradients = torch.autograd.grad(output.square().sum(), call.learning)
        gradients = [x.nan_to_num() if x.shape == call.q.shape else x for x in gradients]
        return [output.detach(), *gradients]

    for backend in ("reference", *fast(make_call(name, requires_grad=True), pattern=pattern)):
        clean = results(backend, 0.5)
        assert all(x.isfinite().all() for x in clean)
        for filling in (torch.nan, torch.inf):
            assert all(map(torch.equal, results(backend, filling), clean)), (backend, filling)


@every
@pytest.mark.parametrize(
    "sizes",
    [{"batch": 0}, {"q_len": 0}, {"k_len": 0}, {"v_dim": 0}, {"q_len": 0, "k_len": 0}],
    ids=str,
)
def test_sizes_of_zero_are_computed(name, sizes):
    if MECHANISMS[name].shares_keys and {"q_len", "k_len"} & set(sizes):
        sizes = {"q_len": 0, "k_len": 0}
    call = make_call(name, requires_grad=True, **sizes)
    output = attend(call, **pattern_of(call))
    assert output.shape == (*call.q.shape[:3], call.v.shape[3])
    assert not output.any() or "k_len" not in sizes
    output.sum().backward()


@every
def test_the_table_holds_what_it_does_not_list_is_refused(name):
    call = make_call(name)
    pattern = pattern_of(call)
    values = {"bias": torch.zeros(1), "softcap": 30.0, "scale": 0.5, "dropout": 0.1, "sink": 0.3}
    assert set(values) == set(OPTIONS)
    for option, value in values.items():
        if option in call.mechanism.options:
            attend(call, **pattern, **{option: value})
        else:
            with pytest.raises(rg.UnsupportedError, match=option):
                attend(call, **pattern, **{option: value})
    if call.mechanism.patterns is not None:
        for text in ("sliding_window(4)", "~key_span(1, 3)", "causal | prefix(2)"):
            with pytest.raises(rg.UnsupportedError, match="use softmax"):
                attend(call, pattern=text)
    with_numbers = {"top_keys": rg.top_keys(2), "weights_of": rg.weights_of([1])}
    for statistic in STATISTICS:
        options = {**call.options, **pattern, "want": with_numbers.get(statistic, statistic)}
        if statistic in call.mechanism.statistics:
            rg.attention_detail(*call.tensors, **options)
        else:
            with pytest.raises(rg.UnsupportedError, match="does not compute"):
                rg.attention_detail(*call.tensors, **options)


@every
def test_parameters_that_are_missing_too_many_or_misshapen_are_refused(name):
    call = make_call(name)
    parameters = call.parameters or {}

    def ask_with(parameters) -> None:
        options = {"mechanism": call.mechanism, "parameters": parameters, **pattern_of(call)}
        rg.attention(*call.tensors, **options)

    with pytest.raises(rg.ArgumentError, match="parameters"):
        ask_with({**parameters, "more": call.q})
    for parameter, x in parameters.items():
        if parameter in call.mechanism.optional:
            continue
        others = {name: y for name, y in parameters.items() if name != parameter}
        with pytest.raises(rg.ArgumentError, match="parameters"):
            ask_with(others)
        with pytest.raises(rg.ShapeError, match=parameter):
            ask_with({**others, parameter: x[..., :-1]})


@every
def test_equal_declarations_are_one_plan(name):
    call = make_call(name)
    again = make_call(name)
    assert call.mechanism == again.mechanism
    assert hash(call.mechanism) == hash(again.mechanism)
    plan = rg.plan_attention(*call.tensors, **call.options, **pattern_of(call))
    assert rg.plan_attention(*again.tensors, **again.options, **pattern_of(call)) is plan
    assert str(call.mechanism) in str(plan)


@every
def test_second_calls_draw_nothing_from_the_global_generator(name):
    call = make_call(name)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = attend(call, **pattern_of(call))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, attend(call, **pattern_of(call)))
