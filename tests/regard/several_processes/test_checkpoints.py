"""Checkpoints of divided models: other numbers of processes load them, damage changes nothing, optimisers keep all."""

from __future__ import annotations

import json
import pickle
import shutil
import time
from collections.abc import Iterable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

from regard.distributed import load_checkpoint, save_checkpoint, shard_model, tensor_parallel_plan
from regard.errors import ArgumentError, CheckpointError, RegardError
from regard.layers import FeedForward, MultiHeadAttention
from regard.storage.sealed_json import render_sealed

IDS = torch.randint(4, 50, (8, 9), generator=torch.Generator().manual_seed(2))
STEPS, SAVED, LATE = 6, 3, 3


class Small(nn.Module):
    """A language model of one layer; `kv_heads` changes the shape of its keys."""

    def __init__(self, kv_heads: int = 2) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.embedding, self.norm, self.head = nn.Embedding(50, 16), nn.LayerNorm(16), nn.Linear(16, 50, bias=False)
        attention = MultiHeadAttention(dim=16, heads=4, kv_heads=kv_heads, pattern="causal", positions="rotary")
        self.layers = nn.ModuleList([attention, FeedForward(16, 22, "swiglu")])
        self.double()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(self.norm(x))


def divided(how: str, count: int) -> tuple[nn.Module, torch.Tensor]:
    """The model as `count` processes hold it, and the rows that this process reads."""
    made = Small()
    if how == "one":
        return made, IDS
    if how == "tensor":
        return parallelize_module(made, init_device_mesh("cpu", (count,)), tensor_parallel_plan(made)), IDS
    if how == "both":
        mesh = init_device_mesh("cpu", (count // 2, 2), mesh_dim_names=("rows", "heads"))
        parallelize_module(made, mesh["heads"], tensor_parallel_plan(made))
        return shard_model(made, mesh["rows"]), IDS.chunk(count // 2)[mesh.get_local_rank("rows")]
    return shard_model(made, init_device_mesh("cpu", (count,))), IDS.chunk(count)[dist.get_rank()]


def optimiser_of(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=1e-2, betas=(0.8, 0.95))


def train(module: nn.Module, optimiser: torch.optim.Optimizer, rows: torch.Tensor, steps: int, how: str) -> list[float]:
    """The loss over all rows at each step."""
    losses = []
    for _ in range(steps):
        logits = module(rows)
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), rows[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        total = loss.detach().clone()
        if how != "one":
            dist.all_reduce(total, dist.ReduceOp.AVG if dist.get_backend() == "nccl" else dist.ReduceOp.SUM)
            total /= dist.get_world_size()
        losses.append(total.item())
    return losses


def begin(folder: str, how: str, count: int) -> tuple[list[float], int]:
    module, rows = divided(how, count)
    optimiser = optimiser_of(module)
    losses = train(module, optimiser, rows, SAVED, how)
    save_checkpoint(folder, module, optimiser, values={"step": SAVED, "losses": losses})
    losses += train(module, optimiser, rows, STEPS - SAVED, how)
    here = [one.to_local() if isinstance(one, DTensor) else one for one in module.parameters()]
    return losses, sum(one.numel() for one in here)


def resume(folder: str, how: str, count: int) -> tuple[dict[str, Any], list[float]]:
    module, rows = divided(how, count)
    for one in module.parameters():
        nn.init.zeros_(one)
    optimiser = torch.optim.AdamW(module.parameters(), lr=5.0)
    values = load_checkpoint(folder, module, optimiser)
    return values, train(module, optimiser, rows, STEPS - SAVED, how)


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> tuple[Path, list[float]]:
    folder = tmp_path_factory.mktemp("alone")
    return folder, begin(str(folder), "one", 1)[0]


@pytest.mark.parametrize(("how", "count"), [("sharded", 4), ("tensor", 2), ("both", 4)])
def test_saved_by_several_and_resumed_by_two_and_one_the_losses_are_those_of_one(how, count, alone, pools, tmp_path):
    folder = str(tmp_path / "checkpoint")
    whole = sum(one.numel() for one in Small().parameters())
    for losses, held in pools(count).run(begin, folder, how, count):
        assert losses == pytest.approx(alone[1], abs=1e-10)
        assert held < 0.8 * whole
    assert len(list(Path(folder).glob("shard-*"))) == count
    for others, again in ((2, "sharded"), (2, "tensor"), (4, "sharded"), (1, "one")):
        loaded = [resume(folder, again, 1)] if again == "one" else pools(others).run(resume, folder, again, others)
        for values, losses in loaded:
            assert values["step"] == SAVED
            assert losses == pytest.approx(alone[1][SAVED:], abs=1e-10)


# Damage: what is read is verified before it is loaded


@pytest.fixture(scope="module")
def whole(pools, tmp_path_factory) -> str:
    """A checkpoint of two processes."""
    folder = str(tmp_path_factory.mktemp("whole"))
    pools(2).run(begin, folder, "sharded", 2)
    return folder


def spoil(folder: str, fault: str) -> None:
    paths = sorted(Path(folder).glob("shard-*"))
    manifest = Path(folder) / "checkpoint.json"
    if fault == "bit":
        data = bytearray(paths[-1].read_bytes())
        data[-5] ^= 4
        paths[-1].write_bytes(data)
    elif fault == "missing":
        paths[0].unlink()
    elif fault == "manifest":
        manifest.write_text(manifest.read_text().replace('"step": 3', '"step": 4'))
    else:
        resealed(manifest, fault)


def resealed(manifest: Path, fault: str) -> None:
    """A manifest with a valid seal and a wrong claim."""
    content = json.loads(manifest.read_text())
    del content["sha256"]
    name, (_, _, places) = next((name, one) for name, one in content["tensors"].items() if len(one[2]) > 1)
    if fault == "path":
        places[0][2] = "../../elsewhere.safetensors"
        content["files"]["../../elsewhere.safetensors"] = "0" * 64
    elif fault == "overlap":
        places[1] = [places[0][0], places[1][1], places[1][2]]
    elif fault == "outside":
        places[1][0] = [at + 1 for at in places[1][0]]
    elif fault == "kind":
        content["tensors"][name][0] = "F7"
    elif fault in ("state", "memory"):
        name = next(one for one in content["tensors"] if one.endswith("exp_avg") and one.startswith("optimiser"))
        _, shape, places = content["tensors"][name]
        more = 1 if fault == "state" else 2**59
        shape[0], places[-1][1][0] = shape[0] + more, places[-1][1][0] + more
    manifest.write_bytes(render_sealed(content))


FAULTS = {
    "bit": "SHA-256",
    "missing": "cannot be read",
    "manifest": "does not match its own SHA-256",
    "path": "is no file of a checkpoint",
    "overlap": "overlap",
    "outside": "lies outside it, or in no file",
    "kind": "is not the manifest of a checkpoint",
    "state": "with other sizes or numbers than checkpoint.json names",
    "memory": "there is no memory for optimiser.state.",
}


def refused(folder: str, count: int) -> tuple[str, float]:
    """The refusal, how far the weights have moved, and how many of them the new optimiser has state of."""
    module, _ = divided("sharded", count)
    optimiser = optimiser_of(module)
    before = [one.to_local().clone() for one in module.parameters()]
    try:
        load_checkpoint(folder, module, optimiser)
    except CheckpointError as error:
        moved = [
            (one.to_local() - old).abs().sum().item() for one, old in zip(module.parameters(), before, strict=True)
        ]
        return str(error), sum(moved) + len(optimiser.state)
    return "", 0.0


@pytest.mark.parametrize("fault", FAULTS)
def test_a_damaged_checkpoint_changes_no_weight_and_no_optimiser_of_any_process(fault, whole, pools, tmp_path):
    folder = str(tmp_path / "spoilt")
    shutil.copytree(whole, folder)
    spoil(folder, fault)
    refusals = pools(2).run(refused, folder, 2)
    assert any(FAULTS[fault] in message for message, _ in refusals), refusals
    assert all(message and not moved for message, moved in refusals), refusals


# What one process refuses, or does not see, all refuse


def wrong_on_one(folder: str, what: str) -> tuple[str, float]:
    """What saving or loading raises, and the seconds until then, where process 1 alone has a reason."""
    here, made = Path(folder), nn.Linear(3, 5)
    optimiser, values = optimiser_of(made), {"step": 2}
    if dist.get_rank() == 1:
        values = {"step": float("nan") if what == "values" else 2}
        made = nn.Linear(3, 7) if what == "sizes" else made
        optimiser = optimiser_of(made)
        here /= {"missing": "none", "other": "other"}.get(what, ".")
    began = time.monotonic()
    try:
        if what in ("missing", "other", "sizes"):
            load_checkpoint(here, made, optimiser)
        else:
            save_checkpoint(here, made, optimiser, values=values)
    except RegardError as error:
        return str(error), time.monotonic() - began
    return "", 0.0


ALONE = {
    "values": "this content cannot be stored as JSON",
    "missing": "none/checkpoint.json cannot be read: No such file",
    "other": "holds one checkpoint on process 0 and another on process 1; the folder must be one that all",
    "sizes": "bias is torch.float32 (5,) and here torch.float32 (7,)",
}


@pytest.mark.parametrize("what", ALONE)
def test_what_one_process_refuses_all_refuse_at_once_and_the_checkpoint_is_kept(what, pools, tmp_path):
    made = nn.Linear(3, 5)
    for folder, step in ((tmp_path, 1), (tmp_path / "other", 3)):
        save_checkpoint(folder, made, optimiser_of(made), values={"step": step})
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    (other, waited), (own, refused_in) = pools(2).run(wrong_on_one, str(tmp_path), what)
    assert "on process 1" in other
    assert all(ALONE[what] in message for message in (other, own))
    assert max(waited, refused_in) < 10  # and not the timeout of the group
    assert before == {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    assert load_checkpoint(tmp_path, made, optimiser_of(made)) == {"step": 1}


def save_apart(folder: str, apart: bool, cut: bool) -> None:
    """Save to one folder or, as with disks of their own, to one for each process, where parts may be cut."""
    made = shard_model(nn.Linear(3, 7), init_device_mesh("cpu", (2,)))
    here = Path(folder) / str(dist.get_rank() if apart else 0)
    if cut and dist.get_rank() == 0:
        (here / f"shard-{'a' * 16}-00001.safetensors").write_bytes(b"{}")
    with mock.patch("secrets.token_hex", return_value="a" * 16) if cut else nullcontext():
        save_checkpoint(here, made, values={"step": 2 if apart else 1})


@pytest.mark.parametrize("cut", [False, True])
def test_a_part_that_process_0_does_not_see_is_refused_and_the_checkpoint_is_kept(cut, pools, tmp_path):
    pools(2).run(save_apart, str(tmp_path), False, False)
    for message in pools(2).refusals(save_apart, str(tmp_path), True, cut):
        assert ("process 0 finds 2 bytes in" if cut else "process 0 does not find") in message
        assert "process 1 wrote" in message
        assert "the folder must be one that all processes see" in message
    assert not (tmp_path / "1" / "checkpoint.json").exists()
    assert load_checkpoint(tmp_path / "0", nn.Linear(3, 7)) == {"step": 1}
    pools(2).run(save_apart, str(tmp_path), False, False)
    assert len(list((tmp_path / "0").iterdir())) == 3


def test_nothing_is_unpickled(alone, monkeypatch):
    def caught(*_: Any, **__: Any) -> None:
        raise AssertionError("unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, caught)
    assert resume(str(alone[0]), "one", 1)[0]["step"] == SAVED


def test_another_model_or_optimiser_is_refused_with_the_differences(alone):
    for other, optimiser, words in (
        (Small(kv_heads=4), optimiser_of, r"to_k.weight is torch.float64 \(8, 16\) and here torch.float64 \(16, 16\)"),
        (Small(), lambda _: None, "optimiser: it was saved with an optimiser; give one to load_checkpoint; load"),
        (Small(), lambda made: torch.optim.SGD(made.parameters(), momentum=0.9), r"momentum.* is missing"),
    ):
        given = optimiser(other)
        with pytest.raises(CheckpointError, match=words):
            load_checkpoint(alone[0], other, given)
        assert not (given and given.state)
    with pytest.raises(ArgumentError, match="a parameter that is not one of the model's"):
        load_checkpoint(alone[0], Small(), optimiser_of(Small()))


def test_a_save_that_fails_leaves_the_checkpoint_before_it(tmp_path, monkeypatch):
    made = Small()
    save_checkpoint(tmp_path, made, values={"step": 1})
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with torch.no_grad():
        next(made.parameters()).add_(1)  # the same numbers would not show a file that was written over
    monkeypatch.setattr(
        "regard.distributed.checkpoint.Manifest.write", lambda *_: (_ for _ in ()).throw(OSError("full"))
    )
    with pytest.raises(CheckpointError, match="was not saved; on process 0: full"):
        save_checkpoint(tmp_path, made, values={"step": 2})
    monkeypatch.undo()
    assert before.items() <= {path.name: path.read_bytes() for path in tmp_path.iterdir()}.items()
    assert load_checkpoint(tmp_path, Small()) == {"step": 1}
    save_checkpoint(tmp_path, made, values={"step": 3})
    assert len(list(tmp_path.iterdir())) == 2  # what the failed save left is gone


# Optimisers: saving changes nothing of them, and parameters without state have none after loading


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
    "SGD": partial(torch.optim.SGD, lr=1e-2, momentum=0.9),
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


@pytest.mark.parametrize("name", OPTIMISERS)
def test_an_optimiser_is_not_changed_by_saving_and_continues_to_the_same_bits(name, tmp_path):
    expected = advance(*partly("one", 1, name), 0, STEPS)
    for saved, states in ((0, 0), (2, 2), (LATE + 1, 4)):  # weight and bias of `first`, then of `late` too
        assert begin_partly(str(tmp_path), "one", 1, name, saved)
        held, found = resume_partly(str(tmp_path), "one", 1, name)
        assert held == states
        assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("how", "count", "name", "saved"),
    [("sharded", 4, "AdamW", 2), ("sharded", 4, "SGD", 0), ("tensor", 2, "SGD", 2), ("tensor", 2, "AdamW", 0),
     ("one", 1, "AdamW", 2)],
)  # fmt: skip
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
