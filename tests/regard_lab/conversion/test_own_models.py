"""What a group of heads becomes; a converted model of regard is the old one with its pooled heads repeated."""

from copy import deepcopy
from itertools import permutations

import pytest
import torch
from families import outputs, own_model
from hypothesis import given
from hypothesis import strategies as st

import regard_lab.conversion.own_models as own_models
from regard.errors import ArgumentError, CheckpointError, RegardError, UnsupportedError
from regard.layers import MultiHeadAttention
from regard_lab.conversion import convert_kv_heads, load_converted, with_kv_heads
from regard_lab.conversion.heads import resized
from regard_lab.conversion.own_models import PROVENANCE_FILE
from regard_lab.models import (
    LanguageModel,
    RecurrentTranslator,
    TextEncoder,
    TranslationTransformer,
    load_model,
)

SIZE = 3


def by_loops(tensor, before, after, method):
    """New head by new head, from the heads that its query heads used to read."""
    heads = tensor.double().split(SIZE)
    queries = max(before, after)  # as many query heads show every group
    new = []
    for new_head in range(after):
        group = {}
        for query in range(queries):
            if query // (queries // after) == new_head:
                old_head = query // (queries // before)
                group[old_head] = heads[old_head]
        first, *_ = group.values()
        new.append(first if method == "first" else sum(group.values()) / len(group))
    return torch.cat(new).to(tensor.dtype)


@given(
    after=st.integers(1, 5),
    times=st.integers(1, 5),
    more=st.booleans(),
    method=st.sampled_from(["mean", "first"]),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
    axes=st.sampled_from([(), (7,), (2, 5)]),
)
def test_each_new_head_is_what_its_query_heads_read_before(after, times, more, method, dtype, axes):
    before, after = (after, after * times) if more else (after * times, after)
    tensor = torch.randn(before * SIZE, *axes, generator=torch.Generator().manual_seed(1)).to(dtype)
    grouped = resized(tensor, before, after, method)
    assert (grouped.dtype, grouped.shape) == (dtype, (after * SIZE, *axes))
    torch.testing.assert_close(
        grouped, by_loops(tensor, before, after, method), rtol=2**-52, atol=2**-52
    )


def test_a_mean_is_rounded_once():
    # rounded on the way, the small ones vanish in some order
    for dtype, small in ((torch.bfloat16, 2**-8), (torch.float32, 2**-24)):
        for numbers in set(permutations([1.0, small, small, 0.0])):
            tensor = torch.tensor(numbers, dtype=dtype)
            assert resized(tensor, 4, 1).item() == (1 + 2 * small) / 4


def test_heads_that_do_not_divide_and_other_methods_are_refused():
    for before, after in ((8, 3), (3, 8), (8, 0), (8, -2), (8, 2.0), (8, True)):
        with pytest.raises(ArgumentError, match=f"{before} key/value heads cannot become"):
            resized(torch.zeros(before * SIZE), before, after)
    with pytest.raises(ArgumentError, match="method is 'median'; there are mean, first"):
        resized(torch.zeros(4), 4, 2, "median")


KINDS = {
    "language": (LanguageModel, {"layers": 2}),
    "grouped already": (LanguageModel, {"kv_heads": 2, "layers": 2}),
    "biases": (
        LanguageModel,
        {"biases": True, "norm": "layer", "positions": "learned", "activation": "gelu-tanh"},
    ),
    "heads of another size": (
        LanguageModel,
        {"head_dim": 5, "positions": "alibi", "pattern": "causal_window(3)"},
    ),
    "linear": (LanguageModel, {"mechanism": "linear", "positions": "none"}),
    "gated": (
        LanguageModel,
        {"mechanism": "random-feature(features=5, gated=true)", "positions": "none"},
    ),
    "two keys for a value": (
        LanguageModel,
        {"layers": 2, "differential": True, "value_residual": True, "output_gate": True},
    ),
    "encoder": (TextEncoder, {"layers": 2}),
    "linformer": (TextEncoder, {"mechanism": "linformer(length=11, rank=3)", "positions": "none"}),
    "translator": (TranslationTransformer, {"decoder_kv_heads": 2, "positions": "rotary"}),
}


def new_model(kind, **more):
    made, settings = KINDS[kind]
    return own_model(made, **settings, **more)


