"""Variants of the layer against their papers' formulas: norms, gates, values of the first layer, differences."""

import pytest
import torch
from layer_cases import DIM, EXACT, HEAD_DIM, HEADS, KV_HEADS, make_layer, split_heads, texts

import regard as rg
from regard.layers import Difference, MultiHeadAttention, ValueResidual

LENGTH = 9
VALUE_DIM = 5
ALL_BUT_DIFFERENCE = {
    "qk_norm": True,
    "output_gate": True,
    "value_residual": ValueResidual(),
    "value_dim": VALUE_DIM,
}


# Formulas


def normed(vectors: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """The RMS norm of vectors (..., size)."""
    mean_square = vectors.square().mean(-1, keepdim=True)
    return vectors / (mean_square + epsilon).sqrt() * weight


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    return 1 / (1 + (-x).exp())


def attend_by_query(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int = LENGTH
) -> torch.Tensor:
    """The mean of the values of the last `window` keys for one query at a time: (batch, length, heads, v_dim)."""
    batch, heads, length, head_dim = q.shape
    group = heads // k.shape[1]
    output = torch.zeros(batch, length, heads, v.shape[-1], dtype=q.dtype)
    for head in range(heads):
        for i in range(length):
            keys = slice(max(0, i + 1 - window), i + 1)
            products = q[:, head, i, None] * k[:, head // group, keys]
            weights = (products.sum(-1) / head_dim**0.5).softmax(-1)
            output[:, i, head] = (weights[..., None] * v[:, head // group, keys]).sum(1)
    return output


def formula_of_all_but_difference(
    layer: MultiHeadAttention, x: torch.Tensor, first_values: torch.Tensor, places: torch.Tensor
) -> torch.Tensor:
    q = normed(split_heads(layer.to_q(x), HEADS), layer.q_norm.weight, 1e-6)
    k = normed(split_heads(layer.to_k(x), KV_HEADS), layer.k_norm.weight, 1e-6)
    v = split_heads(layer.to_v(x), KV_HEADS)
    v = layer.value_mix[0] * v + layer.value_mix[1] * first_values

    rotate = layer.positions.rotate
    heads = attend_by_query(rotate(q, places), rotate(k, places), v)
    return layer.to_output(heads.flatten(2) * sigmoid(layer.to_output_gate(x)))


def formula_of_difference(
    layer: MultiHeadAttention, x: torch.Tensor, lambda_init: float, window: int
) -> torch.Tensor:
    """Ye et al. 2024, equations 1 to 3; the queries and keys of the first terms come first."""
    q = split_heads(layer.to_q(x), 2 * HEADS)
    k = split_heads(layer.to_k(x), 2 * KV_HEADS)
    v = split_heads(layer.to_v(x), KV_HEADS)
    if layer.q_norm is not None:
        q = normed(q, layer.q_norm.weight, 1e-6)
        k = normed(k, layer.k_norm.weight, 1e-6)
    places = torch.arange(x.shape[1])
    q = layer.positions.rotate(q, places)
    k = layer.positions.rotate(k, places)

    first = attend_by_query(q[:, :HEADS], k[:, :KV_HEADS], v, window)
    second = attend_by_query(q[:, HEADS:], k[:, KV_HEADS:], v, window)
    q_1, k_1, q_2, k_2 = layer.difference.vectors
    weight = (q_1 * k_1).sum().exp() - (q_2 * k_2).sum().exp() + lambda_init  # λ
    heads = normed(first - weight * second, layer.difference.norm.weight, 1e-5)
    joined = (heads * (1 - lambda_init)).flatten(2)
    if layer.to_output_gate is not None:
        joined = joined * sigmoid(layer.to_output_gate(x))
    return layer.to_output(joined)


# Norms of queries and keys, gates of the output, values of the first layer, positions by token


def test_norms_gates_first_values_and_positions_are_their_formulas():
    layer = make_layer(**ALL_BUT_DIFFERENCE)
    x = texts()
    with torch.no_grad():
        for parameter in (layer.q_norm.weight, layer.k_norm.weight, layer.value_mix):
            parameter.copy_(torch.rand_like(parameter) + 0.5)
    first_values = make_layer(value_dim=VALUE_DIM).values(x)
    places = torch.tensor([[0, 1, 1, 1, 7, 8, 9, 30, 31], [5, 6, 7, 8, 8, 8, 9, 10, 11]])

    output = layer(x, positions=places, first_values=first_values)
    expected = formula_of_all_but_difference(layer, x, first_values, places)
    torch.testing.assert_close(output, expected, **EXACT)

    names = [name for name, _ in layer.named_parameters()]
    weights = list(layer.parameters())
    grads = torch.autograd.grad(output.sin().sum(), weights)
    expected_grads = torch.autograd.grad(expected.sin().sum(), weights)
    for name, grad, expected_grad in zip(names, grads, expected_grads, strict=True):
        torch.testing.assert_close(grad, expected_grad, rtol=0, atol=1e-11, msg=name)

    cache = layer.new_cache(batch=2)
    steps = []
    for i in range(LENGTH):
        step = slice(i, i + 1)
        options = {"positions": places[:, step], "first_values": first_values[:, :, step]}
        steps.append(layer(x[:, step], **options, cache=cache))
    torch.testing.assert_close(torch.cat(steps, 1), output, **EXACT)


def test_a_layer_shows_the_variants_that_it_has_and_stores_no_weights_of_others():
    shown = "qk_norm=True, output_gate=True, value_residual=ValueResidual(first_share=0.5)"
    assert shown in repr(make_layer(**ALL_BUT_DIFFERENCE))
    assert "differential=Difference(lambda_init=0.4)" in repr(
        make_layer(differential=Difference(0.4))
    )
    parts = {name.split(".")[0] for name in make_layer().state_dict()}
    assert not {"q_norm", "k_norm", "to_output_gate", "value_mix", "difference"} & parts


def test_training_begins_with_the_share_of_first_values_that_is_asked_for():
    assert make_layer(value_residual=ValueResidual()).value_mix.tolist() == [0.5, 0.5]
    assert make_layer(value_residual=ValueResidual(0.25)).value_mix.tolist() == [0.75, 0.25]


def test_one_declaration_serves_several_layers_with_weights_of_their_own():
    difference = Difference(0.4)
    residual = ValueResidual()
    one = make_layer(differential=difference, value_residual=residual)
    other = make_layer(differential=difference, value_residual=residual)
    assert one.difference.vectors is not other.difference.vectors
    assert one.value_mix is not other.value_mix


def test_a_context_has_normed_keys_and_gated_outputs():
    layer = make_layer(
        **{**ALL_BUT_DIFFERENCE, "value_residual": None}, positions=None, pattern=None
    )
    x = texts()
    context = texts(2, 7)
    projected = layer.project_context(context)
    torch.testing.assert_close(layer(x, projected), layer(x, context), **EXACT)
    with torch.no_grad():
        plain = layer(x, context)
        layer.k_norm.weight.mul_(3)
        assert not torch.allclose(layer(x, context), plain)
        layer.to_output_gate.weight.zero_()
        layer.to_output_gate.bias.fill_(-100)
        closed = layer.to_output.bias.expand(2, LENGTH, DIM)
        torch.testing.assert_close(layer(x, context), closed, **EXACT)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda layer, x: layer(x), "needs first_values=layers"),
        (
            lambda layer, x: layer(x, first_values=layer.values(x)[:, :1]),
            r"\(2, 1, 9, 5\), and the values \(2, 2, 9, 5\)",
        ),
        (
            lambda layer, x: make_layer()(x, first_values=layer.values(x)),
            r"value_residual=ValueResidual\(\)",
        ),
        (
            lambda layer, x: make_layer(positions=None)(x, positions=torch.arange(LENGTH)),
            "this layer has none",
        ),
        (lambda layer, x: make_layer()(x, positions=torch.arange(8)), "do not fit heads"),
        (lambda layer, x: layer(x, x, q_start=0), "are for self-attention"),
        (
            lambda layer, x: make_layer()(x, x, q_start=0, positions=torch.arange(LENGTH)),
            "are for self-attention",
        ),
    ],
)
def test_options_that_a_layer_cannot_honour_are_refused(call, words):
    with pytest.raises(rg.RegardError, match=words):
        call(make_layer(**ALL_BUT_DIFFERENCE), texts())


# Differences


@pytest.mark.parametrize(
    "more",
    [{}, {"value_dim": 7, "qk_norm": True, "output_gate": True, "pattern": "causal_window(3)"}],
)
def test_a_differential_layer_is_its_formula(more):
    layer = make_layer(differential=Difference(lambda_init=0.4), **more)
    x = texts()
    assert layer.value_dim == more.get("value_dim", 2 * HEAD_DIM)

    output = layer(x)
    expected = formula_of_difference(layer, x, 0.4, window=3 if more else LENGTH)
    torch.testing.assert_close(output, expected, **EXACT)

    cache = layer.new_cache(batch=2, kind="ring" if more else "dynamic")
    steps = [layer(x[:, i : i + 1], cache=cache) for i in range(LENGTH)]
    torch.testing.assert_close(torch.cat(steps, 1), output, **EXACT)
    output.sum().backward()
    assert (layer.difference.vectors.grad != 0).all()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        *((lambda x=x: Difference(x), "lambda_init is") for x in (0, 1.5, True, "0.5")),
        (lambda: make_layer(differential=0.8), r"is 0.8; it needs Difference\(lambda_init=...\)"),
        (lambda: make_layer(value_residual=True), r"is True; it needs ValueResidual\(\)"),
        *((lambda x=x: ValueResidual(x), "first_share is") for x in (-0.1, 1.1, None)),
    ],
)
def test_parts_that_cannot_be_are_refused(make, words):
    with pytest.raises(rg.ArgumentError, match=words):
        make()
