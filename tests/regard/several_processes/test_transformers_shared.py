"""Models of transformers whose sequence is divided: as on one process by their own attention, gradients included."""

import copy
from collections.abc import Callable, Iterator
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
from regard.integrations.transformers.sharing import (
    TYPES,
    SharedForward,
    Sharing,
    current,
    running_forwards,
)
from regard.patterns import Causal

LENGTH = 13  # two processes hold 7 and 6 positions


def small_model(kind: str) -> Any:
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

    def widened(argument: Any) -> Any:
        return torch.float64 if argument is torch.float32 else argument

    def softmax_in_float64(x: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        if options.get("dtype") is not None:
            options["dtype"] = torch.float64
        return softmax(x, *args, **options)

    def to_float64(x: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        """As transformers 5.17 asks for float32."""
        options = {name: widened(value) for name, value in options.items()}
        return to(x, *map(widened, args), **options)

    with (
        patch.object(nn.functional, "softmax", softmax_in_float64),
        patch.object(torch.Tensor, "float", torch.Tensor.double),
        patch.object(torch.Tensor, "to", to_float64),
    ):
        yield


def batch(padding: str = "none") -> dict[str, torch.Tensor]:
    ids = torch.randint(3, small.VOCAB, (2, LENGTH), generator=torch.Generator().manual_seed(5))
    if padding == "none":
        return {"input_ids": ids}
    places = torch.arange(LENGTH)
    mask = torch.ones_like(ids)
    mask[0] = places >= 3 if padding == "left" else places % 4 != 2
    return {"input_ids": ids, "attention_mask": mask}


def output_of(model: Any, **inputs: Any) -> torch.Tensor:
    outputs = model(**inputs)
    return outputs.logits if hasattr(outputs, "logits") else outputs.last_hidden_state


def own_part(x: torch.Tensor, layout: Layout) -> torch.Tensor:
    """This process's part of a tensor of the whole sequence, (batch, length, ...)."""
    return shard(x, layout, dist.get_rank(), dim=1)


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
    model = small_model(kind)
    whole = batch(padding)
    alone = copy.deepcopy(model)
    alone.set_attn_implementation(
        "eager"
    )  # transformers 5.17 has the softcap of Gemma 2 only there
    expected = output_of(alone, **whole)
    numbers = torch.Generator().manual_seed(2)
    factors = torch.randn(expected.shape, generator=numbers) / expected.numel()
    if padding != "none":  # outputs at padding are not compared
        factors = factors * whole["attention_mask"][..., None]
    (expected * factors).sum().backward()

    division = Layout.even(layout, LENGTH, dist.get_world_size())
    if lengths is not None:
        division = Layout(layout, lengths)
    attach(model, mesh=dist.group.WORLD, layout=layout, form=form)
    if checkpointing:
        model.train()
        model.gradient_checkpointing_enable({"use_reentrant": False})
    inputs = part_of_batch(whole, dist.group.WORLD, layout=layout)
    inputs["input_ids"] = own_part(whole["input_ids"], division)
    output = output_of(model, **inputs)
    of_part = own_part(factors, division)
    (output * of_part).sum().backward()
    difference = (output.detach() - own_part(expected, division))[of_part != 0]

    worst = 0.0
    for weight, weight_alone in zip(model.parameters(), alone.parameters(), strict=True):
        wanted = weight_alone.grad
        if wanted is not None:
            grad = torch.zeros_like(wanted) if weight.grad is None else weight.grad
            dist.all_reduce(grad)
            size = wanted.abs().max().clamp(min=1e-3)
            worst = max(worst, float((grad - wanted).abs().max() / size))
    return float(difference.abs().max()), worst


def close(of_processes: list[tuple[float, float]]) -> None:
    for of_output, of_gradients in of_processes:
        assert of_output < 1e-10, of_processes
        assert of_gradients < 1e-10, of_processes


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
    model = small_model("mistral")
    expected = model(**whole).loss
    expected.backward()
    expected_grads = [weight.grad for weight in model.parameters()]
    model.zero_grad()
    attach(model, mesh=dist.group.WORLD, layout=layout)
    loss = model(**part_of_batch(whole, dist.group.WORLD, layout=layout)).loss
    loss.backward()
    total = loss.detach().clone()
    worst = 0.0
    dist.all_reduce(total)
    for weight, grad in zip(model.parameters(), expected_grads, strict=True):
        dist.all_reduce(weight.grad)
        worst = max(worst, float((weight.grad - grad).abs().max()))
    return float(expected.detach()), float(total), worst


@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
def test_the_losses_of_the_parts_add_up_to_that_of_the_whole(layout, pools):
    for expected, total, worst in pools(2).run(losses, layout):
        assert total == pytest.approx(expected, abs=1e-10)
        assert worst < 1e-10


WHOLE_MASK = torch.ones(2, LENGTH, dtype=torch.long)


def places_of(ids: torch.Tensor) -> torch.Tensor:
    first = 7 * dist.get_rank()
    return torch.arange(first, first + ids.shape[1])[None]


def shifted_on_one(model: Any, ids: torch.Tensor) -> None:
    model(ids, position_ids=places_of(ids) - dist.get_rank())


def other_padding(model: Any, ids: torch.Tensor) -> None:
    model(ids, attention_mask=WHOLE_MASK.index_fill(1, torch.tensor([dist.get_rank()]), 0))


def padding_of_a_part(model: Any, ids: torch.Tensor) -> None:
    model(ids, attention_mask=WHOLE_MASK[:, : ids.shape[1]])


def a_cache(model: Any, ids: torch.Tensor) -> None:
    model.generate(ids, max_new_tokens=2)


def no_positions(model: Any, ids: torch.Tensor) -> None:
    model(ids[:, : 0 if dist.get_rank() else 5])


def compiled(model: Any, ids: torch.Tensor) -> None:
    torch.compile(model, backend="eager")(ids)


def labels(model: Any, ids: torch.Tensor) -> None:
    model(ids, labels=ids)


def other_weights(model: Any, ids: torch.Tensor) -> None:
    model.model.layers[1].mlp.up_proj.weight.data[dist.get_rank()] += 1
    model(ids)


def observed(model: Any, ids: torch.Tensor) -> None:
    with observe(model, "entropy"):
        model(ids)


def changed(model: Any, ids: torch.Tensor) -> None:
    change_attention(detach(model), pattern="causal_window(3)")
    attach(model, mesh=dist.group.WORLD)(ids)


def a_bias(model: Any, ids: torch.Tensor) -> None:
    def biased(module: Any, args: Any, options: dict[str, Any]) -> None:
        heads = torch.zeros(3, 2, 4, ids.shape[1], 4).double()
        bias = torch.zeros(1, 4, 1, 1)
        regard_attention(module, *heads, options["attention_mask"], position_bias=bias)

    model.model.layers[0].self_attn.register_forward_pre_hook(biased, with_kwargs=True)
    model(ids)


def shared_by(model: Any) -> SharedForward:
    sharing = Sharing(dist.group.WORLD, Group.of(dist.group.WORLD), "contiguous", "auto")
    return SharedForward(sharing, model, LENGTH)


def other_keys(model: Any, ids: torch.Tensor) -> None:
    q = torch.zeros(1, 1, 2, 4)
    k, v = torch.zeros(2, 1, 1, 3, 4)
    shared_by(model).attention(model, q, k, v, Causal())


def by_hand(model: Any, ids: torch.Tensor) -> None:
    # The inner model counts as well: no error.
    model.model(ids, attention_mask=WHOLE_MASK, position_ids=places_of(ids))
    token = current.set(shared_by(model))
    running_forwards[id(model)] = True
    try:
        qkv = torch.randn(3, 2, 4, 6, 4).double()
        regard_attention(model.model.layers[0].self_attn, *qkv, None)
    finally:
        running_forwards.pop(id(model))
        current.reset(token)


# Calls of a model over processes, and what both processes say.
REFUSED: dict[Any, str] = {
    other_padding: "make different calls",
    padding_of_a_part: "it is that of the whole sequence, on every process",
    a_cache: "without a cache: to generate, use one process",
    no_positions: "process 1 of 2 holds no positions",
    compiled: "call it outside of torch.compile",
    labels: "would shift and average those of its own part alone",
    other_weights: "load one state_dict everywhere, or give all processes one seed",
    observed: "is watched by explain or observe",
    changed: "change_attention changed",
    a_bias: "adds a bias by positions to its scores",
    other_keys: "attends from 2 queries to 3 keys: a cache or a context",
    by_hand: "without the mask that was made for the whole sequence",
}


def called(call: Callable[[Any, torch.Tensor], None]) -> None:
    model = attach(small_model("mistral"), mesh=dist.group.WORLD)
    call(model, part_of_batch(batch(), dist.group.WORLD)["input_ids"])


@pytest.mark.parametrize("call", REFUSED, ids=lambda call: call.__name__)
def test_calls_that_cannot_be_honoured_are_refused_on_every_process(call, pools):
    for message in pools(2).refusals(called, call):
        assert REFUSED[call] in message


def test_positions_that_one_process_gives_wrongly_are_refused_on_both(pools):
    of_first, of_second = pools(2).refusals(called, shifted_on_one)
    assert "process 1 refused the call" in of_first
    assert "position_ids on process 1 are not the positions of its part" in of_second


def difference_from_one_process(model: Any, alone: Any) -> float:
    output = output_of(model, **part_of_batch(batch(), dist.group.WORLD))
    expected = own_part(output_of(alone, **batch()), Layout.even("contiguous", LENGTH, 2))
    return float((output - expected).abs().max())


def with_a_compiled_layer() -> float:
    model = attach(small_model("mistral"), mesh=dist.group.WORLD)
    model.model.layers[0].compile(backend="eager")
    return difference_from_one_process(model, small_model("mistral"))


@pytest.mark.slow
def test_a_layer_that_is_compiled_inside_of_a_model_sees_the_whole_sequence(pools):
    assert max(pools(2).run(with_a_compiled_layer)) < 1e-10


def in_step() -> float:
    """After a refused call, a call of the same model and group."""
    model = attach(small_model("llama"), mesh=dist.group.WORLD)
    with pytest.raises(NotImplementedError):
        model(**part_of_batch(batch(), dist.group.WORLD), use_cache=True)
    return difference_from_one_process(model, detach(copy.deepcopy(model)))


def test_a_refused_call_leaves_the_processes_in_step(pools):
    assert max(pools(2).run(in_step)) < 1e-10


def of_other_kinds() -> list[str]:
    """The refusals of models that cannot be divided, each with the attention of the model after it."""
    with_cross_attention = small.built("gpt2")
    with_cross_attention.config.add_cross_attention = True
    with_dynamic_angles = small.built("llama")
    with_dynamic_angles.model.rotary_emb.rope_type = "dynamic"
    with_router_loss = small.built("mixtral")
    with_router_loss.config.output_router_logits = True
    models = [
        small.built("llama4_text"),
        small.drawn(tf.LlamaForSequenceClassification, "llama"),
        small.drawn(tf.BertModel, "bert"),
        with_cross_attention,
        with_dynamic_angles,
        with_router_loss,
    ]
    refusals = []
    for model in models:
        with pytest.raises(NotImplementedError) as refusal:
            attach(model, mesh=dist.group.WORLD)
        refusals.append(f"{refusal.value} {model.config._attn_implementation}")
    return refusals


def test_models_that_cannot_be_divided_are_refused_and_stay_as_they_were(pools):
    words = (
        "'llama4_text' were not compared",
        "belong to a whole sequence",
        "pooler reads the first position",
        "a second sequence",
        "'dynamic', whose frequencies",
        "output_router_logits=False",
    )
    for refusals in pools(2).run(of_other_kinds):
        for refusal, expected in zip(refusals, words, strict=True):
            assert expected in refusal
            assert refusal.endswith("Nothing was changed sdpa")


def test_options_of_a_division_need_processes():
    with pytest.raises(ArgumentError, match="give the mesh too"):
        attach(small_model("llama"), layout="zigzag")
    with pytest.raises(ArgumentError, match="layout is 'star'"):
        attach(small_model("llama"), layout="star")
    with pytest.raises(UnsupportedError, match="init_process_group"):
        attach(small_model("llama"), mesh=3)
    with pytest.raises(UnsupportedError, match="init_process_group"):
        part_of_batch(batch(), None)
    with pytest.raises(ArgumentError, match="the batch has position_ids"):
        part_of_batch(batch() | {"position_ids": torch.zeros(1, LENGTH)}, None)
    with pytest.raises(ArgumentError, match="give those of the whole sequence"):
        part_of_batch({"input_ids": [1, 2]}, None)
