"""Attention that is written out in a model's own code: what is plain is computed by regard, with the same results."""

import copy
from functools import cache

import pytest

pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install 'regard[transformers]'"
)

import hugging_face_checks as checks
import hugging_face_small as small
import torch
import transformers
from torch import nn

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
    elif kind in small.types():
        theirs = small.built(kind).eval()
    else:
        pytest.skip(f"this version of transformers has no {kind}")
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
    assert checks.farthest(outputs(ours), outputs(theirs), live_positions(ours)) <= NEAR
    if not ours.can_generate():
        return
    options = {"attention_mask": padding_of(ours), "max_new_tokens": 5, "do_sample": False}
    assert torch.equal(ours.generate(IDS, **options), theirs.generate(IDS, **options))


def live_positions(model):
    """Where an output is compared: padded positions of a causal model may have no key."""
    live = torch.ones_like(IDS) if model.config.is_encoder_decoder else padding_of(model)
    return live.bool()


def gradients(model):
    model.zero_grad()
    outputs(model)[live_positions(model)].square().mean().backward()
    return {name: x.grad for name, x in model.named_parameters() if x.grad is not None}


@pytest.mark.parametrize("kind", ["gpt_neo", "xglm", "roformer", "fsmt"])
def test_gradients_are_those_of_the_models_own_code(kind):
    theirs, ours = models(kind)
    assert checks.relative(gradients(ours), gradients(theirs)) <= checks.GRADIENTS


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


class Own(nn.Module):
    """An attention whose code is given, in the place of BERT's."""

    def __init__(self, dim, combine):
        super().__init__()
        self.query = nn.Linear(dim, dim)
        self.combine = combine

    def forward(self, hidden_states, *args, **others):
        q = self.query(hidden_states).unflatten(-1, (4, -1)).transpose(1, 2)
        return self.combine(q, q.tanh(), q.sin()).transpose(1, 2).flatten(2), None


CODE = {
    "plain": (lambda q, k, v: torch.softmax(q @ k.mT / 2, -1) @ v, None),
    "in place and by batch rows": (
        lambda q, k, v: torch.bmm(
            torch.bmm(q.flatten(0, 1), k.flatten(0, 1).mT).mul_(0.5).softmax(-1), v.flatten(0, 1)
        ).view(q.shape),
        None,
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
    model = small.built("bert").eval()
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
