"""Rotated and regrouped heads: the model stays the same, copies in other bases are found, the rest is refused."""

import itertools
from copy import deepcopy
from dataclasses import replace
from itertools import combinations, permutations

import pytest
import torch
from families import outputs, own_model

import regard_lab.conversion.own_models as own_models
from regard.errors import ArgumentError, RegardError, UnsupportedError
from regard.layers import MultiHeadAttention
from regard.positions import Rotary
from regard_lab.conversion import alignment, load_converted, with_kv_heads
from regard_lab.conversion.alignment import align, grouped
from regard_lab.conversion.heads import KeySpace, Projections, largest_difference
from regard_lab.conversion.own_models import moments_of
from regard_lab.models import LanguageModel, TextEncoder, TranslationTransformer

SPACES = {
    "no rotary positions": KeySpace(),
    "rotary": KeySpace(Rotary()),
    "partly rotary": KeySpace(Rotary(dims=4)),
    "rotary neighbours": KeySpace(Rotary(dims=4, pairs="neighbours")),
    "rotary with norms": KeySpace(Rotary(), normed=True),
    "partly rotary with norms": KeySpace(Rotary(dims=2), normed=True),
}
DIM = 20
SIZE = 6


def cosine(heads, groups, inputs):
    """The mean cosine of what two heads of a group put out for the inputs (n, dim + 1)."""
    outputs = torch.einsum("hsd,nd->hns", heads, inputs).flatten(1).unflatten(0, (groups, -1))
    pairs = [combinations(group, 2) for group in outputs]
    flat = itertools.chain.from_iterable(pairs)
    return torch.stack([torch.cosine_similarity(a, b, dim=0) for a, b in flat]).mean()


def new_layer(heads=8, kv_heads=8):
    torch.manual_seed(0)
    inputs = torch.randn(60, DIM + 1, dtype=torch.float64)
    inputs[:, -1] = 1
    layer = Projections(
        q=torch.randn(heads, SIZE, DIM + 1, dtype=torch.float64),
        k=torch.randn(kv_heads, SIZE, DIM + 1, dtype=torch.float64),
        v=torch.randn(kv_heads, SIZE, DIM + 1, dtype=torch.float64),
        o=torch.randn(DIM, heads, SIZE, dtype=torch.float64),
    )
    return layer, inputs


@pytest.mark.parametrize("kv_heads", [8, 4])
@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_outputs_stay_the_same_and_the_heads_of_a_group_come_closer(space, kv_heads):
    layer, inputs = new_layer(kv_heads=kv_heads)
    moment = inputs.T @ inputs / len(inputs)
    turned = align(layer, 2, moment, space).applied(layer)
    norms = torch.rand(2, SIZE).double().unbind() if space.normed else ()
    x = torch.randn(1, 9, DIM, dtype=torch.float64)
    assert (
        largest_difference(turned.outputs(x, space, norms), layer.outputs(x, space, norms)) < 1e-12
    )
    for before, after in ((layer.k, turned.k), (layer.v, turned.v)):
        assert cosine(after, 2, inputs) > cosine(before, 2, inputs) + 0.05


def test_a_rotation_that_mixes_rotary_pairs_would_be_noticed():
    layer, _ = new_layer()
    turned = align(layer, 2, None, KeySpace()).applied(layer)  # any orthogonal matrix
    x = torch.randn(1, 9, DIM, dtype=torch.float64)
    outputs = [attention.outputs(x, KeySpace(Rotary())) for attention in (turned, layer)]
    assert largest_difference(*outputs) > 0.01


def distance(heads, inputs, groups):
    """The mean square distance of the heads' outputs from the mean of their group."""
    outputs = torch.einsum("hdi,ni->hnd", heads, inputs).unflatten(0, (groups, -1))
    return float((outputs - outputs.mean(1, keepdim=True)).square().mean())


