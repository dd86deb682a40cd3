"""Attention that is written out in a model's own code: what is plain is computed by regard, with the same results."""

import copy
from functools import cache

import pytest

pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install 'regard[transformers]'"
)

import hugging_face_checks as checks
import small_transformers as small_models
import torch
import transformers
from torch import nn
from transformers.models import bark

import regard as rg
from regard.integrations.transformers import attach, detach, explain, intervene, observe
from regard.integrations.transformers.modules import WRITTEN_OUT
from regard.integrations.transformers.written_out import exchange_written_out, prove_plain

NEAR = 1e-5
# By kind, the classes whose code is followed.
TEXT = {
    "openai-gpt": "Attention",
    "gpt_neo": "GPTNeoSelfAttention",
    "xglm": "XGLMAttention",
    "gpt_neox_japanese": "GPTNeoXJapaneseAttention",
    "roformer": "RoFormerSelfAttention",
    "mvp": "MvpAttention",
    "fsmt": "Attention",
    "xlm": "MultiHeadAttention",
}
IDS = torch.randint(3, 90, (3, 9), generator=torch.Generator().manual_seed(5))


@cache
def models(kind):
    """A small model with its own attention, and its attached copy."""
    if kind == "gpt_neo":
        config = transformers.GPTNeoConfig(
            vocab_size=99,
            hidden_size=32,
            num_layers=2,
            num_heads=4,
            attention_types=[[["global", "local"], 1]],
            window_size=5,
            max_position_embeddings=64,
            intermediate_size=48,
        )
        theirs = transformers.GPTNeoForCausalLM(config).eval()
    else:
        theirs = small_models.built(kind)
    return theirs, attach(copy.deepcopy(theirs))


def padding_of(model):
    """A row is padded on the side where its kind of model is."""
    mask = torch.ones_like(IDS)
    pads_left = model.can_generate() and not model.config.is_encoder_decoder
    mask[1, slice(0, 4) if pads_left else slice(5, 9)] = 0
    return mask


def outputs(model, **options):
    if model.config.is_encoder_decoder:
        options |= {"decoder_input_ids": IDS.flip(0)}
    output = model(input_ids=IDS, attention_mask=padding_of(model), **options)
    return output.logits if "logits" in output else output[0]


@torch.no_grad()
@pytest.mark.parametrize("kind", TEXT)
def test_outputs_and_generations_are_those_of_the_models_own_code(kind):
    theirs, ours = models(kind)
    assert (ours.outside, ours.unchecked) == ({}, ())
    followed = [m for m in ours.modules() if type(m).__module__ == WRITTEN_OUT]
    assert {type(module).__name__ for module in followed} == {f"Regard{TEXT[kind]}"}
    assert checks.farthest(outputs(ours), outputs(theirs), unpadded_positions(ours)) <= NEAR
    if not ours.can_generate():
        return
    options = {"attention_mask": padding_of(ours), "max_new_tokens": 5, "do_sample": False}
    assert torch.equal(ours.generate(IDS, **options), theirs.generate(IDS, **options))


PYRAMID = {
    "image_size": 64,
    "hidden_sizes": [16, 16, 32, 32],
    "depths": [1, 1, 1, 1],
    "num_attention_heads": [1, 2, 4, 4],
}
BARK = {
    "block_size": 64,
    "input_vocab_size": 99,
    "output_vocab_size": 99,
    "num_layers": 2,
    "num_heads": 4,
    "hidden_size": 32,
}
IMAGES = {"pixel_values": torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(7))}
# What the report of architectures does not compare.
OTHERS = {
    "PVT": (lambda: transformers.PvtModel(transformers.PvtConfig(**PYRAMID)), IMAGES),
    "PVT v2": (lambda: transformers.PvtV2Model(transformers.PvtV2Config(**PYRAMID)), IMAGES),
    "Bark, semantic": (
        lambda: transformers.BarkSemanticModel(bark.BarkSemanticConfig(**BARK)),
        {"input_ids": IDS},
    ),
    "Bark, coarse": (
        lambda: transformers.BarkCoarseModel(bark.BarkCoarseConfig(**BARK)),
        {"input_ids": IDS},
    ),
}


