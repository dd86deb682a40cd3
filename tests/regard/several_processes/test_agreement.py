"""Processes agree on every number that an option holds, or refuse the call together and name the option."""

from typing import Any

import torch
import torch.distributed as dist

import regard
from regard import bias, distributed
from regard import patterns as p
from regard.distributed import api


class ByTable(bias.Bias):
    def __init__(self, scale: float) -> None:
        self.table = torch.arange(64.0) * scale

    def by_distance(self, distances, heads):
        return self.table[distances.abs()][None]


def options(size: int) -> dict[str, dict[str, Any]]:
    """Options whose texts are alike and whose numbers are not; their names begin with that of the option."""
    weights = bias.T5Relative(2, buckets=8, max_distance=20)
    with torch.no_grad():
        weights.weight.copy_(torch.arange(16.0).view(8, 2) / size)
    score = {
        "mechanism": "softmax(general(4, 4))",
        "parameters": {"weight": torch.full((2, 4, 4), size / 7)},
    }
    return {
        "sink": {"sink": torch.tensor([0.5, size])},
        "bias": {"bias": weights},
        "bias of one's own": {"bias": ByTable(size)},
        "bias for all queries": {"bias": torch.full((12,), float(size))},
        "bias with slopes": {"bias": bias.ALiBi((0.1, size))},
        "parameters": score,
        "q_start": {"pattern": "causal", "q_start": torch.tensor([size])},
        "sink as a number": {"sink": float(size)},
        "pattern of documents": {"pattern": p.Causal() & p.SameDocument(torch.arange(12) // size)},
        "pattern with a mask": {
            "pattern": p.PerHead([p.Full(), ~p.Explicit(torch.ones(12, 12).tril(size).bool())])
        },
        "pattern of spans": {"pattern": p.KeySpan(torch.tensor([size]), None)},
    }


def call(options: dict[str, Any]) -> torch.Tensor:
    q, k, v = (
        torch.randn(1, 2, 6, 4, generator=torch.Generator().manual_seed(n)) for n in range(3)
    )
    return distributed.attention(q, k, v, dist.group.WORLD, **options)


def differing() -> dict[str, str]:
    """The message of each call whose number differs between the processes."""
    messages = {}
    for name, differing_options in options(2 + dist.get_rank()).items():
        messages[name] = refusal_of(differing_options)
    return messages


def refusal_of(options: dict[str, Any]) -> str:
    """The message with which a call is refused; "" if it is computed."""
    try:
        call(options)
    except regard.RegardError as error:
        return str(error)
    return ""


def test_a_number_that_an_option_holds_and_that_differs_is_refused_with_the_name_of_the_option(
    pools,
):
    for messages in pools(2).run(differing):
        for name, message in messages.items():
            assert "process 1 and process 0 make different calls" in message, name
            option = name.split()[0]
            second, first = message.split("Process 1 has ")[1].split("; process 0 has ")
            assert second.startswith(option), name
            assert first.startswith(option), name


def equal() -> bool:
    """Call with options that are equal on both processes, or that belong to one."""
    for equal_options in options(3).values():
        call(equal_options)
    call({"pattern": p.Where(lambda q_pos, k_pos: (q_pos - k_pos).abs() < 3)})
    bias_of_own_queries = torch.full((6, 12), float(dist.get_rank()))
    call({"bias": bias_of_own_queries})
    used = p.SameDocument(torch.arange(12) // 3)
    if dist.get_rank():  # what a pattern keeps of its use is not compared
        used.dense(12, 12)
    call({"pattern": used})
    return True


def test_equal_numbers_are_one_call(pools):
    assert pools(2).run(equal) == [True, True]


def stepped() -> list[str]:
    """What each call says while one process changes a sink in ways that PyTorch counts and does not count."""
    sink = torch.zeros(2)
    changes_sink = dist.get_rank() == 1

    def named_option() -> str:
        message = refusal_of({"sink": sink})
        return message.split("Process 1 has ")[1].split()[0] if message else ""

    at_first = named_option()
    if changes_sink:
        sink.data[0] = 1.0  # its _version stays the same
    after_a_hidden_change = named_option()
    if changes_sink:
        sink.zero_()
    return [at_first, after_a_hidden_change, named_option()]


def test_a_number_that_changed_since_the_last_call_is_compared_again(pools):
    assert pools(2).run(stepped) == [["", "sink", ""]] * 2


def test_what_processes_compare_depends_on_every_number_of_an_option():
    """In one process, where a fault can be planted."""

    def texts(name: str, size: int) -> list[str]:
        return [api.contents(value) for value in options(size)[name].values()]

    for name in options(2):
        assert texts(name, 2) == texts(name, 2) != texts(name, 3), name
