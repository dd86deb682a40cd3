"""The processes that train together, through Accelerate: one alone is the ordinary case."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch

from regard.errors import MissingPackageError
from regard.training.sharding import shard


class Workers:
    """This process among its equals: where it computes, and what all of them know together.

    Args:
        cpu: compute on the CPU even where there is an accelerator.
        parallel: what they share, see `TrainingConfig`.

    Raises:
        MissingPackageError: Accelerate is not installed.

    >>> Workers(cpu=True).sum(2.0, 3)
    [2.0, 3.0]
    """

    def __init__(self, cpu: bool = False, parallel: str = "ddp") -> None:
        try:
            from accelerate import Accelerator
        except ImportError as error:
            raise MissingPackageError("training needs the package accelerate; pip install 'regard[train]'") from error
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
        """Whether each flag is raised in some process, so that all decide alike."""
        return [total > 0 for total in self.sum(*map(float, flags))]

    def wait(self) -> None:
        """Until every process has come here."""
        self._accelerator.wait_for_everyone()
