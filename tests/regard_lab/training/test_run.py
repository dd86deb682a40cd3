"""When a run stops, and what it tells."""

import signal
from dataclasses import replace

import pytest
import torch
from toy_training import CONFIG, ToyTask, at_step, log_without_times, make_model, seals, train_toy

from regard.errors import RegardError
from regard_lab.models.storage import Checkpoints, load_model, read_checkpoints
from regard_lab.training import Started, StepDone
from regard_lab.training import clock as clock_module
from regard_lab.training.checkpoint import read_training
from regard_lab.training.engine import TrainingEngine, Workers


class Scripted(ToyTask):
    """A task whose validation losses are given in advance, one a validation."""

    def __init__(self, losses):
        super().__init__()
        self.losses = iter(losses)

    def validation_batches(self):
        return [torch.zeros(1)]

    def validation_loss(self, model, batch):
        return torch.tensor(next(self.losses)), 1


EVERY_STEP = replace(CONFIG, steps=20, validate_every=1, save_every=100)


# Reasons to stop


def test_patience_ends_a_run_after_so_many_validations_in_a_row_without_improvement(tmp_path):
    losses = [5.0, 4.0, 4.5, 4.0, 3.0, 3.5, 3.1, 3.2, 1.0]
    result = train_toy(tmp_path, replace(EVERY_STEP, patience=3), Scripted(losses))
    assert (result.stopped, result.steps) == ("patience", 8)
    assert (result.best_step, result.valid_loss) == (5, 3.0)


def test_lost_patience_stays_lost_until_there_is_more(tmp_path):
    little = replace(EVERY_STEP, patience=2)
    train_toy(tmp_path, little, Scripted([1.0, 2.0, 2.0]))
    again = train_toy(tmp_path, little, Scripted([]), resume=True)
    assert (again.stopped, again.steps) == ("patience", 3)
    much = replace(EVERY_STEP, patience=4)
    more = train_toy(tmp_path, much, Scripted([2.0] * 9), resume=True)
    assert (more.stopped, more.steps) == ("patience", 5)


def test_the_last_look_of_a_session_out_of_turn_costs_no_patience(tmp_path):
    config = replace(CONFIG, steps=5, patience=2)
    # at step 4 in its turn, at step 5 because the run ends
    train_toy(tmp_path, config, Scripted([1.0, 2.0]))
    last = tmp_path / read_checkpoints(tmp_path).last
    assert read_training(last)["state"]["without_improvement"] == 0


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_validation_loss_that_is_not_finite_stops_the_run_with_what_was_saved_before(
    tmp_path, loss
):
    reason = f"after step 3 the validation loss is {loss}, .* step-000002"
    with pytest.raises(RegardError, match=reason):
        train_toy(tmp_path, EVERY_STEP, Scripted([2.0, 1.0, loss]))
    assert read_checkpoints(tmp_path) == Checkpoints(last="step-000002", best="step-000002")
    assert all(tensor.isfinite().all() for tensor in load_model(tmp_path).state.values())


def test_without_validation_batches_the_last_model_is_the_one_to_load(tmp_path):
    task = ToyTask()
    task.validation_batches = list
    result = train_toy(tmp_path, task=task)
    assert (result.best_step, result.valid_loss) == (None, None)
    assert load_model(tmp_path, kind="toy").kind == "toy"


def test_minutes_are_a_cap_that_counts_earlier_sessions(tmp_path, monkeypatch):
    seconds = 1000.0
    monkeypatch.setattr(clock_module, "monotonic", lambda: seconds)

    def ten_seconds_a_step(event):
        nonlocal seconds
        if isinstance(event, StepDone):
            seconds += 10.0

    long = replace(CONFIG, steps=100)
    first = train_toy(tmp_path, replace(long, minutes=1.0), progress=ten_seconds_a_step)
    assert (first.stopped, first.steps, first.wall_seconds) == ("minutes", 6, 60.0)
    seconds = 5_000_000.0  # the days between two sessions count for nothing
    longer = replace(long, minutes=1.5)
    second = train_toy(tmp_path, longer, resume=True, progress=ten_seconds_a_step)
    assert (second.stopped, second.steps, second.wall_seconds) == ("minutes", 9, 90.0)


