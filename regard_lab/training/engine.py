"""The mathematics of training, without files, clocks or signals: what a task defines, one step, and one validation.

The processes that train together are an `Accelerator`'s: each has the whole model and its share of the batch. One
process alone is the ordinary case.
"""

import hashlib
import math
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol

import torch

from regard.errors import ArgumentError, DataError
from regard.packages import needed
from regard_lab.training.config import TrainingConfig, learning_rate_at

Batch = Any
"""Whatever the task's own losses understand: a tensor, a tuple, a dict, or an object with `.to(device)`."""


class Task(Protocol):
    """Data and losses of one training.

    Under several processes each has its own task, which gives its own share of the same batch (the rank is the
    task's business); sums and token counts are added up over the processes by the loop. A loss calls the model
    as `model(...)`, never one of its methods, so that the processes' gradients meet.

    A task may count skills as well: `counted_skills()` then returns, for the name of each, how many ids were right and
    how many there were in the calls of `validation_loss` since it was last called.
    """

    def batch(self, index: int) -> Batch:
        """The batch number `index`: a pure function of it, so that a resumed run sees the same data.

        With `TrainingConfig.batches_per_step` = b, step s (from 0) reads the indices s * b to s * b + b - 1.
        """
        ...

    def parts(self, batch: Batch, count: int) -> Sequence[Batch]:
        """The batch divided into at most `count` parts, whose losses and tokens sum to its own.

        Called only where `TrainingConfig.accumulate` is above 1; a task without it cannot have that.
        """
        ...

    def loss(self, model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor | int]:
        """What is minimised: the sum (never the mean) over target tokens, and the number of those tokens."""
        ...

    def validation_batches(self) -> Sequence[Batch]:
        """The same batches at each call; none where there is nothing to validate on."""
        ...

    def validation_loss(
        self, model: torch.nn.Module, batch: Batch
    ) -> tuple[torch.Tensor, torch.Tensor | int]:
        """The plain cross entropy, without smoothing: its sum in nats and the number of target tokens."""
        ...

    def fingerprint(self) -> dict[str, Any]:
        """JSON values in which this data differs from other data; a run is resumed only where all of them are equal."""
        ...


class Workers:
    """The processes that train together, as one of them sees them: its device, its rank, and sums over all.

    Args:
        cpu: compute on the CPU even where there is an accelerator.

    >>> Workers(cpu=True).sum(2.0, 3)
    [2.0, 3.0]
    """

    def __init__(self, cpu: bool = False) -> None:
        with needed("accelerate", "training"):
            from accelerate import Accelerator

        # Precision is the engine's, for this run only.
        self._accelerator = Accelerator(cpu=cpu, mixed_precision="no")
        self.rank: int = self._accelerator.process_index
        self.count: int = self._accelerator.num_processes
        self.is_main: bool = self._accelerator.is_main_process
        self.device: torch.device = self._accelerator.device

    def prepare(self, model: torch.nn.Module) -> torch.nn.Module:
        """The model on this process's device; with others, wrapped so that gradients are averaged over all."""
        return self._accelerator.prepare_model(model)

    def to_device(self, batch: Any) -> Any:
        """A batch on this process's device: tensors in tuples, lists and dicts, or an object with `.to`."""
        from accelerate.utils import send_to_device

        return send_to_device(batch, self.device)

    def gradients(self, model: torch.nn.Module, *, meet: bool) -> AbstractContextManager[None]:
        """Within it, backward adds to this process's gradients; `meet` averages them over all processes."""
        return nullcontext() if meet else self._accelerator.no_sync(model)

    def sum(self, *numbers: float) -> list[float]:
        """Each number summed over the processes."""
        if self.count == 1:
            return [float(number) for number in numbers]
        total = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        return self._accelerator.reduce(total, reduction="sum").tolist()

    def any(self, *flags: bool) -> list[bool]:
        """Whether each flag is raised in any process; the result is the same in all."""
        return [total > 0 for total in self.sum(*map(float, flags))]

    def wait(self) -> None:
        """Wait until every process has reached this point."""
        self._accelerator.wait_for_everyone()


