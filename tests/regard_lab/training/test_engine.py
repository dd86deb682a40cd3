"""One step is the gradient of (sum of losses / number of tokens), however the step is cut into pieces."""

import math
import random
import threading
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from toy_training import CONFIG, ToyTask, make_model

from regard.errors import ArgumentError, DataError
from regard_lab.training.config import TrainingConfig, learning_rate_at
from regard_lab.training.engine import TrainingEngine, Workers


class Pieces(ToyTask):
    """The batch of step s, cut between the given rows: the pieces hold unequal numbers of tokens."""

    def __init__(self, cuts: list[int]) -> None:
        super().__init__()
        self.cuts = [0, *cuts, 8]

    def batch(self, index):
        step, piece = divmod(index, len(self.cuts) - 1)
        return super().batch(step)[self.cuts[piece] : self.cuts[piece + 1]]


def engine_of(
    model: torch.nn.Module, task: ToyTask, config: TrainingConfig = CONFIG
) -> TrainingEngine:
    return TrainingEngine(model, task, config, Workers(cpu=True))


def float64_weights_after(task: ToyTask, pieces: int, steps: int = 3) -> torch.Tensor:
    model = make_model(torch.float64, dropout=0.0)
    engine = engine_of(model, task, replace(CONFIG, batches_per_step=pieces))
    for step in range(steps):
        engine.step(step)
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("cuts", [[4], [1, 2], [1, 2, 3, 4, 5, 6, 7]])
def test_any_cut_of_a_batch_gives_the_weights_of_the_whole(cuts):
    whole = float64_weights_after(Pieces([]), 1)
    cut = float64_weights_after(Pieces(cuts), len(cuts) + 1)
    assert (whole - cut).abs().max() <= 1e-12


