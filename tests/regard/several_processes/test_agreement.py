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
    found = {}
    for what, given in options(2 + dist.get_rank()).items():
        try:
            call(given)
            found[what] = ""
        except regard.RegardError as error:
            found[what] = str(error)
    return found


def test_a_number_that_an_option_holds_and_that_differs_is_refused_with_the_name_of_the_option(
    pools,
):
    for messages in pools(2).run(differing):
        for what, message in messages.items():
            assert "process 1 and process 0 make different calls" in message, what
            option = what.split()[0]
            there, here = message.split("Process 1 has ")[1].split("; process 0 has ")
            assert there.startswith(option), what
            assert here.startswith(option), what


def equal() -> bool:
    """Call with options that are equal on both processes, or that belong to one."""
    for given in options(3).values():
        call(given)
    call({"pattern": p.Where(lambda q_pos, k_pos: (q_pos - k_pos).abs() < 3)})
    call({"bias": torch.full((6, 12), float(dist.get_rank()))})  # of the queries of this process
    used = p.SameDocument(torch.arange(12) // 3)
    used.dense(
        12, 12
    ) if dist.get_rank() else None  # what a pattern keeps of its use is not compared
    call({"pattern": used})
    return True


def test_equal_numbers_are_one_call(pools):
    assert pools(2).run(equal) == [True, True]


def stepped() -> list[str]:
    """What each call says while one process changes a sink in ways that PyTorch counts and does not count."""
    sink = torch.zeros(2)
    said = []
    for change in range(3):
        if change and dist.get_rank():
            if change == 1:
                sink.data[0] = 1.0  # its _version stays the same
            else:
                sink.zero_()
        try:
            call({"sink": sink})
            said.append("")
        except regard.RegardError as error:
            said.append(str(error).split("Process 1 has ")[1].split()[0])
    return said


def test_a_number_that_changed_since_the_last_call_is_compared_again(pools):
    assert pools(2).run(stepped) == [["", "sink", ""]] * 2


def test_what_processes_compare_depends_on_every_number_of_an_option():
    """In one process, where a fault can be planted."""
    for what in options(2):
        first, again, other = (
            [api.contents(x) for x in options(size)[what].values()] for size in (2, 2, 3)
        )
        assert first == again != other, what