def pooled_in_place(model, groups, method):
    """The old model, each key/value head replaced by what its group became: it has as many heads as before."""
    model = deepcopy(model)
    for name, layer in model.named_modules():
        if not isinstance(layer, MultiHeadAttention) or name.startswith("encoder."):
            continue
        g = layer.kv_heads // groups
        tensors = [p.data for p in (*layer.to_v.parameters(), *layer.mechanism.parameters())]
        for parameter in layer.to_k.parameters():
            tensors += parameter.data.chunk(layer.terms)
        for tensor in tensors:
            size = len(tensor) // layer.kv_heads
            for j in range(groups):
                heads = [
                    tensor[(j * g + i) * size : (j * g + i + 1) * size].clone() for i in range(g)
                ]
                new = heads[0] if method == "first" else sum(heads) / g
                for i in range(g):
                    tensor[(j * g + i) * size : (j * g + i + 1) * size] = new
    return model


@pytest.mark.each_value(pairs=[("method", "groups")])
@pytest.mark.parametrize(
    ("kind", "method"), [(kind, ("mean", "first")[index % 2]) for index, kind in enumerate(KINDS)]
)
@pytest.mark.parametrize("groups", [1, 2])
def test_the_new_model_computes_what_the_old_one_does_with_pooled_heads_repeated(
    kind, groups, method
):
    if kind == "grouped already":
        groups = 1
    model = new_model(kind)
    converted = with_kv_heads(model, groups, method)
    expected = outputs(pooled_in_place(model, groups, method))
    torch.testing.assert_close(outputs(converted), expected, rtol=1e-10, atol=1e-10)
    assert (
        outputs(model) - expected
    ).abs().max() > 1e-3  # the two are far from the first, or nothing was tested


@pytest.mark.parametrize("kind", ["grouped already", "two keys for a value", "translator"])
def test_more_heads_change_nothing(kind):
    model = new_model(kind, **({"kv_heads": 2} if kind == "two keys for a value" else {}))
    repeated = with_kv_heads(model, 4)
    torch.testing.assert_close(outputs(repeated), outputs(model), rtol=1e-12, atol=1e-12)


def test_the_two_models_share_no_weight_and_the_encoder_of_a_translator_keeps_its_heads():
    model = new_model("language")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        for parameter in with_kv_heads(model, 2).parameters():
            parameter.zero_()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    config = with_kv_heads(new_model("translator"), 1).config
    assert (config.encoder_kv_heads, config.decoder_kv_heads, config.cross_kv_heads) == (None, 1, 1)


def eight_heads(folder):
    model = LanguageModel(LanguageModel.Config(vocab_size=23, dim=48, heads=8, layers=3))
    model.save(folder, {"tokeniser.json": "{}"})
    return model


@pytest.mark.parametrize(("kv_heads", "fewer"), [(2, 4), (1, 8)])
def test_eight_heads_made_fewer_keep_exactly_so_many_times_fewer_bytes(tmp_path, kv_heads, fewer):
    eight_heads(tmp_path / "eight")
    report = convert_kv_heads(tmp_path / "eight", tmp_path / "few", kv_heads)
    # keys and values, layers, numbers, bytes
    assert report.kv_bytes["token"].before == 2 * 3 * 48 * 4
    assert report.kv_bytes["token"].after * fewer == report.kv_bytes["token"].before
    assert report.removed == 2 * 3 * 48 * (48 - 6 * kv_heads)
    models = [LanguageModel.load(tmp_path / name) for name in ("eight", "few")]
    # what decoding really holds
    before, after = (model.start(torch.full((1, 64), 5)).nbytes for model in models)
    assert after * fewer == before == 64 * report.kv_bytes["token"].before
    assert report.measured
    assert report.difference <= 1e-6


def test_what_each_kind_of_model_keeps_is_told_apart():
    kinds_kept = {kind: own_models.kept_of_one(new_model(kind)).keys() for kind in KINDS}
    assert kinds_kept["language"] == {"token"}
    assert kinds_kept["linear"] == kinds_kept["gated"] == {"state"}
    assert kinds_kept["encoder"] == set()
    assert kinds_kept["translator"] == {"source token", "target token"}