def test_two_heads_are_brought_as_close_as_a_search_over_angles_can():
    """One rotary pair has one angle: the closest of 10,000 angles is no closer."""
    torch.manual_seed(1)
    inputs = torch.randn(50, 4, dtype=torch.float64)
    k = torch.randn(2, 2, 4, dtype=torch.float64)
    layer = Projections(k, k, k, torch.randn(3, 2, 2, dtype=torch.float64))
    turned = align(layer, 1, inputs.T @ inputs, KeySpace(Rotary())).applied(layer)
    angles = torch.arange(10_000).double() / 10_000 * 2 * torch.pi
    turns = torch.stack([angles.cos(), -angles.sin(), angles.sin(), angles.cos()], -1).view(
        -1, 2, 2
    )
    searched = min(distance(torch.stack([k[0], turn @ k[1]]), inputs, 1) for turn in turns)
    assert distance(turned.k, inputs, 1) <= searched + 1e-9
    assert distance(turned.k, inputs, 1) < distance(k, inputs, 1)
    assert distance(turned.v, inputs, 1) <= searched + 1e-9  # rotations and reflections


def test_groups_are_the_best_of_all():
    torch.manual_seed(2)
    match = torch.rand(6, 6, dtype=torch.float64)
    match = match + match.T

    def total(groups):
        similarity = 0.0
        for group in groups:
            for first, second in itertools.combinations(sorted(group), 2):
                similarity += float(match[first, second])
        return similarity

    best = max(total([order[:3], order[3:]]) for order in permutations(range(6)))
    assert total(grouped(match, [[0, 1, 2], [3, 4, 5]])) == pytest.approx(best)


# Models of regard

KINDS = {
    "rotary": (LanguageModel, {"layers": 2}),
    "grouped": (LanguageModel, {"layers": 2, "heads": 8, "kv_heads": 4, "head_dim": 4}),
    "learned": (LanguageModel, {"biases": True, "norm": "layer", "positions": "learned"}),
    "alibi": (LanguageModel, {"positions": "alibi", "head_dim": 5}),
    "matrix": (
        LanguageModel,
        {"kv_heads": 4, "heads": 8, "head_dim": 4, "mechanism": "softmax(general(4, 4))"},
    ),
    "encoder": (TextEncoder, {"layers": 2}),
    "translator": (TranslationTransformer, {"positions": "rotary"}),
}


def new_model(kind, **settings):
    made, defaults = KINDS[kind]
    return own_model(made, **{**defaults, **settings})


def scrambled(model, groups):
    """Heads become copies of few; then each gets a basis of its own, and where it may, another place."""
    model = deepcopy(model)
    copies = None
    for step in ("copy", "scramble"):
        for name, layer in model.named_modules():
            if not isinstance(layer, MultiHeadAttention) or (
                name.startswith("encoder.") and hasattr(model, "decoder")
            ):
                continue
            with torch.no_grad():
                change(layer, groups, step, moves=getattr(model.config, "positions", "") != "alibi")
        copies = outputs(model) if copies is None else copies
    return model, copies


