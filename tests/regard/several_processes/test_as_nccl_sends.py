"""What NCCL needs of the messages, with gloo: late messages, a collective first, dense tensors, devices of the group.

NCCL reads what is sent, and writes what is received, at some time before `wait` returns. Here both happen in `wait`
alone: a buffer that is read too early holds NaN, and one that is changed too early sends other numbers.
"""

from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from regard.distributed.group import Group
from regard.errors import UnsupportedError
from several_processes import calls, test_passed_states
from several_processes.calls import SharedCall
from several_processes.test_equals_one_process import EVERY, check


@dataclass
class Late:
    """A batch of messages that travels in `wait`."""

    ops: list[dist.P2POp]
    batch: Any

    def wait(self) -> None:
        for work in self.batch(self.ops):
            work.wait()


@contextmanager
def as_nccl():
    """Within it, messages are late, and checked to be such as NCCL sends."""
    batch = dist.batch_isend_irecv
    gather = dist.all_gather
    collectives = []

    def late(ops: list[dist.P2POp]) -> list[Any]:
        reason = (
            "the first exchange of a group on NCCL has to be one that all processes take part in"
        )
        assert collectives, reason
        for op in ops:
            assert op.tensor.is_contiguous()
            if op.op is dist.irecv:
                op.tensor.fill_(torch.nan if op.tensor.is_floating_point() else 77)
        return [Late(ops, batch)]

    def collective(*tensors: Any, **options: Any) -> Any:
        collectives.append("all_gather")
        return gather(*tensors, **options)

    with (
        patch.object(dist, "batch_isend_irecv", late),
        patch.object(dist, "all_gather", collective),
    ):
        yield


@as_nccl()
def lately(case: SharedCall) -> dict[str, Any]:
    return calls.on_processes(case)


LENGTHS = (9, 6, 0, 11)
BIGBIRD = "sliding_window(4) | global_tokens(0, 20) | random_blocks(1, block=4, seed=1)"


@pytest.mark.parametrize("form", ["gather", "ring"])
@pytest.mark.parametrize(("pattern", "layout"), [("causal", "zigzag"), (BIGBIRD, "contiguous")])
def test_late_messages_give_the_same(pattern, layout, form, pools):
    options = {"pattern": pattern, "softcap": 2.0}
    check(SharedCall("late", LENGTHS, options, layout=layout, form=form, want=EVERY), pools, lately)


def summed(late: bool) -> float:
    """The sum of an output whose sums are passed on."""
    with as_nccl() if late else nullcontext():
        return test_passed_states.passed(4, "performer", True)["output"].sum()


def test_late_sums_give_the_same(pools):
    assert pools(4).run(summed, True) == pytest.approx(pools(4).run(summed, False), abs=1e-10)


@pytest.mark.parametrize(
    ("config", "sent", "words"),
    [
        ("cuda:nccl", "cuda", "q is on cpu, and this group sends tensors on cuda by nccl"),
        ("cpu:gloo,cuda:nccl", "cpu", ""),
        (
            "cpu:gloo,cuda:gloo,meta:gloo",
            "cpu",
            "q is on meta, and this group sends tensors on cpu by gloo;",
        ),
        ("meta:nccl", "meta", ""),
    ],
)
def test_a_group_sends_from_the_devices_of_its_backends(config, sent, words):
    group = Group(SimpleNamespace(), 0, 2)
    with patch.object(dist, "get_backend_config", lambda handle: config):
        assert group.device.type == sent
        x = torch.zeros(2, device="meta")
        assert group.device_for(x).type == ("meta" if "meta" in config else sent)
        assert group.device_for(None).type == sent
        device = torch.device("meta" if "meta" in config else "cpu")
        with pytest.raises(UnsupportedError) if words else nullcontext() as refusal:
            group.check_device(device)
    assert refusal is None or words in str(refusal.value)


def test_the_device_given_to_init_process_group_is_used():
    group = Group(SimpleNamespace(bound_device_id=torch.device("cuda", 3)), 0, 2)
    with patch.object(dist, "get_backend_config", lambda handle: "cuda:nccl"):
        assert group.device == torch.device("cuda", 3)
