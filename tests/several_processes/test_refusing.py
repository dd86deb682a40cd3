"""What several processes refuse, they refuse together and with a sentence."""

from __future__ import annotations

import os
import time

import pytest
import torch
import torch.distributed as dist

from regard import distributed
from regard.errors import ArgumentError, RegardError, ShapeError, UnsupportedError
from several_processes.calls import Case
from several_processes.pool import Pool


def call(**options):
    """A call that differs by process where an option is a list."""
    rank = dist.get_rank()
    mine = {name: one[rank] if isinstance(one, list) else one for name, one in options.items()}
    dim = mine.pop("head_dim", 4)
    learning = mine.pop("learning", False)
    x = torch.randn(1, 2, 6, dim, requires_grad=learning)
    distributed.attention_detail(x, x, x, dist.group.WORLD, **mine)


def refused(pools, **options):
    messages = pools(2).refusals(run, options)
    assert all(messages), messages
    return messages


def run(options):
    call(**options)


def test_different_calls_are_refused_on_every_process(pools):
    for message in refused(pools, pattern=["causal", "full"]):
        assert "process 1 and process 0 make different calls" in message
    assert "different calls" in refused(pools, form=["ring", "gather"])[0]


def test_a_process_that_refuses_its_own_part_does_not_leave_the_others_waiting(pools):
    began = time.monotonic()
    own, other = refused(pools, softcap=[-1.0, 2.0])
    assert "softcap" in own
    assert "refused on process 0" in other
    assert time.monotonic() - began < 10


def test_gradients_on_one_process_alone_are_refused(pools):
    assert "gradients are needed on process 0 and not on the others" in refused(pools, learning=[True, False])[1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"want": "weights"}, "each row would hold the keys of all"),
        ({"mechanism": "random_feature(features=8, seed=0)"}, "cannot be merged"),
        ({"mechanism": "lsh(chunk=4)"}, "cannot be merged"),
        ({"layout": "spiral"}, "layout 'spiral' does not exist"),
        ({"form": "star"}, "form 'star' does not exist"),
        ({"causal": True}, "write pattern='causal'"),
        ({"mechanism": "linear", "pattern": "causal_window(4)"}, "not causal_window"),
    ],
)
def test_what_cannot_be_honoured_says_why(options, words, pools):
    assert all(words in message for message in refused(pools, **options))


def test_a_bias_needs_the_keys_of_all(pools):
    assert "the keys of all: (..., 6 or 1, 12 or 1)" in refused(pools, bias=torch.zeros(6, 6))[0]


def test_processes_that_do_not_know_each_other():
    x = torch.zeros(1, 1, 2, 4)
    with pytest.raises(UnsupportedError, match="init_process_group"):
        distributed.attention(x, x, x, None)


def test_second_derivatives_are_refused(pools):
    for message in pools(2).refusals(twice):
        assert "no second derivatives" in message


def twice():
    x = torch.randn(1, 1, 4, 4, requires_grad=True)
    output = distributed.attention(x, x, x, dist.group.WORLD)
    torch.autograd.grad(output.sum(), x, create_graph=True)


def test_layouts_and_parts_are_checked():
    with pytest.raises(ArgumentError, match="0 or more"):
        distributed.Layout("contiguous", (3, -1))
    with pytest.raises(ShapeError, match="the layout divides 7"):
        distributed.part(torch.zeros(6), distributed.Layout("contiguous", (4, 3)), 0, dim=0)


def repeat(case: Case, dying: int) -> None:
    """Calls attention again and again; one process is killed in the midst."""
    x = torch.randn(1, 2, 64, 8)
    for step in range(10_000):
        if step == 20 and dist.get_rank() == dying:
            os.kill(os.getpid(), 9)
        distributed.attention(x, x, x, dist.group.WORLD, form="ring")


def test_killing_one_of_four_ends_the_others_with_a_sentence_within_the_timeout():
    pool = Pool(4, timeout=15)
    began = time.monotonic()
    for end in pool.ends:
        end.send((repeat, (None, 2)))
    for rank in (0, 1, 3):
        assert pool.ends[rank].poll(40)
        _, message, _ = pool.ends[rank].recv()
        assert "lost another one while" in message
        assert "Start all again" in message
    assert time.monotonic() - began < 40
    pool.ends[2].close()
    pool.ends = [end for rank, end in enumerate(pool.ends) if rank != 2]
    pool.close()


def test_the_errors_are_of_one_family():
    assert issubclass(UnsupportedError, RegardError)