@torch.no_grad()
@pytest.mark.parametrize("name", OTHERS)
def test_image_pyramids_and_sound_models_give_the_outputs_of_their_own_code(name):
    make, inputs = OTHERS[name]
    torch.manual_seed(0)
    theirs = make().eval()
    for parameter in theirs.parameters():
        if parameter.dim() >= 2:
            nn.init.normal_(parameter, std=0.1)
    ours = attach(copy.deepcopy(theirs))
    assert (ours.outside, ours.unchecked) == ({}, ())
    first = theirs(**inputs).to_tuple()[0]
    assert checks.farthest(ours(**inputs).to_tuple()[0], first) <= NEAR * float(first.abs().max())


def unpadded_positions(model):
    """Where an output is compared: padded positions of a causal model may have no key."""
    unpadded = torch.ones_like(IDS) if model.config.is_encoder_decoder else padding_of(model)
    return unpadded.bool()


def gradients(model):
    model.zero_grad()
    outputs(model)[unpadded_positions(model)].square().mean().backward()
    return {name: x.grad for name, x in model.named_parameters() if x.grad is not None}


@pytest.mark.parametrize("kind", ["gpt_neo", "xglm", "roformer", "fsmt"])
def test_gradients_are_those_of_the_models_own_code(kind):
    theirs, ours = models(kind)
    assert checks.relative(gradients(ours), gradients(theirs)) <= checks.GRADIENTS


@pytest.mark.parametrize("heads", [1, 4])
def test_code_may_change_the_output_of_attention_in_place(heads):
    """As Nystromformer does; gradients need the output as it was."""

    def combine(q, k, v):
        q, k, v = (x.transpose(1, 2).flatten(2).unflatten(2, (heads, -1)) for x in (q, k, v))
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        output = torch.softmax(q @ k.mT, -1) @ v
        output += 2 * v
        return output.transpose(1, 2).flatten(2).unflatten(2, (4, -1)).transpose(1, 2)

    torch.manual_seed(0)
    own = Own(32, combine)
    hidden = torch.randn(2, 9, 32)
    expected = torch.autograd.grad(own(hidden)[0].square().sum(), own.query.weight)[0]
    exchange_written_out([own])
    gradient = torch.autograd.grad(own(hidden)[0].square().sum(), own.query.weight)[0]
    assert float((gradient - expected).norm() / expected.norm()) <= NEAR


def test_weights_are_dropped_at_the_models_rate_while_it_trains():
    _, model = models("gpt_neo")
    model = copy.deepcopy(model).train()
    for block in model.transformer.h:
        block.attn.attention.attn_dropout.p = 0.31
    options = [call.options for call in explain(model, IDS).calls]
    assert ["dropout 0.31" in of_call for of_call in options] == [True, True]
    options = [call.options for call in explain(model.eval(), IDS).calls]
    assert not any("dropout" in option for of_call in options for option in of_call)


@torch.no_grad()
def test_calls_are_explained_observed_and_changed():
    _, model = models("gpt_neo")
    explained = explain(model, IDS)
    assert [call.layer for call in explained.calls] == [
        "transformer.h.0.attn.attention",
        "transformer.h.1.attn.attention",
    ]
    assert explained.silent == ()
    with observe(model, "entropy") as observed:
        before = model(IDS).logits
    assert [call.entropy.shape for call in observed.calls] == [(3, 4, 9)] * 2
    with intervene(model, lambda name, output: torch.zeros_like(output)):
        assert float((model(IDS).logits - before).abs().max()) > 1e-4


