"""Models of transformers whose sequence is divided: as on one process by their own attention, gradients included."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
import transformers as tf
from integrations import hugging_face_small as small
from torch import nn

from regard.distributed import Layout, shard
from regard.distributed.group import Group
from regard.errors import ArgumentError, UnsupportedError
from regard.integrations.transformers import (
    attach,
    change_attention,
    detach,
    observe,
    part_of_batch,
)
from regard.integrations.transformers.attending import regard_attention
from regard.integrations.transformers.sharing import TYPES, Shared, Sharing, current, forwards
from regard.patterns import Causal

LENGTH = 13  # two processes hold 7 and 6 positions


def made(kind: str) -> Any:
    """A small model of a type in float64."""
    model = small.built(kind)
    if any("experts" in name for name, _ in model.named_modules()):
        model.set_experts_implementation("eager")  # others take no float64
    return model.double()


@contextmanager
def in_float64() -> Iterator[None]:
    """Within it, transformers computes norms, softmax and rotary angles in float64 where its code asks for float32."""
    softmax = nn.functional.softmax
    to = torch.Tensor.to

    def wide(
        x: torch.Tensor, *args: Any, dtype: torch.dtype | None = None, **options: Any
    ) -> torch.Tensor:
        return softmax(x, *args, dtype=None if dtype is None else torch.float64, **options)

    def moved(x: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        """As transformers 5.17 asks for float32."""
        widened = {name: torch.float64 for name, value in options.items() if value is torch.float32}
        return to(
            x,
            *(torch.float64 if one is torch.float32 else one for one in args),
            **options | widened,
        )

    with (
        patch.object(nn.functional, "softmax", wide),
        patch.object(torch.Tensor, "float", torch.Tensor.double),
        patch.object(torch.Tensor, "to", moved),
    ):
        yield


def batch(padding: str = "none") -> dict[str, torch.Tensor]:
    ids = torch.randint(3, small.VOCAB, (2, LENGTH), generator=torch.Generator().manual_seed(5))
    live = torch.ones_like(ids)
    live[0] = {
        "none": live[0],
        "left": torch.arange(LENGTH) >= 3,
        "holes": torch.arange(LENGTH) % 4 != 2,
    }[padding]
    return {"input_ids": ids} if padding == "none" else {"input_ids": ids, "attention_mask": live}


def output_of(model: Any, **inputs: Any) -> torch.Tensor:
    found = model(**inputs)
    return found.logits if hasattr(found, "logits") else found.last_hidden_state


@in_float64()
def differences(
    kind: str,
    layout: str = "contiguous",
    form: str = "auto",
    padding: str = "none",
    checkpointing: bool = False,
    lengths: tuple[int, ...] | None = None,
) -> tuple[float, float]:
    """The largest difference from one process: of this process's outputs, and of the summed gradients."""
    model = made(kind)
    whole = batch(padding)
    alone = copy.deepcopy(model)
    # transformers 5.17 has the softcap of Gemma 2 only there
    alone.set_attn_implementation("eager")
    rank = dist.get_rank()
    even = Layout.even(layout, LENGTH, dist.get_world_size())
    divided = even if lengths is None else Layout(layout, lengths)
    expected = output_of(alone, **whole)
    counted = (
        torch.randn(expected.shape, generator=torch.Generator().manual_seed(2)) / expected.numel()
    )
    if padding != "none":
        # outputs at padding are not compared
        counted = counted * whole["attention_mask"][..., None]
    (expected * counted).sum().backward()
    attach(model, mesh=dist.group.WORLD, layout=layout, form=form)
    if checkpointing:
        model.train()
        model.gradient_checkpointing_enable({"use_reentrant": False})
    own = part_of_batch(whole, dist.group.WORLD, layout=layout)
    output = output_of(
        model, **{**own, "input_ids": shard(whole["input_ids"], divided, rank, dim=1)}
    )
    (output * shard(counted, divided, rank, dim=1)).sum().backward()
    worst = 0.0
    for one, other in zip(model.parameters(), alone.parameters(), strict=True):
        if other.grad is None:
            continue
        grad = torch.zeros_like(other.grad) if one.grad is None else one.grad
        dist.all_reduce(grad)
        worst = max(
            worst, float((grad - other.grad).abs().max() / other.grad.abs().max().clamp(min=1e-3))
        )
    heeded = shard(counted != 0, divided, rank, dim=1)
    return float(
        (output.detach() - shard(expected, divided, rank, dim=1))[heeded].abs().max()
    ), worst


def close(found: list[tuple[float, float]]) -> None:
    assert max(output for output, _ in found) < 1e-10, found
    assert max(grad for _, grad in found) < 1e-10, found


@pytest.mark.parametrize("kind", TYPES)
def test_every_type_that_is_taken_equals_one_process(kind, pools):
    close(pools(2).run(differences, kind))


