"""The rules that hold for every mechanism; its laws are in test_mechanism_laws.py, its formula in mechanisms/."""

import pytest
import torch
from asking import ask, computes
from mechanism_cells import LENGTH, MECHANISMS, make_call

import regard as rg
from regard import patterns as p
from regard.backends import BACKENDS
from regard.mechanisms.base import OPTIONS, STATISTICS, takes

EXACT = {"rtol": 1e-11, "atol": 1e-11}
NAMES = tuple(MECHANISMS)
every = pytest.mark.parametrize("name", NAMES)


def answer(call, **options) -> torch.Tensor:
    return rg.attention(*call.tensors, **call.options, **options)


def fast(call, **options) -> list[str]:
    """The backends beside the reference that offer to compute a call."""
    named = [name for name in BACKENDS if name != "reference"]
    return [name for name in named if computes(name, *call.tensors, **call.options, **options)]


@every
@pytest.mark.parametrize("kv_heads", [1, 3, 6])
def test_every_backend_equals_the_formula_with_gradients(name, kv_heads):
    """The keys have padding and holes if the mechanism supports them; one batch row sees no key."""
    call = make_call(name, requires_grad=True, kv_heads=kv_heads)
    hidden = p.KeySpan(torch.tensor([0, 3]), torch.tensor([9, 3]))
    hidden &= (
        p.KeyMask(torch.arange(LENGTH) % 3 > 0) if takes(call.mechanism, p.KeyMask) else p.Full()
    )
    pattern = hidden if takes(call.mechanism, p.KeySpan) else p.Full()
    pattern &= p.Causal() if call.always_causal else p.Full()
    answers = {}
    for backend in ("reference", *fast(call, pattern=pattern)):
        output = ask(backend, *call.tensors, **call.options, pattern=pattern).output
        sent = torch.autograd.grad(
            output.sin().sum(), call.learning, allow_unused=True, materialize_grads=True
        )
        answers[backend] = [output, *sent]
        torch.testing.assert_close(answers[backend], answers["reference"], **EXACT)
    assert len(answers) > 1, "only the reference computes it"
    assert not answers["reference"][0][1].any() or pattern == p.Full()


@every
def test_a_hidden_key_changes_no_bit_of_output_or_gradient_even_as_nan_on_any_backend(name):
    if not takes(MECHANISMS[name], p.KeySpan):
        return
    starts = torch.tensor([1, 3])
    stops = torch.tensor([9, 8])
    # (batch, keys)
    hidden = (torch.arange(LENGTH) < starts[:, None]) | (torch.arange(LENGTH) >= stops[:, None])
    clean = make_call(name, requires_grad=True)
    pattern = p.KeySpan(starts, stops) & (p.Causal() if clean.always_causal else p.Full())
    for backend in ("reference", *fast(clean, pattern=pattern)):
        found = []
        for spoilt in (0.5, torch.nan, torch.inf):
            call = make_call(name, requires_grad=True)
            with torch.no_grad():
                for x in (call.k, call.v):
                    x.masked_fill_(hidden[:, None, :, None], spoilt)
                for one in call.mechanism.computed & set(call.parameters or {}):
                    x = call.parameters[one]
                    x.masked_fill_(
                        hidden[:, None] if x.dim() == 3 else hidden[:, None, :, None], spoilt
                    )
            # of the queries: those that are keys themselves may be spoilt where they are hidden
            rows = slice(3, 8)
            output = ask(backend, *call.tensors, **call.options, pattern=pattern).output
            sent = torch.autograd.grad(output[:, :, rows].square().sum(), call.learning)
            sent = [x.nan_to_num() if x.shape == call.q.shape else x for x in sent]
            found.append((output[:, :, rows].detach(), *sent))
            assert all(x.isfinite().all() for x in found[-1])
        for other in found[1:]:
            assert all(torch.equal(one, two) for one, two in zip(found[0], other, strict=True)), (
                backend
            )


@every
@pytest.mark.parametrize(
    "sizes",
    [{"batch": 0}, {"q_len": 0}, {"k_len": 0}, {"v_dim": 0}, {"q_len": 0, "k_len": 0}],
    ids=str,
)
def test_sizes_of_zero_are_answered(name, sizes):
    if MECHANISMS[name].shares_keys and {"q_len", "k_len"} & set(sizes):
        sizes = {"q_len": 0, "k_len": 0}
    call = make_call(name, requires_grad=True, **sizes)
    output = answer(call, pattern="causal" if call.always_causal else None)
    assert output.shape == (*call.q.shape[:3], call.v.shape[3])
    assert not output.any() or "k_len" not in sizes
    output.sum().backward()


@every
def test_the_table_holds_what_it_does_not_list_is_refused(name):
    call = make_call(name)
    given = {"bias": torch.zeros(1), "softcap": 30.0, "scale": 0.5, "dropout": 0.1, "sink": 0.3}
    assert set(given) == set(OPTIONS)
    base = {"pattern": "causal"} if call.always_causal else {}
    for option, value in given.items():
        if option not in call.mechanism.options:
            with pytest.raises(rg.UnsupportedError, match=option):
                answer(call, **base, **{option: value})
        else:
            answer(call, **base, **{option: value})
    refused = (
        ()
        if call.mechanism.patterns is None
        else ("sliding_window(4)", "~key_span(1, 3)", "causal | prefix(2)")
    )
    for pattern in refused:
        with pytest.raises(rg.UnsupportedError, match="use softmax"):
            answer(call, pattern=pattern)
    wants = {"top_keys": rg.top_keys(2), "weights_of": rg.weights_of([1])}
    for statistic in STATISTICS:
        want = wants.get(statistic, statistic)
        if statistic not in call.mechanism.statistics:
            with pytest.raises(rg.UnsupportedError, match="does not compute"):
                rg.attention_detail(*call.tensors, **call.options, **base, want=want)
        else:
            rg.attention_detail(*call.tensors, **call.options, **base, want=want)


@every
def test_parameters_that_are_missing_too_many_or_misshapen_are_refused(name):
    call = make_call(name)
    base = {"pattern": "causal"} if call.always_causal else {}
    handed = call.parameters or {}

    def ask_with(parameters) -> None:
        rg.attention(*call.tensors, mechanism=call.mechanism, parameters=parameters, **base)

    with pytest.raises(rg.ArgumentError, match="parameters"):
        ask_with({**handed, "more": call.q})
    for one, x in handed.items():
        if one in call.mechanism.optional:
            continue
        with pytest.raises(rg.ArgumentError, match="parameters"):
            ask_with({other: y for other, y in handed.items() if other != one})
        with pytest.raises(rg.ShapeError, match=one):
            ask_with({**handed, one: x[..., :-1]})


@every
def test_equal_declarations_are_one_plan(name):
    call = make_call(name)
    again = make_call(name)
    assert call.mechanism == again.mechanism
    assert hash(call.mechanism) == hash(again.mechanism)
    base = {"pattern": "causal"} if call.always_causal else {}
    one = rg.plan_attention(*call.tensors, **call.options, **base)
    assert rg.plan_attention(*again.tensors, **again.options, **base) is one
    assert str(call.mechanism) in str(one)


@every
def test_second_calls_draw_nothing_from_the_global_generator(name):
    call = make_call(name)
    base = {"pattern": "causal"} if call.always_causal else {}
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = answer(call, **base)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, answer(call, **base))