class Divisible(ToyTask):
    """A task whose batches can be divided by rows."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def parts(self, batch, count):
        return batch.tensor_split(min(count, len(batch)))

    def loss(self, model, batch):
        self.sizes.append(len(batch))
        return super().loss(model, batch)


@pytest.mark.parametrize("batches", [1, 2])
@pytest.mark.parametrize("count", [2, 3, 100])
def test_a_batch_in_parts_gives_the_step_of_the_whole(count, batches):
    weights = []
    for accumulate in (1, count):
        task = Divisible()
        model = make_model(torch.float64, dropout=0.0)
        config = replace(CONFIG, batches_per_step=batches, accumulate=accumulate)
        engine = engine_of(model, task, config)
        sums = [engine.step(step) for step in range(3)]
        assert len(task.sizes) == 3 * batches * min(accumulate, ToyTask().size)
        weights.append(
            torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
        )
        if accumulate == 1:
            whole = sums
    assert (weights[0] - weights[1]).abs().max() <= 1e-12
    for one, other in zip(whole, sums, strict=True):
        assert one.tokens == other.tokens
        assert one.loss == pytest.approx(other.loss, rel=1e-12)
        assert one.gradient_norm == pytest.approx(other.gradient_norm, rel=1e-12)


def test_a_task_that_cannot_divide_a_batch_says_so():
    with pytest.raises(ArgumentError, match="no method `parts` that divides a batch"):
        engine_of(make_model(), ToyTask(), replace(CONFIG, accumulate=2))


class InTurn(Workers):
    """One of two processes that train together, as a thread: gradients are averaged over both, as DDP does."""

    def __init__(self, rank: int, tables: list[list], barrier: threading.Barrier) -> None:
        super().__init__(cpu=True)
        self.rank = rank
        self.count = 2
        self._tables = tables
        self._barrier = barrier

    def sum(self, *numbers):
        return [float(first + second) for first, second in self._exchange(numbers)]

    @contextmanager
    def gradients(self, model, *, meet):
        yield
        if meet:
            gradients = [parameter.grad for parameter in model.parameters()]
            exchanged = self._exchange([gradient.clone() for gradient in gradients])
            for gradient, (first, second) in zip(gradients, exchanged, strict=True):
                gradient.copy_((first + second) / 2)

    def _exchange(self, values):
        """Each value of this process beside that of the other: that of rank 0 comes first."""
        self._tables[self.rank] = values
        self._barrier.wait()
        states = list(zip(*self._tables, strict=True))
        self._barrier.wait()  # nobody writes the next values before both have read these
        return states


@pytest.mark.parametrize("pieces", [1, 2])
def test_two_processes_with_a_share_each_step_to_the_weights_of_one_with_the_whole(pieces):
    """The shares hold unequal numbers of tokens, and averaged gradients are half of what both processes sum to."""
    # no step but of this norm
    config = replace(CONFIG, batches_per_step=pieces, gradient_clip=0.05, epsilon=1.0)
    models = [make_model(torch.float64, dropout=0.0) for _ in range(3)]
    tables = [[], []]
    barrier = threading.Barrier(2, timeout=300)
    sums = [None, None]

    def train_share(rank):
        task = ToyTask(rank=rank, processes=2)
        engine = TrainingEngine(models[rank], task, config, InTurn(rank, tables, barrier))
        sums[rank] = [engine.step(step) for step in range(3)]

    threads = [threading.Thread(target=train_share, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    engine = engine_of(models[2], ToyTask(), config)
    for step, (first, second) in enumerate(zip(*sums, strict=True)):
        whole = engine.step(step)
        assert first == second
        assert (first.tokens, first.fault) == (whole.tokens, None)
        assert first.loss == pytest.approx(whole.loss, rel=1e-12)
        assert first.gradient_norm == pytest.approx(whole.gradient_norm, rel=1e-12)
    parameters = [model.parameters() for model in models]
    for first, second, whole in zip(*parameters, strict=True):
        assert (first - whole).abs().max() <= 1e-12
        assert (second - whole).abs().max() <= 1e-12


def test_a_step_reports_the_mean_loss_per_token_and_the_gradient_of_it():
    task = ToyTask()
    model = make_model(dropout=0.0)
    batches = [task.batch(0), task.batch(1)]
    total = sum(task.loss(model, batch)[0] for batch in batches)
    tokens = sum(int(task.loss(model, batch)[1]) for batch in batches)
    gradients = torch.autograd.grad(total / tokens, list(model.parameters()))
    sums = engine_of(model, task).step(0)
    assert sums.tokens == tokens
    assert sums.loss == pytest.approx(float(total.detach()) / tokens, rel=1e-6)
    norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
    assert sums.gradient_norm == pytest.approx(float(norm), rel=1e-5)


def test_a_step_has_the_learning_rate_of_its_number_counted_from_1():
    engine = engine_of(make_model(), ToyTask())
    for index in range(7):  # of a warm-up of four steps
        sums = engine.step(index)
        rates = [group["lr"] for group in engine.optimiser.param_groups]
        assert sums.learning_rate == learning_rate_at(CONFIG, index + 1)
        assert rates == [sums.learning_rate] * 2


def test_the_gradient_is_clipped_to_the_limit():
    model = make_model()
    sums = engine_of(model, ToyTask(), replace(CONFIG, gradient_clip=0.01)).step(0)
    clipped = torch.stack([parameter.grad.norm() for parameter in model.parameters()]).norm()
    assert sums.gradient_norm > 0.02
    assert float(clipped) == pytest.approx(0.01, rel=1e-3)


def test_a_loss_that_is_not_finite_changes_neither_weights_nor_optimiser():
    model = make_model()
    engine = engine_of(model, ToyTask(poison=(2,)))
    engine.step(0)
    before = [tensor.clone() for tensor in model.state_dict().values()]
    moments = [state["exp_avg"].clone() for state in engine.optimiser.state.values()]
    fault = (
        "the loss of batch 2 is not finite; the first tensor that is not is the gradient 0.weight"
    )
    assert engine.step(1).fault == fault
    assert all(map(torch.equal, before, model.state_dict().values()))
    moments_now = [state["exp_avg"] for state in engine.optimiser.state.values()]
    assert all(map(torch.equal, moments, moments_now))
    assert engine.step(2).fault is None


def test_a_fault_tells_gradients_from_losses_and_names_the_first_tensor():
    class Steep(ToyTask):
        """A loss that is finite, and whose slope is not."""

        def loss(self, model, batch):
            loss, tokens = super().loss(model, batch)
            return loss + (model[2].bias.sum() * 0.0).sqrt(), tokens

    model = make_model()
    engine = engine_of(model, Steep())
    fault = "the gradient of batch 4 to 5 is not finite; the first tensor that is not is the gradient 2.bias"
    assert engine.step(2).fault == fault
    with torch.no_grad():
        model[2].bias[3] = math.inf
    assert engine.step(1).fault.endswith("the first tensor that is not is the weight 2.bias")


def draws_of_steps(steps: list[int], rank: int = 0) -> list[float]:
    """What the loss of each step draws from torch and from Python, in a process of that rank."""
    drawn = []

    class Drawing(ToyTask):
        def loss(self, model, batch):
            drawn.append(float(torch.rand(())) + random.random())
            return super().loss(model, batch)

    engine = engine_of(make_model(), Drawing(), replace(CONFIG, batches_per_step=1))
    engine._workers.rank = rank
    for step in steps:
        engine.step(step)
    return drawn


def test_random_numbers_are_a_function_of_the_step_and_the_process():
    drawn = draws_of_steps([0, 1, 2])
    assert len(set(drawn)) == 3
    assert draws_of_steps([2, 0]) == [drawn[2], drawn[0]]
    assert draws_of_steps([0], rank=1) != drawn[:1]


def test_only_matrices_decay():
    model = make_model()
    engine = engine_of(model, ToyTask(), replace(CONFIG, weight_decay=0.1))
    decays = {}
    for group in engine.optimiser.param_groups:
        for parameter in group["params"]:
            decays[tuple(parameter.shape)] = group["weight_decay"]
    assert decays == {(11, 6): 0.1, (11,): 0.0}


def test_a_batch_without_a_target_is_refused():
    class Empty(ToyTask):
        def batch(self, index):
            return torch.zeros(2, 4, dtype=torch.long)

    with pytest.raises(DataError, match="step 3 has no target token"):
        engine_of(make_model(), Empty()).step(3)


def test_validation_is_the_mean_over_tokens_of_all_batches_without_dropout():
    task = ToyTask()
    model = make_model(dropout=0.9)
    engine = engine_of(model, task)
    model.eval()
    sums = [task.validation_loss(model, batch) for batch in task.validation_batches()]
    loss = sum(loss.detach() for loss, _ in sums)
    tokens = sum(tokens for _, tokens in sums)
    expected = float(loss) / int(tokens)
    model.train()
    assert engine.validate() == pytest.approx(expected, rel=1e-6)
    assert engine.validate() == engine.validate()


def test_skills_are_those_of_the_last_validation_also_after_one_that_was_interrupted():
    class Interrupted(ToyTask):
        right = 0
        of_all = 0
        is_interrupted = True

        def validation_loss(self, model, batch):
            if self.is_interrupted and self.of_all:
                raise KeyboardInterrupt
            self.of_all += len(batch)
            self.right += 0 if self.is_interrupted else len(batch)
            return super().validation_loss(model, batch)

        def counted_skills(self):
            counted = (self.right, self.of_all)
            self.right = 0
            self.of_all = 0
            return {"lines": counted}

    task = Interrupted()
    engine = engine_of(make_model(), task)
    with pytest.raises(KeyboardInterrupt):
        engine.validate()
    task.is_interrupted = False
    engine.validate()
    assert engine.skills() == {"lines": 1.0}


def test_bfloat16_is_used_for_products_and_leaves_weights_in_float32():
    seen = []

    class Watching(ToyTask):
        def _loss(self, model, batch, smoothing):
            seen.append(model(batch[:, :-1]).dtype)
            return super()._loss(model, batch, smoothing)

    model = make_model()
    config = replace(CONFIG, precision="bfloat16", batches_per_step=1)
    engine = engine_of(model, Watching(), config)
    assert math.isfinite(engine.step(0).loss)
    engine.validate()
    assert set(seen) == {torch.bfloat16}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