@torch.no_grad()
def test_detach_copies_and_files_keep_the_models_own_code():
    theirs, ours = models("xglm")
    kinds = [type(module) for module in theirs.modules()]
    copied = copy.deepcopy(ours)
    assert torch.equal(outputs(copied), outputs(ours))
    assert [type(module) for module in detach(copied).modules()] == kinds
    assert torch.equal(outputs(copied), outputs(theirs))
    attached_again = attach(attach(copied))
    assert torch.equal(outputs(attached_again), outputs(ours))


@torch.no_grad()
def test_a_part_that_was_attached_before_is_still_followed():
    _, attached_before = models("gpt_neo")
    theirs, _ = models("xglm")
    both = attach(nn.ModuleList([copy.deepcopy(attached_before), copy.deepcopy(theirs)]))
    for part, followed in zip(both, ("GPTNeoSelfAttention", "XGLMAttention"), strict=True):
        ours = {type(m).__name__ for m in part.modules() if type(m).__module__ == WRITTEN_OUT}
        assert ours == {f"Regard{followed}"}


class Own(nn.Module):
    """An attention whose code is given, in the place of BERT's."""

    def __init__(self, dim, combine):
        super().__init__()
        self.query = nn.Linear(dim, dim)
        self.combine = combine

    def forward(self, hidden_states, *args, **others):
        q = self.query(hidden_states).unflatten(-1, (4, -1)).transpose(1, 2)
        return self.combine(q, q.tanh(), q.sin()).transpose(1, 2).flatten(2), None


def some_pairs(q):
    """Booleans (n, n), in no row of which all are False."""
    places = torch.arange(q.shape[-2])
    return places[:, None] * places % 3 != 1


def by_head(q):
    """A bias (heads, n, n) that differs between heads."""
    numbers = torch.randn(4, 9, 9, generator=torch.Generator().manual_seed(6))
    return numbers[:, : q.shape[-2], : q.shape[-2]]


