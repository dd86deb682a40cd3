"""After an interruption on one process no other one computes with numbers of another call."""

import inspect
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
import transformers as tf
from injections import Line, interrupted, lines_of
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import parallelize_module

import regard as rg
from regard import distributed
from regard.distributed.group import Group
from regard.integrations.transformers import attach


def call(number: int, group: object) -> torch.Tensor:
    numbers = torch.Generator().manual_seed(number + 7 * dist.get_rank())
    q, k, v = (torch.randn(1, 2, 6, 4, generator=numbers) for _ in range(3))
    return distributed.attention(q, k, v, group, pattern="causal")


def layer_call(number: int, group: object) -> torch.Tensor:
    torch.manual_seed(5)
    layer = rg.MultiHeadAttention(8, 2, pattern="causal", positions="rotary")
    mesh = DeviceMesh.from_group(group, "cpu")
    layer = parallelize_module(layer, mesh, distributed.ContextParallel())
    with torch.no_grad():
        return layer(
            torch.randn(
                1, 6, 8, generator=torch.Generator().manual_seed(number + 7 * dist.get_rank())
            )
        )


CALLS = {"function": call, "layer": layer_call}


def first_in(function: Any, lines: list[Line]) -> int:
    """The place of the first line of a function of regard among some lines."""
    text, start = inspect.getsourcelines(function)
    of_function = range(start, start + len(text))
    return next(
        at
        for at, (file, line, _) in enumerate(lines)
        if file.endswith("group.py") and line in of_function
    )


def interrupting(name: str, share: float) -> tuple[str, bool]:
    """What the call after an interruption on process 0 says, and whether one with another group gives the same bits."""
    run = CALLS[name]
    group = dist.new_group()
    second_group = dist.new_group()
    known = run(2, group)
    _ = run(1, group)
    lines = lines_of(partial(run, 1, group))
    begun = first_in(Group.begin, lines) + 2
    met = first_in(Group.gather, lines)
    if dist.get_rank() == 0:
        assert interrupted(partial(run, 1, group), lines[begun + int(share * (met - begun))])
    try:
        run(2 - dist.get_rank(), group)
        said = ""
    except rg.RegardError as error:
        said = str(error)
    return said, torch.equal(run(2, second_group), known)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("name", CALLS)
def test_the_next_call_of_an_interrupted_process_does_not_meet_the_last_one_of_the_others(
    name, share, pools
):
    for said, alike in pools(2).run(interrupting, name, share):
        assert "calls: one was interrupted, and the others went on" in said
        assert alike


def interrupted_model() -> bool:
    """Whether a model whose forward was interrupted computes the same bits afterwards."""
    torch.manual_seed(3)
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
    }
    model = tf.LlamaForCausalLM(
        tf.LlamaConfig(vocab_size=31, num_key_value_heads=2, **sizes)
    ).eval()
    attach(model, mesh=dist.new_group())
    ids = torch.arange(12)[None] if dist.get_rank() else torch.arange(12, 24)[None]
    with torch.no_grad():
        known = model(ids).logits

        def stop(*_: object) -> None:
            raise KeyboardInterrupt

        handle = model.lm_head.register_forward_pre_hook(stop)
        with pytest.raises(KeyboardInterrupt):
            model(ids)
        handle.remove()
        return torch.equal(model(ids).logits, known)


def test_a_model_whose_forward_was_interrupted_computes_over_all_processes_again(pools):
    assert pools(2).run(interrupted_model) == [True, True]