@pytest.mark.parametrize("form", ["gather", "ring"])
@pytest.mark.parametrize("kind", ["llama", "mistral", "gpt2", "modernbert"])
def test_zigzag_equals_one_process(kind, form, pools):
    close(pools(2).run(differences, kind, "zigzag", form))


@pytest.mark.parametrize("padding", ["left", "holes"])
@pytest.mark.parametrize(("kind", "layout"), [("mistral", "zigzag"), ("bert", "contiguous")])
def test_padding_of_the_whole_sequence_is_hidden(kind, layout, padding, pools):
    close(pools(2).run(differences, kind, layout, "auto", padding))


@pytest.mark.parametrize(
    ("kind", "layout", "lengths"),
    [
        ("mistral", "zigzag", (5, 1, 4, 3)),
        ("gpt_oss", "contiguous", (1, 8, 2, 2)),
        ("gemma2", "zigzag", (11, 2)),
    ],
)
def test_uneven_parts_equal_one_process(kind, layout, lengths, pools):
    close(pools(len(lengths)).run(differences, kind, layout, "auto", "left", False, lengths))


def test_four_processes_and_gradient_checkpointing(pools):
    close(pools(4).run(differences, "mistral", "zigzag"))
    close(pools(2).run(differences, "llama", "contiguous", "auto", "none", True))


@in_float64()
def losses(layout: str) -> tuple[float, float, float]:
    """The loss of one process, the losses of all parts summed, and the largest difference of the gradients' sums."""
    whole = batch() | {"labels": batch()["input_ids"].clone()}
    whole["labels"][1, 6:9] = -100
    model = made("mistral")
    expected = model(**whole).loss
    expected.backward()
    expected_grads = [one.grad for one in model.parameters()]
    model.zero_grad()
    attach(model, mesh=dist.group.WORLD, layout=layout)
    loss = model(**part_of_batch(whole, dist.group.WORLD, layout=layout)).loss
    loss.backward()
    total = loss.detach().clone()
    worst = 0.0
    dist.all_reduce(total)
    for one, other in zip(model.parameters(), expected_grads, strict=True):
        dist.all_reduce(one.grad)
        worst = max(worst, float((one.grad - other).abs().max()))
    return float(expected.detach()), float(total), worst


@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
def test_the_losses_of_the_parts_add_up_to_that_of_the_whole(layout, pools):
    for expected, total, worst in pools(2).run(losses, layout):
        assert total == pytest.approx(expected, abs=1e-10)
        assert worst < 1e-10


def called(what: str) -> None:
    """A call of a model over processes that is refused."""
    model = attach(made("mistral"), mesh=dist.group.WORLD)
    ids = part_of_batch(batch(), dist.group.WORLD)["input_ids"]
    rank = dist.get_rank()
    places = torch.arange(7 * dist.get_rank(), 7 * dist.get_rank() + ids.shape[1])[None]
    live = torch.ones(2, LENGTH, dtype=torch.long)
    if what == "shifted on one":
        model(ids, position_ids=places - rank)
    elif what == "other padding":
        model(ids, attention_mask=live.index_fill(1, torch.tensor([rank]), 0))
    elif what == "padding of a part":
        model(ids, attention_mask=live[:, : ids.shape[1]])
    elif what == "a cache":
        model.generate(ids, max_new_tokens=2)
    elif what == "no positions":
        model(ids[:, : 0 if rank else 5])
    elif what == "compiled":
        torch.compile(model, backend="eager")(ids)
    elif what == "labels":
        model(ids, labels=ids)
    elif what == "other weights":
        model.model.layers[1].mlp.up_proj.weight.data[rank] += 1
        model(ids)
    elif what == "observe":
        with observe(model, "entropy"):
            model(ids)
    elif what == "replaced":
        change_attention(detach(model), pattern="causal_window(3)")
        attach(model, mesh=dist.group.WORLD)(ids)
    elif what == "a bias":

        def biased(module: Any, args: Any, given: dict[str, Any]) -> None:
            heads = torch.zeros(3, 2, 4, ids.shape[1], 4).double()
            regard_attention(
                module, *heads, given["attention_mask"], position_bias=torch.zeros(1, 4, 1, 1)
            )

        model.model.layers[0].self_attn.register_forward_pre_hook(biased, with_kwargs=True)
        model(ids)
    elif what == "other keys":
        shared = Shared(
            Sharing(dist.group.WORLD, Group.of(dist.group.WORLD), "contiguous", "auto"),
            model,
            LENGTH,
        )
        shared.attention(model, torch.zeros(1, 1, 2, 4), *torch.zeros(2, 1, 1, 3, 4), Causal())
    elif what == "by hand":
        # the inner model counts as well: no error
        model.model(ids, attention_mask=live, position_ids=places)
        sharing = Sharing(dist.group.WORLD, Group.of(dist.group.WORLD), "contiguous", "auto")
        shared = current.set(Shared(sharing, model, LENGTH))
        forwards[id(model)] = True
        try:
            regard_attention(
                model.model.layers[0].self_attn, *torch.randn(3, 2, 4, 6, 4).double(), None
            )
        finally:
            forwards.pop(id(model))
            current.reset(shared)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (
            "shifted on one",
            (
                "process 1 refused the call",
                "position_ids on process 1 are not the positions of its part",
            ),
        ),
        ("other padding", ("make different calls",) * 2),
        ("padding of a part", ("it is that of the whole sequence, on every process",) * 2),
        ("a cache", ("without a cache: to generate, use one process",) * 2),
        ("no positions", ("process 1 of 2 holds no positions",) * 2),
        ("compiled", ("call it outside of torch.compile",) * 2),
        ("labels", ("would shift and average those of its own part alone",) * 2),
        ("other weights", ("load one state_dict everywhere, or give all processes one seed",) * 2),
        ("observe", ("is watched by explain or observe",) * 2),
        ("replaced", ("change_attention changed",) * 2),
        ("a bias", ("adds a bias by positions to its scores",) * 2),
        ("other keys", ("attends from 2 queries to 3 keys: a cache or a context",) * 2),
        ("by hand", ("without the mask that was made for the whole sequence",) * 2),
    ],
)
def test_calls_that_cannot_be_honoured_are_refused_on_every_process(what, words, pools):
    messages = pools(2).refusals(called, what)
    for message, expected in zip(messages, words, strict=True):
        assert expected in message