def test_a_second_interrupt_raises_at_once(tmp_path):
    def twice():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train_toy(tmp_path, progress=at_step(2, twice))
    assert read_checkpoints(tmp_path).last == "step-000000"


# Losses that are not finite


@pytest.mark.parametrize(("batch", "step"), [(1, 1), (11, 6)])
def test_one_stops_the_run_with_the_state_before_it_saved_and_a_sentence_that_says_where(
    tmp_path, batch, step
):
    reason = (
        f"step {step} cannot be done: the loss of batch {batch} is not finite.*first tensor that is not is the "
        rf"gradient 0\.weight.*saved as it was after step {step - 1}\..*learning rate \(0\.01\)"
    )
    with pytest.raises(RegardError, match=reason):
        train_toy(tmp_path / "run", task=ToyTask(poison=(batch,)))
    assert read_checkpoints(tmp_path / "run").last == f"step-{step - 1:06d}"
    if step > 1:  # there is no training of 0 steps
        train_toy(tmp_path / "whole", replace(CONFIG, steps=step - 1))
        assert seals(tmp_path / "run") == seals(tmp_path / "whole")


# A model that a step destroyed


@pytest.mark.parametrize(
    ("rate", "words"),
    [
        (1e308, "step 1 made the weight 0.weight not finite"),
        (1e30, "the last step, 1, the loss of its batch is nan"),
    ],
)
def test_a_last_step_that_destroys_the_model_is_told_and_the_state_before_it_is_kept(
    tmp_path, rate, words
):
    """At 1e30 every weight is a number still, and what the model computes is none."""
    task = ToyTask()
    task.validation_batches = list
    config = replace(CONFIG, steps=1, learning_rate=rate, warmup_steps=0, gradient_clip=None)
    with pytest.raises(RegardError, match=words) as caught:
        train_toy(tmp_path, config, task)
    assert "stays as it was saved in step-000000" in str(caught.value)
    saved = load_model(tmp_path).state
    for name, tensor in make_model().state_dict().items():
        assert torch.equal(saved[name], tensor), name
    assert [folder.name for folder in tmp_path.glob("step-*")] == ["step-000000"]


def test_weights_whose_norm_alone_leaves_its_range_are_finite(tmp_path):
    engine = TrainingEngine(make_model(), ToyTask(), CONFIG, Workers(cpu=True))
    with torch.no_grad():
        engine._model[2].bias.fill_(1e30)
        assert engine._find_destroyed() is None
        engine._model[2].bias[3] = float("nan")
    assert engine._find_destroyed() == "the weight 2.bias"


# Events, result and folder


def test_the_events_come_in_their_order(tmp_path):
    events = []
    train_toy(tmp_path, replace(CONFIG, steps=4), progress=events.append)
    kinds = " ".join(type(event).__name__ for event in events)
    assert kinds == "Started Saved StepDone StepDone StepDone Saved StepDone Saved Validated"
    assert events[0] == Started(0, 4)
    last = events[-3]
    assert (last.step, last.steps, last.seconds_left) == (4, 4, 0.0)
    assert last.tokens_per_second > 0


def test_the_result_counts_what_was_trained(tmp_path):
    task = ToyTask()
    result = train_toy(tmp_path, task=task)
    assert result.stopped == "steps"
    targets = [task.batch(index)[:, 1:] for index in range(24)]
    assert result.tokens == sum(int((of_batch != 0).sum()) for of_batch in targets)
    losses = {"training": [], "validation": []}
    for line in log_without_times(tmp_path):
        losses[line["kind"]].append(line["loss"])
    assert result.train_loss == losses["training"][-1]
    assert result.valid_loss == min(losses["validation"])


def test_training_learns(tmp_path):
    task = ToyTask()
    words = torch.arange(len(task.lines)).remainder(10) + 1
    task.lines = words[:, None].expand(-1, 10)  # each line is one word again and again
    config = replace(CONFIG, steps=60, learning_rate=0.1, validate_every=30, save_every=100)
    assert train_toy(tmp_path, config, task).valid_loss < 0.2