class StepSums(NamedTuple):
    """What one step saw, over all its batches and processes."""

    loss: float  # nats per target token
    tokens: int
    learning_rate: float
    gradient_norm: float
    # Where it was not finite; if anywhere, the weights and the optimiser are as before.
    fault: str | None
    # The first weight that the step itself made not finite; the weights before are gone.
    destroyed: str | None


class TrainingEngine:
    """A model, its optimiser and the steps that change them.

    The gradient of a step is that of (sum of token losses) / (number of target tokens), both over all batches, their
    parts and processes, so it does not depend on how a batch is divided.
    """

    def __init__(
        self, model: torch.nn.Module, task: Task, config: TrainingConfig, workers: Workers
    ) -> None:
        if config.accumulate > 1 and not hasattr(task, "parts"):
            raise ArgumentError(
                f"accumulate is {config.accumulate}, and this task has no method `parts` that divides a batch; give it "
                f"one, or accumulate=1"
            )
        self._task = task
        self._config = config
        self._workers = workers
        self._wrapped = workers.prepare(model)
        self._model = model
        self._parameters = [
            parameter for parameter in model.parameters() if parameter.requires_grad
        ]
        # This process's loss of each batch of the last step.
        self._losses: list[float] = []

        matrices = [parameter for parameter in self._parameters if parameter.dim() > 1]
        vectors = [parameter for parameter in self._parameters if parameter.dim() <= 1]
        # Adam; with weight decay its decoupled form (Loshchilov and Hutter, 2019), which without decay is Adam.
        groups = [
            {"params": matrices, "weight_decay": config.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        self.optimiser: torch.optim.Optimizer = torch.optim.AdamW(
            groups, lr=config.learning_rate, betas=config.betas, eps=config.epsilon, fused=True
        )

    def step(self, index: int, last: int | None = None) -> StepSums:
        """Do step `index`, counted from 0; `last` is the number of steps if the config has none."""
        _seed(self._config.seed, index, self._workers.rank)
        self._wrapped.train()
        self.optimiser.zero_grad(set_to_none=True)

        loss, tokens = self._gather_gradients(index)
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        # From a sum that is averaged over processes to the mean over all tokens.
        for gradient in gradients:
            gradient.mul_(self._workers.count / tokens)
        total_norm = torch.nn.utils.get_total_norm(gradients)
        norm = float(total_norm)
        rate = learning_rate_at(self._config, index + 1, last)

        fault = None
        destroyed = None
        if not (math.isfinite(norm) and math.isfinite(loss)):
            fault = self._find_fault(index)
        else:
            if self._config.gradient_clip is not None:
                torch.nn.utils.clip_grads_with_norm_(
                    self._parameters, self._config.gradient_clip, total_norm
                )
            for group in self.optimiser.param_groups:
                group["lr"] = rate
            self.optimiser.step()
            destroyed = self._find_destroyed()
        return StepSums(loss / tokens, tokens, rate, norm, fault, destroyed)

    def validate(self) -> float | None:
        """The plain cross entropy in nats per token over the validation batches; None where there are none."""
        self._counted_skills()  # A validation that was interrupted may have left some.
        return self._mean_over(self._task.validation_batches(), self._task.validation_loss)

    def skills(self) -> dict[str, float]:
        """The share of right ids for each skill that the task counted in the last validation."""
        shares = {}
        for name, (right, of_all) in self._counted_skills().items():
            right, of_all = self._workers.sum(right, of_all)
            if of_all:
                shares[name] = right / of_all
        return shares

    def _counted_skills(self) -> dict[str, tuple[int, int]]:
        counted: Callable[[], dict[str, tuple[int, int]]]
        counted = getattr(self._task, "counted_skills", dict)
        return counted()

    def reread(self, index: int) -> float | None:
        """The loss of a batch of step `index` as the model is now; None where validation batches show more."""
        if self._task.validation_batches():
            return None
        first_batch = self._task.batch(index * self._config.batches_per_step)
        return self._mean_over(self._parts(first_batch), self._task.loss)

    @torch.no_grad()
    def _mean_over(
        self, batches: Sequence[Batch], loss_of: Callable[..., tuple[torch.Tensor, Any]]
    ) -> float | None:
        """The mean loss per token over the batches of all processes; None if there is no token.

        The plain model computes it: processes may hold unequal numbers of batches, and need not meet here.
        """
        self._model.eval()
        loss = 0.0
        tokens = 0
        for batch in batches:
            with self._autocast():
                on_device = self._workers.to_device(batch)
                batch_loss, batch_tokens = loss_of(self._model, on_device)
            loss += float(batch_loss)
            tokens += int(batch_tokens)
        loss, all_tokens = self._workers.sum(loss, tokens)
        return loss / all_tokens if all_tokens else None

    def _gather_gradients(self, index: int) -> tuple[float, int]:
        """Leave in the gradients the sum over tokens, averaged over processes; return the sums over both."""
        tokens = 0
        count = self._config.batches_per_step
        self._losses = []
        for number in range(count):
            parts = self._parts(self._task.batch(index * count + number))
            loss_of_batch = 0.0
            for place, part in enumerate(parts, start=1):
                on_device = self._workers.to_device(part)
                is_last = number == count - 1 and place == len(parts)
                with self._workers.gradients(self._wrapped, meet=is_last):
                    with self._autocast():
                        part_loss, part_tokens = self._task.loss(self._wrapped, on_device)
                    part_loss.backward()
                loss_of_batch += float(part_loss.detach())
                tokens += int(part_tokens)
                # Its graph would stay in memory beside that of the next part.
                del part_loss
            self._losses.append(loss_of_batch)
        loss = sum(self._losses)

        loss, all_tokens = self._workers.sum(loss, tokens)
        if not all_tokens:
            raise DataError(
                f"the batch of step {index} has no target token, so there is nothing to learn from"
            )
        return loss, int(all_tokens)

    def _parts(self, batch: Batch) -> Sequence[Batch]:
        """The parts of a batch, computed one after the other."""
        if self._config.accumulate == 1:
            return [batch]
        return self._task.parts(batch, self._config.accumulate)

    def _find_fault(self, index: int) -> str:
        """Which batch, and which tensor first, is not finite; every process takes part and finds the same."""
        first = index * len(self._losses)
        losses = self._workers.any(*(not math.isfinite(loss) for loss in self._losses))
        last = first + len(losses) - 1
        if any(losses):
            batch = f"the loss of batch {first + losses.index(True)} is not finite"
        elif last > first:
            batch = f"the gradient of batch {first} to {last} is not finite"
        else:
            batch = f"the gradient of batch {first} is not finite"

        for what in ("weight", "gradient"):
            for name, parameter in self._model.named_parameters():
                tensor = parameter.detach() if what == "weight" else parameter.grad
                if tensor is not None and not bool(tensor.isfinite().all()):
                    return f"{batch}; the first tensor that is not is the {what} {name}"
        return f"{batch}; every weight and every gradient is"

    @torch.no_grad()
    def _find_destroyed(self) -> str | None:
        """The first weight that is not finite, if any; every process takes part and finds the same."""
        norm = float(torch.nn.utils.get_total_norm(self._parameters))
        if not self._workers.any(not math.isfinite(norm))[0]:
            return None
        names = [
            name
            for name, parameter in self._model.named_parameters()
            if not parameter.isfinite().all()
        ]
        is_broken = self._workers.any(bool(names))[0]
        if not is_broken:
            # Every weight is finite: the norm alone left its range.
            return None
        return f"the weight {names[0]}" if names else "a weight of another process"

    def _autocast(self) -> torch.autocast:
        wanted = self._config.precision == "bfloat16"
        return torch.autocast(self._workers.device.type, dtype=torch.bfloat16, enabled=wanted)


def _seed(seed: int, step: int, rank: int) -> None:
    """Randomness is a function of (seed, step, process): a checkpoint has no generator's state to keep, a
    resumed run draws what the uninterrupted one drew, and validating more often changes nothing."""
    digest = hashlib.sha256(f"{seed} {step} {rank}".encode()).digest()
    number = int.from_bytes(digest[:8], "little") >> 1
    torch.manual_seed(number)
    random.seed(number)