def with_a_compiled_layer() -> float:
    model = attach(made("mistral"), mesh=dist.group.WORLD)
    model.model.layers[0].compile(backend="eager")
    found = output_of(model, **part_of_batch(batch(), dist.group.WORLD))
    expected = shard(
        output_of(made("mistral"), **batch()),
        Layout.even("contiguous", LENGTH, 2),
        dist.get_rank(),
        dim=1,
    )
    return float((found - expected).abs().max())


@pytest.mark.slow
def test_a_layer_that_is_compiled_inside_of_a_model_sees_the_whole_sequence(pools):
    assert max(pools(2).run(with_a_compiled_layer)) < 1e-10


def in_step() -> float:
    """After a refused call, a call of the same model and group."""
    model = attach(made("llama"), mesh=dist.group.WORLD)
    own = part_of_batch(batch(), dist.group.WORLD)
    with pytest.raises(NotImplementedError):
        model(**own, use_cache=True)
    expected = output_of(detach(copy.deepcopy(model)), **batch())
    found = output_of(model, **own)
    return float(
        (found - shard(expected, Layout.even("contiguous", LENGTH, 2), dist.get_rank(), dim=1))
        .abs()
        .max()
    )


def test_a_refused_call_leaves_the_processes_in_step(pools):
    assert max(pools(2).run(in_step)) < 1e-10


def of_other_kinds() -> list[str]:
    """What `attach` says to models that cannot be divided, all of which stay as they were."""
    said = []
    models = [
        small.built("llama4_text"),
        small.drawn(tf.LlamaForSequenceClassification, "llama"),
        small.drawn(tf.BertModel, "bert"),
        *map(small.built, ("gpt2", "llama", "mixtral")),
    ]
    models[3].config.add_cross_attention = models[5].config.output_router_logits = True
    models[4].model.rotary_emb.rope_type = "dynamic"
    for model in models:
        try:
            attach(model, mesh=dist.group.WORLD)
        except NotImplementedError as refused:
            said.append(f"{refused} {model.config._attn_implementation}")
    return said


def test_models_that_cannot_be_divided_are_refused_and_stay_as_they_were(pools):
    words = (
        "'llama4_text' were not compared",
        "belong to a whole sequence",
        "pooler reads the first position",
        "a second sequence",
        "'dynamic', whose frequencies",
        "output_router_logits=False",
    )
    for said in pools(2).run(of_other_kinds):
        assert len(said) == len(words)
        for one, expected in zip(said, words, strict=True):
            assert expected in one
            assert one.endswith("Nothing was changed sdpa")


def test_options_of_a_division_need_processes():
    with pytest.raises(ArgumentError, match="give the mesh too"):
        attach(made("llama"), layout="zigzag")
    with pytest.raises(ArgumentError, match="layout is 'star'"):
        attach(made("llama"), layout="star")
    with pytest.raises(UnsupportedError, match="init_process_group"):
        attach(made("llama"), mesh=3)
    with pytest.raises(UnsupportedError, match="init_process_group"):
        part_of_batch(batch(), None)
    with pytest.raises(ArgumentError, match="the batch has position_ids"):
        part_of_batch(batch() | {"position_ids": torch.zeros(1, LENGTH)}, None)
    with pytest.raises(ArgumentError, match="give those of the whole sequence"):
        part_of_batch({"input_ids": [1, 2]}, None)
