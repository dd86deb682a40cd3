"""Optimisers in checkpoints: saving changes nothing of them, and parameters without state have none after loading."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

from regard.distributed import load_checkpoint, save_checkpoint, shard_model
from regard.errors import CheckpointError, UnsupportedError

STEPS, LATE = 6, 3


class Partly(nn.Module):
    """`late` is used from the fourth step on, `never` never."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.late, self.never = nn.Linear(5, 7), nn.Linear(7, 7), nn.Linear(3, 11)

    def forward(self, x: torch.Tensor, late: bool) -> torch.Tensor:
        x = self.first(x).tanh()
        return self.late(x) if late else x


OPTIMISERS = {
    "AdamW": partial(torch.optim.AdamW, lr=1e-2),
    "AMSGrad": partial(torch.optim.Adam, lr=1e-2, amsgrad=True),
    "SGD": partial(torch.optim.SGD, lr=1e-2, momentum=0.9),
    "RAdam": partial(torch.optim.RAdam, lr=1e-2),
    "ASGD": partial(torch.optim.ASGD, lr=1e-2),
    "Adafactor": partial(torch.optim.Adafactor, lr=1e-2),
}


def partly(how: str, count: int, name: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    made = Partly().double()
    if how == "sharded":
        shard_model(made, init_device_mesh("cpu", (count,)))
    elif how == "tensor":
        plan = {"first": ColwiseParallel(output_layouts=Replicate()), "never": ColwiseParallel()}
        parallelize_module(made, init_device_mesh("cpu", (count,)), plan)
    return made, OPTIMISERS[name](made.parameters())


def advance(made: nn.Module, optimiser: torch.optim.Optimizer, first: int, last: int) -> list[torch.Tensor]:
    """The weights after these steps, of which each halves the learning rate."""
    x = torch.randn(11, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    for step in range(first, last):
        made(x, step >= LATE).square().mean().backward()
        optimiser.step()
        optimiser.zero_grad()
        optimiser.param_groups[0]["lr"] /= 2
    return whole_of(made.state_dict().values())


def whole_of(tensors: Iterable[Any]) -> list[torch.Tensor]:
    return [(one.full_tensor() if isinstance(one, DTensor) else one).detach().clone() for one in tensors]


def everything(optimiser: torch.optim.Optimizer) -> str:
    """All that an optimiser holds, as text, with its gradients."""
    kept = [[(key, repr(one)) for key, one in state.items()] for state in optimiser.state.values()]
    grads = [repr(one.grad) for group in optimiser.param_groups for one in group["params"]]
    return repr((kept, optimiser.param_groups, grads))


def begin_partly(folder: str, how: str, count: int, name: str, saved: int) -> bool:
    """Whether saving changed nothing."""
    made, optimiser = partly(how, count, name)
    advance(made, optimiser, 0, saved)
    before = everything(optimiser)
    save_checkpoint(folder, made, optimiser, values={"step": saved})
    return everything(optimiser) == before


def resume_partly(folder: str, how: str, count: int, name: str) -> tuple[int, list[torch.Tensor]]:
    """How many parameters have state after loading, and the weights after all steps."""
    made, optimiser = partly(how, count, name)
    step = load_checkpoint(folder, made, optimiser)["step"]
    return len(optimiser.state), advance(made, optimiser, step, STEPS)


@pytest.mark.parametrize("saved", [0, 2, LATE + 1])
@pytest.mark.parametrize("name", OPTIMISERS)
def test_an_optimiser_is_not_changed_by_saving_and_continues_to_the_same_bits(name, saved, tmp_path):
    expected = advance(*partly("one", 1, name), 0, STEPS)
    assert begin_partly(str(tmp_path), "one", 1, name, saved)
    held, found = resume_partly(str(tmp_path), "one", 1, name)
    assert held == {0: 0, 2: 2, LATE + 1: 4}[saved]  # weight and bias of `first`, then of `late` too
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


@pytest.mark.parametrize("saved", [0, 2])
@pytest.mark.parametrize("name", ["AdamW", "SGD"])
@pytest.mark.parametrize(("how", "count"), [("sharded", 4), ("tensor", 2), ("one", 1)])
def test_parameters_without_state_are_loaded_by_other_numbers_of_processes(how, count, name, saved, pools, tmp_path):
    expected = advance(*partly("one", 1, name), 0, STEPS)
    given = (str(tmp_path), how, count, name)
    assert begin_partly(*given, saved) if how == "one" else all(pools(count).run(begin_partly, *given, saved))
    for again, others in (("sharded", 2), ("tensor", 2), ("sharded", 4), ("one", 1)):
        given = (str(tmp_path), again, others, name)
        for held, found in [resume_partly(*given)] if again == "one" else pools(others).run(resume_partly, *given):
            assert held == saved
            for one, other in zip(found, expected, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_an_optimiser_with_gradients_and_without_state_keeps_both_when_it_is_saved(tmp_path):
    made, optimiser = partly("one", 1, "AdamW")
    made(torch.ones(3, 5, dtype=torch.float64), True).sum().backward()
    before = everything(optimiser)
    save_checkpoint(tmp_path, made, optimiser)
    assert everything(optimiser) == before
    assert not optimiser.state


def test_what_is_loaded_replaces_state_that_was_not_saved(tmp_path):
    begin_partly(str(tmp_path), "one", 1, "AdamW", 0)
    made, optimiser = partly("one", 1, "AdamW")
    advance(made, optimiser, 0, STEPS)
    load_checkpoint(tmp_path, made, optimiser)
    assert not optimiser.state
    expected = advance(*partly("one", 1, "AdamW"), 0, STEPS)
    assert all(torch.equal(*pair) for pair in zip(advance(made, optimiser, 0, STEPS), expected, strict=True))


def test_parameters_that_were_saved_in_other_groups_are_refused(tmp_path):
    made = Partly()
    groups = [{"params": one.parameters(), "lr": lr} for one, lr in ((made.first, 0.1), (made.late, 0.2))]
    save_checkpoint(tmp_path, made, torch.optim.SGD(groups))
    optimiser = torch.optim.SGD([*made.first.parameters(), *made.late.parameters()], lr=0.3)
    with pytest.raises(CheckpointError, match=r"saved with lr=0.1 and with lr=0.2; divide the parameters into groups"):
        load_checkpoint(tmp_path, made, optimiser)
    assert optimiser.param_groups[0]["lr"] == 0.3


def test_state_that_is_no_number_is_refused_with_its_name(tmp_path):
    made = nn.Linear(2, 3)
    optimiser = torch.optim.SGD(made.parameters(), momentum=0.9)
    optimiser.state[made.bias]["momentum_buffer"] = None
    with pytest.raises(UnsupportedError, match=r"optimiser.state.bias.momentum_buffer is NoneType"):
        save_checkpoint(tmp_path, made, optimiser)
    assert not list(tmp_path.iterdir())


def test_nested_state_is_saved_and_loaded(tmp_path):
    made = nn.Linear(2, 3)
    optimisers = [torch.optim.SGD(made.parameters()) for _ in range(2)]
    optimisers[0].state[made.bias].update(outer={"inner": torch.arange(7.0)}, count=5)
    save_checkpoint(tmp_path, made, optimisers[0])
    load_checkpoint(tmp_path, made, optimisers[1])
    assert list(optimisers[1].state) == [made.bias]
    loaded = optimisers[1].state[made.bias]
    assert loaded["count"] == 5
    assert torch.equal(loaded["outer"]["inner"], torch.arange(7.0))