def test_files_stay_and_tell_where_the_model_comes_from(tmp_path):
    eight_heads(tmp_path / "eight")
    convert_kv_heads(tmp_path / "eight", tmp_path / "two", 2, method="first")
    saved = load_model(tmp_path / "two")
    assert saved.extra_files["tokeniser.json"] == "{}"
    assert '"method": "first"' in saved.extra_files[PROVENANCE_FILE]
    again = load_converted(tmp_path / "eight", 2, "first").files[PROVENANCE_FILE]
    assert again == saved.extra_files[PROVENANCE_FILE]
    with torch.no_grad():
        different = LanguageModel.load(tmp_path / "eight")
        different.embedding.weight[3, 5] += 1
        different.save(tmp_path / "other")
    assert load_converted(tmp_path / "other", 2, "first").files[PROVENANCE_FILE] != again


def test_only_an_earlier_conversion_is_replaced(tmp_path):
    eight_heads(tmp_path / "eight")
    for name in ("model", "mixed"):
        eight_heads(tmp_path / name)
    convert_kv_heads(tmp_path / "eight", tmp_path / "two", 2)
    convert_kv_heads(tmp_path / "eight", tmp_path / "two", 1)
    assert LanguageModel.load(tmp_path / "two").config.kv_heads == 1
    (tmp_path / "two" / "notes.txt").write_text("mine")
    (tmp_path / "text").write_text("mine")
    for out, reason in (
        ("model", "is not an earlier conversion"),
        ("two", "holds notes.txt beside a conversion"),
        ("text", "is not an earlier conversion"),
        ("eight", "is the folder of the original"),
        ("eight/two", "contain each other"),
        (".", "contain each other"),
    ):
        with pytest.raises(CheckpointError, match=reason):
            convert_kv_heads(tmp_path / "eight", tmp_path / out, 2)
    assert LanguageModel.load(tmp_path / "model").config.kv_heads == 8


def test_a_model_that_fails_its_oracle_is_not_written(tmp_path, monkeypatch):
    eight_heads(tmp_path / "eight")
    honest = own_models.resized
    for wrong in (lambda heads: heads.roll(1, 0), lambda heads: heads * 0):
        monkeypatch.setattr(
            own_models, "resized", lambda *arguments, wrong=wrong: wrong(honest(*arguments))
        )
        with pytest.raises(RegardError, match=r"differ by .* nothing was written"):
            convert_kv_heads(tmp_path / "eight", tmp_path / "two", 2)
    assert not (tmp_path / "two").exists()


def test_what_cannot_be_is_refused(tmp_path):
    eight_heads(tmp_path / "eight")
    (tmp_path / "empty").mkdir()
    RecurrentTranslator(RecurrentTranslator.Config(vocab_size=23, dim=8, hidden=8)).save(
        tmp_path / "cells"
    )
    own_model(LanguageModel, mechanism="lsh(chunk=3)", positions="none").save(tmp_path / "hashed")
    for name, kv_heads, error, words in (
        ("eight", 8, ArgumentError, "8 key/value heads already"),
        ("eight", 3, ArgumentError, "cannot become 3"),
        ("eight", 16, ArgumentError, "heads, 8, must be a multiple of it"),
        ("empty", 2, CheckpointError, "holds no model"),
        ("cells", 2, UnsupportedError, "has no key/value heads"),
        ("hashed", 2, ArgumentError, "its queries are its keys"),
    ):
        with pytest.raises(error, match=words):
            convert_kv_heads(tmp_path / name, tmp_path / "x", kv_heads)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("factor", [1.0, 50.0])
def test_a_difference_is_relative_to_outputs_larger_than_1(factor):
    model = new_model("language")
    with torch.no_grad():
        model.embedding.weight.mul_(factor)
    perturbed = deepcopy(model)
    with torch.no_grad():
        for parameter in perturbed.parameters():
            parameter.add_(1e-3)
    # as `difference` draws
    ids = torch.randint(1, 23, (2, 3, 11), generator=torch.Generator().manual_seed(0))[0]
    output = model(ids).detach()
    expected = perturbed(ids).detach()
    largest = expected.abs().max()
    assert largest > 1.5
    difference = own_models.difference(model, perturbed)
    assert difference == pytest.approx(float((output - expected).abs().max() / largest), rel=1e-9)
    assert own_models.difference(model, deepcopy(model)) == 0
