"""One step and one validation: the mathematics of training, without files, clocks or signals."""

import hashlib
import math
import random
from collections.abc import Generator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from regard.arguments import count_of
from regard.errors import ArgumentError, DataError
from regard_lab.training.config import TrainingConfig, learning_rate_at
from regard_lab.training.task import Task
from regard_lab.training.workers import Workers, filled, hollow, whole, whole_state


class StepSums(NamedTuple):
    """What one step saw, over all its micro-batches and processes."""

    loss: float  # nats per target token
    tokens: int
    learning_rate: float
    gradient_norm: float
    fault: str | None  # where it was not finite; if anywhere, the weights and the optimiser are as before
    destroyed: str | None  # the first weight that the step itself made not finite; the weights before are gone


class Engine:
    """A model, its optimiser and the steps that change them.

    The gradient of a step is that of (sum of token losses) / (number of target tokens), both over all
    micro-batches and processes, so it does not depend on how a batch is cut into pieces.
    """

    def __init__(self, model: torch.nn.Module, task: Task, config: TrainingConfig, workers: Workers) -> None:
        self._task, self._config, self._workers = task, config, workers
        self._shell = hollow(model) if workers.shares_weights and workers.is_main else None
        self._wrapped = workers.prepare(model)
        self._model = model
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._pieces: list[float] = []  # this process's loss of each micro-batch of the last step
        self.optimiser = _make_optimiser(self._parameters, config)

    def step(self, index: int, last: int | None = None) -> StepSums:
        """Do the step number `index`, counted from 0; `last` is the number of steps, where the config does not say.

        Raises:
            DataError: the batch has no target token.
        """
        _seed(self._config.seed, index, self._workers.rank)
        self._wrapped.train()
        self.optimiser.zero_grad(set_to_none=True)
        loss, tokens = self._gather_gradients(index)
        total_norm = self._finish_gradients(tokens)
        norm = float(whole(total_norm))
        rate = learning_rate_at(self._config, index + 1, last)
        fault = None if math.isfinite(norm) and math.isfinite(loss) else self._find_fault(index)
        if fault is None:
            if self._config.gradient_clip is not None:
                torch.nn.utils.clip_grads_with_norm_(self._parameters, self._config.gradient_clip, total_norm)
            for group in self.optimiser.param_groups:
                group["lr"] = rate
            self.optimiser.step()
        destroyed = self._find_destroyed() if fault is None else None
        return StepSums(loss / tokens, tokens, rate, norm, fault, destroyed)

    @torch.no_grad()
    def validate(self) -> float | None:
        """The plain cross entropy in nats per token over the validation batches; None where there are none."""
        self._model.eval()
        loss, tokens = 0.0, 0
        batches = self._task.validation_batches()
        self._check_validation(len(batches))
        for batch in batches:
            with self._autocast():
                # The plain model: processes may hold unequal numbers of batches, and need not meet here.
                batch_loss, batch_tokens = self._task.validation_loss(self._model, self._workers.to_device(batch))
            loss += float(batch_loss)
            tokens += int(batch_tokens)
        loss, all_tokens = self._workers.sum(loss, tokens)
        return loss / all_tokens if all_tokens else None

    @torch.no_grad()
    def reread(self, index: int) -> float | None:
        """The loss of a batch of step `index` as the model is now; None where validation batches tell more."""
        if self._task.validation_batches():
            return None
        self._model.eval()
        batch = self._workers.to_device(self._task.batch(index * self._config.accumulate))
        with self._autocast():
            loss, tokens = self._task.loss(self._model, batch)
        total, all_tokens = self._workers.sum(float(loss), int(tokens))
        return total / all_tokens if all_tokens else None

    def tensors(self) -> dict[str, torch.Tensor]:
        """The model's tensors by name, each whole, on the main process; every process takes part."""
        return whole_state(self._model, keep=self._workers.is_main)

    @contextmanager
    def whole_model(self) -> Generator[torch.nn.Module | None]:
        """The model in one piece on the main process, to be asked things while training waits; None on others."""
        self._model.eval()
        if not self._workers.shares_weights:
            yield self._model if self._workers.is_main else None
            return
        state = self.tensors()
        yield None if self._shell is None else filled(self._shell, state).eval()

    def _gather_gradients(self, index: int) -> tuple[float, int]:
        """Leave in the gradients the sum over tokens, averaged over processes; return the sums over both."""
        loss, tokens = 0.0, 0
        pieces, self._pieces = self._config.accumulate, []
        for piece in range(pieces):
            batch = self._workers.to_device(self._task.batch(index * pieces + piece))
            with self._workers.gradients(self._wrapped, meet=piece == pieces - 1):
                with self._autocast():
                    piece_loss, piece_tokens = self._task.loss(self._wrapped, batch)
                piece_loss.backward()
            self._pieces.append(float(piece_loss.detach()))
            loss += self._pieces[-1]
            tokens += int(piece_tokens)
        loss, all_tokens = self._workers.sum(loss, tokens)
        if not all_tokens:
            raise DataError(f"the batch of step {index} has no target token, so there is nothing to learn from")
        return loss, int(all_tokens)

    def _finish_gradients(self, tokens: int) -> torch.Tensor:
        """Turn sums into the mean over tokens, and return its norm."""
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        for gradient in gradients:
            gradient.mul_(self._workers.count / tokens)
        return torch.nn.utils.get_total_norm(gradients)

    def _find_fault(self, index: int) -> str:
        """Which batch, and which tensor first, is not finite; every process takes part and finds the same."""
        first = index * len(self._pieces)
        losses = self._workers.any(*(not math.isfinite(loss) for loss in self._pieces))
        last = first + len(losses) - 1
        if any(losses):
            batch = f"the loss of batch {first + losses.index(True)} is not finite"
        else:
            batch = f"the gradient of batch {first}{f' to {last}' if last > first else ''} is not finite"
        for what in ("weight", "gradient"):
            for name, parameter in self._model.named_parameters():
                tensor = parameter.detach() if what == "weight" else parameter.grad
                if tensor is not None and not bool(whole(tensor).isfinite().all()):
                    return f"{batch}; the first tensor that is not is the {what} {name}"
        return f"{batch}; every weight and every gradient is"

    @torch.no_grad()
    def _find_destroyed(self) -> str | None:
        """The first weight that is not finite, if any; every process takes part and finds the same."""
        norm = float(whole(torch.nn.utils.get_total_norm(self._parameters)))
        if not self._workers.any(not math.isfinite(norm))[0]:
            return None
        names = [name for name, parameter in self._model.named_parameters() if not whole(parameter).isfinite().all()]
        broken = self._workers.any(bool(names))[0]  # else the norm alone left its range
        return (f"the weight {names[0]}" if names else "a weight of another process") if broken else None

    def _check_validation(self, batches: int) -> None:
        """Processes that share weights meet in every batch, so that none may have fewer than another."""
        if not self._workers.shares_weights:
            return
        [total] = self._workers.sum(batches)
        if self._workers.any(batches * self._workers.count != total)[0]:
            raise ArgumentError(
                f"this process has {count_of(batches, 'validation batches')} and others more or "
                f"fewer; with parallel='fsdp' all "
                f"need the same number"
            )

    def _autocast(self) -> torch.autocast:
        wanted = self._config.precision == "bfloat16"
        return torch.autocast(self._workers.device.type, dtype=torch.bfloat16, enabled=wanted)


def _make_optimiser(parameters: list[torch.nn.Parameter], config: TrainingConfig) -> torch.optim.Optimizer:
    """Adam; with weight decay its decoupled form (Loshchilov and Hutter, 2019), which without decay is Adam."""
    groups = [
        {"params": [parameter for parameter in parameters if parameter.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [parameter for parameter in parameters if parameter.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.betas, eps=config.epsilon, fused=True)


def _seed(seed: int, step: int, rank: int) -> None:
    """Randomness is a function of (seed, step, process): a checkpoint has no generator's state to keep, a
    resumed run draws what the uninterrupted one drew, and validating more often changes nothing."""
    digest = hashlib.sha256(f"{seed} {step} {rank}".encode()).digest()
    number = int.from_bytes(digest[:8], "little") >> 1
    torch.manual_seed(number)
    random.seed(number)