def by_batch_rows(q, k, v):
    """Heads are batch rows, and so are those of the bias."""
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    bias = by_head(q).repeat(len(q) // 4, 1, 1)
    return torch.bmm(torch.softmax(torch.bmm(q, k.mT) + bias, -1), v).unflatten(0, (-1, 4))


def zeroed(q, k, v, hidden):
    """Scores are set to zero in place, where XLM would then add a very low number."""
    scores = q @ k.mT
    scores *= some_pairs(q).float()
    if hidden:
        scores += torch.where(some_pairs(q), 0.0, -1e4)
    return scores.softmax(-1) @ v


def summed_in_place(q, k, v):
    scores = q @ k.mT
    scores += v @ k.mT
    return scores


def emptied(q, k, masked):
    """Weights that are set to zero at some pairs, of scores that are hidden at others or at the same."""
    scores = (q @ k.mT).masked_fill(~some_pairs(q), -1e9)
    return torch.softmax(scores, -1).masked_fill(masked, 0.0)


def shifted(product):
    """The numbers of a product, each at the next key."""
    return torch.cat((torch.zeros_like(product[..., :1]), product[..., :-1]), -1)


def fewer_queries(q, k, v):
    """PyTorch aligns the first query with the first key."""
    output = torch.nn.functional.scaled_dot_product_attention(q[..., 1:, :], k, v, is_causal=True)
    return torch.cat((output, output[..., :1, :]), -2)


CODE = {
    "plain": (lambda q, k, v: torch.softmax(q @ k.mT / 2, -1) @ v, None),
    "scaled after a bias": (
        lambda q, k, v: torch.softmax((q @ k.mT + by_head(q)) * 0.25, -1) @ v,
        None,
    ),
    "biases of heads by batch rows": (by_batch_rows, None),
    "filled": (
        lambda q, k, v: torch.softmax((q @ k.mT).masked_fill(~some_pairs(q), -1e9), -1) @ v,
        None,
    ),
    "where, beside a bias": (
        lambda q, k, v: (
            torch.softmax(torch.where(some_pairs(q), q @ k.mT + by_head(q), -1e9), -1) @ v
        ),
        None,
    ),
    "zeroed in place, and hidden": (lambda q, k, v: zeroed(q, k, v, True), None),
    "zeroed in place": (
        lambda q, k, v: zeroed(q, k, v, False),
        "its code takes masked scores for softmax",
    ),
    "filled with a number that is not low": (
        lambda q, k, v: torch.softmax((q @ k.mT).masked_fill(~some_pairs(q), -5.0), -1) @ v,
        "its code takes the softmax of masked_fill of its scores",
    ),
    "in place and by batch rows": (
        lambda q, k, v: torch.bmm(
            torch.bmm(q.flatten(0, 1), k.flatten(0, 1).mT).mul_(0.5).softmax(-1), v.flatten(0, 1)
        ).view(q.shape),
        None,
    ),
    "the sum of two products": (
        lambda q, k, v: torch.softmax((q @ k.mT) / 2 + (v @ q.mT) * 0.3 + by_head(q), -1) @ v,
        None,
    ),
    "a sum with a product in place": (
        lambda q, k, v: summed_in_place(q, k, v).softmax(-1) @ v,
        None,
    ),
    "hidden, and emptied after the softmax": (
        lambda q, k, v: emptied(q, k, ~some_pairs(q)) @ v,
        None,
    ),
    "emptied where nothing was hidden": (
        lambda q, k, v: emptied(q, k, some_pairs(q)) @ v,
        "its code takes its weights for masked_fill",
    ),
    "an equation of a list": (
        lambda q, k, v: torch.einsum(
            "bhnm,bhmd->bhnd", [torch.einsum("bhnd,bhmd->bhnm", [q, k]).softmax(-1), v]
        ),
        None,
    ),
    "a product that is padded, and added": (
        lambda q, k, v: torch.softmax(q @ k.mT + shifted(v @ k.mT), -1) @ v,
        None,
    ),
    "PyTorch's attention": (
        lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=by_head(q), scale=0.3
        ),
        None,
    ),
    "PyTorch's causal attention": (
        lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True),
        None,
    ),
    "PyTorch's causal attention of fewer queries": (
        lambda q, k, v: fewer_queries(q, k, v),
        "its code calls scaled_dot_product_attention on 4 axes",
    ),
    "one minus weights": (
        lambda q, k, v: (1 - torch.softmax(q @ k.mT, -1)) @ v,
        "its code takes its weights for rsub",
    ),
    "softmax of squares": (
        lambda q, k, v: torch.softmax((q @ k.mT) ** 2, -1) @ v,
        "its code takes the softmax of pow of its scores",
    ),
    "over queries": (
        lambda q, k, v: torch.softmax(q @ k.mT, -2) @ v,
        "its code takes a softmax that is not over keys",
    ),
    "weights of heads mixed": (
        lambda q, k, v: torch.softmax(q @ k.mT, -1).flip(1) @ v,
        "its code takes its weights for flip",
    ),
    "no product of weights": (
        lambda q, k, v: torch.relu(q @ k.mT) @ v,
        "computes no product of weights and values",
    ),
}


@torch.no_grad()
@pytest.mark.parametrize("name", CODE)
def test_code_is_plain_or_the_first_operation_that_is_not_is_named(name):
    combine, why = CODE[name]
    model = small_models.built("bert")
    place = next(n for n, _ in model.named_modules() if n.endswith("attention.self"))
    own = Own(model.config.hidden_size, combine)
    model.set_submodule(place, own)
    expected = outputs(model)
    verdicts = prove_plain(model, {place: own})
    assert type(own) is Own
    assert torch.equal(outputs(model), expected)
    if why is None:
        assert verdicts == {place: None}
        exchange_written_out([own])
        assert checks.farthest(outputs(model), expected) <= NEAR
    else:
        assert why in verdicts[place]


def test_a_compiled_model_is_refused_by_a_sentence():
    _, model = models("gpt_neo")
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    with pytest.raises((torch._dynamo.exc.Unsupported, rg.UnsupportedError), match="detach"):
        compiled(IDS)