def change(layer, groups, step, moves):
    size = layer.head_dim
    members = layer.heads // layer.kv_heads
    views = []
    for projection in (layer.to_q, layer.to_k, layer.to_v):
        views.append([part.data.unflatten(0, (-1, size)) for part in projection.parameters()])
    output = layer.to_output.weight.data.T.unflatten(0, (-1, size))
    if step == "copy":
        for part in (*views[1], *views[2]):
            part.copy_(part[:groups].repeat_interleave(layer.kv_heads // groups, 0).clone())
        return
    for j in range(layer.kv_heads):
        basis, turn = (torch.linalg.qr(torch.randn(size, size).double())[0] for _ in range(2))
        if layer.positions is not None:
            turn = torch.diag_embed(
                torch.where(torch.rand(size // 2) < 0.5, -1.0, 1.0).double().repeat(2)
            )
        for h in range(j * members, (j + 1) * members):
            output[h] = basis @ output[h]
            if "weight" in layer.mechanism.learned:
                layer.mechanism.learned["weight"][h] @= turn.T
            else:
                for part in views[0]:
                    part[h] = turn @ part[h]
        for parts, matrix in ((views[1], turn), (views[2], basis)):
            for part in parts:
                part[j] = matrix @ part[j]
    if moves:
        order = torch.randperm(layer.kv_heads)
        readers = (order[:, None] * members + torch.arange(members)).flatten()
        for part in (*views[1], *views[2]):
            part.copy_(part[order].clone())
        for part in (*views[0], output, *layer.mechanism.learned.values()):
            part.copy_(part[readers].clone())


@pytest.mark.parametrize(
    ("kind", "with_text"), [(kind, index % 2 == 0) for index, kind in enumerate(KINDS)]
)
def test_copies_in_other_bases_are_merged_without_loss(kind, with_text):
    model, expected = scrambled(new_model(kind), 2)
    torch.testing.assert_close(outputs(model), expected, rtol=1e-9, atol=1e-9)
    few = with_kv_heads(model, 2, "align", calibration=outputs if with_text else None)
    torch.testing.assert_close(outputs(few), expected, rtol=1e-6, atol=1e-6)
    assert (outputs(with_kv_heads(model, 2)) - expected).abs().max() > 0.01


def test_a_saved_model_reports_what_was_checked_and_a_rotation_that_changes_it_is_refused(
    tmp_path, monkeypatch
):
    new_model("rotary").float().save(tmp_path / "four", {"tokeniser.json": "{}"})
    done = load_converted(tmp_path / "four", 2, "align", calibration=outputs)
    assert done.report.invariance <= 1e-6
    assert done.report.difference <= 1e-6
    assert '"groups": "similar heads"' in done.files["conversion.json"]
    applied = alignment.Alignment.applied

    def wrong(*layer, **options):
        return replace(changed := applied(*layer, **options), q=1.01 * changed.q)

    monkeypatch.setattr(alignment.Alignment, "applied", wrong)
    with pytest.raises(RegardError, match=r"with rotated heads the outputs of the model change by"):
        load_converted(tmp_path / "four", 2, "align")


def test_what_cannot_be_aligned_is_refused():
    options = ("output_gate", "value_residual", "differential", "forgetting")
    for settings, words in (
        (
            {"mechanism": "linear", "positions": "none"},
            "align rotates keys, which changes the results of linear",
        ),
        (
            {"mechanism": "softmax(concat(6, 6, 8))", "positions": "learned"},
            r"changes the results of softmax\(concat\(6, 6, 8\)\) in blocks.0",
        ),
        *(({option: True}, f"{option} of this model does not allow") for option in options),
    ):
        with pytest.raises(UnsupportedError, match=words):
            with_kv_heads(new_model("rotary", **settings), 2, "align")
    for calibration, words in (
        (lambda model: None, "did not run"),
        ("text", "a function that runs the model on a t"),
    ):
        with pytest.raises(ArgumentError, match=words):
            with_kv_heads(new_model("rotary"), 2, "align", calibration=calibration)


def test_keys_of_another_size_than_their_queries_are_rotated_with_the_matrix_between():
    model = new_model("learned", mechanism="softmax(general(6, 5))")
    rotated = own_models.turned(model, 2, outputs)
    torch.testing.assert_close(outputs(rotated), outputs(model), rtol=1e-9, atol=1e-9)
    assert not torch.equal(
        *(converted.blocks[0].attention.to_k.weight for converted in (rotated, model))
    )


def test_the_moments_are_those_of_the_inputs_of_each_layer():
    model = new_model("translator")
    inputs = []
    name = next(
        name
        for name, module in model.named_modules()
        if isinstance(module, MultiHeadAttention) and "cross" in name
    )
    layer = model.get_submodule(name)
    with layer.to_v.register_forward_pre_hook(
        lambda module, inputs_of_layer: inputs.append(inputs_of_layer[0].detach().flatten(0, 1))
    ):
        moment = moments_of({name: layer.to_k}, lambda: outputs(model))[name]
    x = torch.cat([torch.cat(inputs), torch.ones(sum(map(len, inputs)), 1)], 1)
    torch.testing.assert_close(moment, x.T @ x / len(x))
