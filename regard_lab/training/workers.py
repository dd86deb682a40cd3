"""The processes that train together, through Accelerate, and the weights they share (FSDP2).

One process alone is the ordinary case. With FSDP2 each process holds a part of every tensor, and a layer is whole
while it computes.

Source: PyTorch FSDP, Zhao et al. 2023; its second form is `torch.distributed.fsdp.fully_shard`.
"""

from __future__ import annotations

import copy
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from regard.errors import ArgumentError, MissingPackageError
from regard.packages import install_line
from regard_lab.training.config import TrainingConfig


class Workers:
    """The processes that train together, as one of them sees them: its device, its rank, and sums over all.

    Args:
        cpu: compute on the CPU even where there is an accelerator.
        parallel: what they share, see `TrainingConfig`.

    Raises:
        MissingPackageError: Accelerate is not installed.

    >>> Workers(cpu=True).sum(2.0, 3)
    [2.0, 3.0]
    """

    def __init__(self, cpu: bool = False, parallel: str = TrainingConfig.parallel) -> None:
        try:
            from accelerate import Accelerator
        except ImportError as error:
            raise MissingPackageError(f"training needs the package accelerate; {install_line('train')}") from error
        self._accelerator = Accelerator(cpu=cpu, mixed_precision="no")  # precision is the engine's, for this run only
        self.rank: int = self._accelerator.process_index
        self.count: int = self._accelerator.num_processes
        self.is_main: bool = self._accelerator.is_main_process
        self.device: torch.device = self._accelerator.device
        self.shares_weights = parallel == "fsdp"

    def prepare(self, model: torch.nn.Module) -> torch.nn.Module:
        """The model on this process's device; with others, wrapped or cut so that gradients are averaged over all."""
        if self.shares_weights:
            return shard(model, self.device, self.count)
        return self._accelerator.prepare_model(model)

    def to_device(self, batch: Any) -> Any:
        """A batch on this process's device: tensors in tuples, lists and dicts, or an object with `.to`."""
        from accelerate.utils import send_to_device

        return send_to_device(batch, self.device)

    @contextmanager
    def gradients(self, model: torch.nn.Module, *, meet: bool) -> Generator[None]:
        """Within it, backward adds to this process's gradients; `meet` averages them over all processes."""
        if self.shares_weights:
            model.set_requires_gradient_sync(meet)  # ty: ignore[not-callable]
            yield
        elif meet:
            yield
        else:
            with self._accelerator.no_sync(model):
                yield

    def sum(self, *numbers: float) -> list[float]:
        """Each number summed over the processes."""
        if self.count == 1:
            return [float(number) for number in numbers]
        total = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        return self._accelerator.reduce(total, reduction="sum").tolist()

    def any(self, *flags: bool) -> list[bool]:
        """Whether each flag is raised in any process; the answer is the same in all."""
        return [total > 0 for total in self.sum(*map(float, flags))]

    def wait(self) -> None:
        """Wait until every process has reached this point."""
        self._accelerator.wait_for_everyone()


def shard(model: nn.Module, device: torch.device, processes: int) -> nn.Module:
    """Cut each tensor of a model into one part for each process, layer by layer, in place.

    Args:
        model: the same on every process; each module of its lists is gathered and released by itself.
        device: where it computes.
        processes: how many train together.

    Raises:
        ArgumentError: there is one process only.

    >>> shard(nn.Linear(2, 1), torch.device("cpu"), processes=1)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    regard.errors.ArgumentError: parallel is 'fsdp', which shares weights among processes, and there is 1; ...
    """
    if processes < 2:
        raise ArgumentError(
            f"parallel is 'fsdp', which shares weights among processes, and there is {processes}; start two or more "
            f"with torchrun --nproc-per-node, or leave it out"
        )
    from torch.distributed.device_mesh import init_device_mesh

    from regard.distributed import shard_model

    return shard_model(model.to(device), init_device_mesh(device.type, (processes,)))


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor. Where it is in parts every process takes part in the call; a plain tensor is whole already."""
    gather = getattr(tensor, "full_tensor", None)
    return tensor if gather is None else gather()


def gathered(tensors: Mapping[str, torch.Tensor], *, keep: bool) -> dict[str, torch.Tensor]:
    """The same tensors, each whole: what was in parts one after the other, on the CPU. Every process takes part, and
    those that do not `keep` it have nothing of it."""
    found = {}
    for name, tensor in tensors.items():
        full = whole(tensor)
        if keep:
            found[name] = full if full is tensor else full.cpu()
    return found


def whole_state(model: nn.Module, *, keep: bool = True) -> dict[str, torch.Tensor]:
    """The model's tensors by name, gathered; those that are one (tied weights) are gathered once and stay one."""
    state = model.state_dict()
    parameters = {name: id(tensor) for name, tensor in model.named_parameters(remove_duplicate=False)}
    first: dict[int, str] = {}
    names = {name: first.setdefault(parameters.get(name, id(tensor)), name) for name, tensor in state.items()}
    found = gathered({name: state[name] for name in first.values()}, keep=keep)
    return {name: found[names[name]] for name in state} if keep else {}


def parted(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """This process's part of a whole tensor, cut as `like` is; the tensor itself where that is in one piece."""
    if not hasattr(like, "full_tensor") or tensor.shape != like.shape:
        return tensor
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(like, DTensor)
    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def hollow(model: nn.Module) -> nn.Module:
    """A copy of a model whose weights take no memory."""
    empty = {
        id(tensor): nn.Parameter(tensor.detach().to("meta"), tensor.requires_grad) for tensor in model.parameters()
    }
    return copy.deepcopy(model, empty)


def filled(shell: nn.Module, state: dict[str, torch.Tensor]) -> nn.Module:
    """A copy from `hollow` with weights again."""
    model = copy.deepcopy(shell)
    model.load_state_dict(state, assign=True)
    return model
