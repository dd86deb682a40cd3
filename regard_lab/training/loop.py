"""`train`: a model, a task and a folder in; a trained model, its checkpoints and its log out.

`TrainingRun` is a training in progress: steps, validations and checkpoints in their order, and the reasons to stop.
"""

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

import torch

from regard.arguments import a_path, count_of
from regard.errors import ArgumentError, OccupiedError, RegardError
from regard.reprs import brief
from regard_lab.models.storage import read_checkpoints
from regard_lab.training.checkpoint import (
    RunState,
    folder_lock,
    moments_of,
    read_training,
    restore_checkpoint,
    save_checkpoint,
)
from regard_lab.training.clock import TrainingClock
from regard_lab.training.config import (
    PLAN_EVERY,
    TrainingConfig,
    as_named_now,
    step_when_cooled,
    step_when_time_ends,
    validation_is_due,
)
from regard_lab.training.engine import Task, TrainingEngine, Workers
from regard_lab.training.events import (
    Event,
    Progress,
    Saved,
    Started,
    StepDone,
    Stopping,
    Validated,
)
from regard_lab.training.folders import check_run_folder, make_folder
from regard_lab.training.identity import (
    MAY_CHANGE,
    README_FILE,
    Identity,
    describe_session,
    differences,
    environment,
    explain_files,
    fingerprint,
)
from regard_lab.training.interruption import Interruption
from regard_lab.training.log import RIGHT, Log

# Share by which a loss has to fall to keep patience, where no last step is given.
LEAST_IMPROVEMENT = 0.01
# How differences begin that are of the data, as recipes write it into the fingerprint.
OF_DATA = ("data.pairs ", "data.texts ", "data.ids ", "data.hash ")
IN_PLAIN = {
    "data.ids was another": "its texts have changed",
    "data.hash was another": "its texts have changed",
}
Stopped = Literal["steps", "minutes", "patience", "interrupted"]
OnValidation = Callable[[torch.nn.Module, int, Path], None]
"""What is done after each validation with the model, the number of steps and the run's folder."""


@brief
@dataclass(frozen=True)
class TrainingResult:
    """How a training ended, earlier sessions included; losses in nats per target token.

    `valid_loss` is that of `best_step`; both are None before the first validation.
    """

    steps: int
    train_loss: float | None
    valid_loss: float | None
    best_step: int | None
    cpu_seconds: float
    wall_seconds: float
    tokens: int
    stopped: Stopped


def train(
    model: torch.nn.Module,
    task: Task,
    config: TrainingConfig,
    folder: str | Path,
    *,
    kind: str = "model",
    model_config: dict[str, Any] | None = None,
    extra_files: dict[str, str] | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    on_begin: Callable[[], None] | None = None,
    on_validation: OnValidation | None = None,
    cpu: bool = False,
) -> TrainingResult:
    """Train a model and keep its last and its best checkpoint in a folder that survives any kill.

    On the same machine, torch and number of threads, a CPU run that was killed and resumed ends in the same bits
    as one that was not. The first Ctrl-C or SIGTERM finishes the step, saves and returns; the second raises.

    Args:
        model: trained in place; afterwards it holds the last weights, and `load_model(folder)` gives the best.
        task: the batches and the losses.
        config: how long and how fast.
        folder: made if missing; empty, or a run of ours; README.txt in it explains each file.
        kind: the kind of model, and
        model_config: its settings, and
        extra_files: texts such as `tokeniser.json`: all three go into every checkpoint, see `save_model`.
        resume: go on with the run in the folder, or begin where there is none. `steps` (but for the cosine),
            `minutes`, `patience` and `keep` may differ from before, nothing else.
        progress: a function that is handed each event; the loop itself prints nothing.
        on_begin: a function that is called once the run may be written, on the main process, after run.json, which
            marks the folder as a run, and before any other file.
        on_validation: a function that is handed the model (to use, not to change), the number of steps and the folder
            after each validation, on the main process; it changes no weight and no random number.
        cpu: compute on the CPU even where there is an accelerator.

    Returns:
        Counts, losses, seconds and the reason to stop.

    Raises:
        CheckpointError: the folder holds a run (without `resume`), another run or other files, or is in use; or saving
            failed.
        ArgumentError: patience without validation batches, or a description that is not JSON.
        DataError: a batch without a target token.
        RegardError: the loss or gradient of a step is not finite; the run is saved as it was before that step.
        MissingPackageError: accelerate is not installed.

    >>> import tempfile
    >>> class Halves:
    ...     def batch(self, index): return torch.tensor([[1.0], [2.0]])
    ...     def loss(self, model, batch): return (model(batch) - batch / 2).square().sum(), len(batch)
    ...     def validation_batches(self): return [torch.tensor([[3.0]])]
    ...     validation_loss = loss
    ...     def fingerprint(self): return {"data": "halves"}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     train(torch.nn.Linear(1, 1), Halves(), TrainingConfig(steps=3), folder, cpu=True).stopped
    'steps'
    """
    folder = a_path("folder", folder)
    workers = Workers(cpu)
    check_run_folder(folder)
    make_folder(folder)
    was_training = model.training
    model_config = model_config or {}
    extra_files = extra_files or {}
    # The main process writes for all, so it alone locks the folder.
    lock = folder_lock(folder) if workers.is_main else nullcontext()
    with lock, Interruption() as interruption:
        marks = fingerprint(
            model, kind, model_config, extra_files, task.fingerprint(), config, workers.count
        )
        where = environment(workers.device)
        identity = Identity(kind, model_config, extra_files, config, marks, where)
        run = TrainingRun(
            model, task, folder, identity, workers, interruption, progress, on_validation
        )
        try:
            run.begin(resume, on_begin)
            return run.go()
        finally:
            model.train(was_training)


class TrainingRun:
    """A training in progress: its state, its folder, and what it reports."""

    def __init__(
        self,
        model: torch.nn.Module,
        task: Task,
        folder: Path,
        identity: Identity,
        workers: Workers,
        interruption: Interruption,
        progress: Progress | None,
        on_validation: OnValidation | None,
    ) -> None:
        config = identity.config
        if config.patience is not None and not task.validation_batches():
            raise ArgumentError(
                f"patience is {config.patience}, but there are no validation batches to lose it over; give some, "
                f"or patience=None"
            )

        self.model = model
        self.config = config
        self.folder = folder
        self.identity = identity
        self.workers = workers
        self.interruption = interruption
        self.progress = progress
        self.on_validation = on_validation

        self.log: Log | None = None  # of the main process
        self.engine = TrainingEngine(model, task, config, workers)
        self.state = RunState()
        self.unsaved = False  # something changed since the last checkpoint
        self.is_best = False  # that something includes the best model so far
        interruption.on_request = lambda: self._report(Stopping(self.state.step))

    def begin(self, resume: bool, on_begin: Callable[[], None] | None = None) -> None:
        """Find the run in the folder and go on with it, or make the first checkpoint of a new one."""
        before = read_checkpoints(self.folder)
        if before is not None and not resume:
            raise OccupiedError(
                f"{self.folder} already holds a run ({before.last}); go on with it by resume=True, or choose another "
                f"folder"
            )
        notes: list[str] = []
        if before is not None:
            last = self.folder / before.last
            notes = self._check_identity(last)
            self.state = restore_checkpoint(
                last, self.model, self.engine.optimiser, self.identity.kind
            )
            notes += self._minutes_used()

        # Every process has read before one of them writes.
        self.workers.wait()
        self.clock = TrainingClock(self.state.wall_seconds, self.state.cpu_seconds)
        if self.workers.is_main:
            notes += describe_session(self.folder, self.identity, self.state.step, self.workers)
            if on_begin is not None:
                on_begin()
            # A recipe may have written its own, which explains more files.
            if not (self.folder / README_FILE).exists():
                explain_files(self.folder)
            self.log = Log(self.folder / "log.jsonl", self.state.step)
            notes += self.log.notes

        # A run that ended may have been given more minutes.
        if self.state.last_step is not None and self.state.step >= self.state.last_step:
            self._plan()
        self._report(Started(self.state.step, self.last_step, tuple(notes)))
        if before is None:
            self._save()

    def _report(self, event: Event) -> None:
        """Hand an event to the progress function, on the main process."""
        if self.progress is not None and self.workers.is_main:
            self.progress(event)

    def _write(self, kind: str, **values: float | None) -> None:
        """Add a line to the log, on the main process."""
        if self.log is not None:
            line = {
                "step": self.state.step,
                "kind": kind,
                **values,
                "seconds": round(self.clock.wall(), 3),
            }
            self.log.write(line)

    def _check_identity(self, checkpoint: Path) -> list[str]:
        """Refuse another run; return what differs harmlessly."""
        before = read_training(checkpoint)
        now = self.identity.fingerprint
        changed = differences(_as_named_now(before["fingerprint"]), now)
        of_data = [phrase for phrase in changed if phrase.startswith(OF_DATA)]
        if of_data:
            reasons = [IN_PLAIN.get(phrase, phrase.removeprefix("data.")) for phrase in of_data]
            raise OccupiedError(
                f"{self.folder} was begun with other data ({'; '.join(reasons)}); name the files that it was begun "
                f"with, unchanged, or choose another folder"
            )
        if changed:
            raise OccupiedError(
                f"{self.folder} holds another run: {'; '.join(changed)}. Only {', '.join(MAY_CHANGE)} may change (with "
                f"the cosine, not steps); take these back, or choose another folder"
            )
        return differences(before["environment"], self.identity.environment)

    def _minutes_used(self) -> list[str]:
        """How much of the minutes earlier sessions have used: minutes are those of all sessions together."""
        if self.config.minutes is None:
            return []
        used = self.state.wall_seconds / 60
        minutes = count_of(self.config.minutes, "minutes", "g")
        sentence = f"{used:.1f} of {minutes} were used before; minutes count all sessions of a run"
        if used >= self.config.minutes:
            sentence += ", so give more to go on"
        return [sentence]

    @property
    def last_step(self) -> int | None:
        """The number of the last step, as far as it is known."""
        return self.state.last_step if self.config.steps is None else self.config.steps

    def go(self) -> TrainingResult:
        """Step until there is a reason to stop."""
        config = self.config
        state = self.state
        while (stopped := self._reason_to_stop()) is None:
            self._step()
            before = self.clock.wall()
            validated = state.validated_step or 0
            is_due = validation_is_due(state.step, validated, config.validate_every, self.last_step)
            if is_due:
                self._validate(in_turn=True)
            if config.save_every is None:
                save_is_due = is_due
            else:
                save_is_due = state.step % config.save_every == 0
            if save_is_due and self.unsaved:
                self._save()
            if is_due:
                state.look_seconds = self.clock.wall() - before

        if stopped == "steps" and self.unsaved:
            # The last step may have made weights infinite; without validation only its own batch, read again, shows it.
            loss = self.engine.reread(state.step - 1)
            if loss is not None and not math.isfinite(loss):
                self._stop_destroyed(
                    f"after the last step, {state.step}, the loss of its batch is {loss}"
                )
        if stopped != "interrupted" and state.validated_step != state.step:
            self._validate()
        if self.unsaved:
            self._save()

        train_loss = state.train_loss
        if train_loss is None and state.interval_tokens:
            train_loss = state.interval_loss / state.interval_tokens
        return TrainingResult(
            steps=state.step,
            train_loss=train_loss,
            valid_loss=state.best_loss,
            best_step=state.best_step,
            cpu_seconds=self.clock.cpu(),
            wall_seconds=self.clock.wall(),
            tokens=state.tokens,
            stopped=stopped,
        )

    def _reason_to_stop(self) -> Stopped | None:
        config = self.config
        state = self.state
        out_of_time = False
        if config.minutes is not None:
            out_of_time = self.clock.wall() >= self._budget(config.minutes)
        # Clocks differ, so processes agree on what any of them finds.
        interrupted, out_of_time = self.workers.any(self.interruption.requested, out_of_time)
        if interrupted:
            return "interrupted"
        if config.steps is not None and state.step >= config.steps:
            return "steps"

        out_of_patience = (
            config.patience is not None and state.without_improvement >= config.patience
        )
        if out_of_patience and config.steps is not None:
            return "patience"
        if out_of_patience and state.cooling_from is None:
            cooled = step_when_cooled(state.step, config.cooldown)
            state.cooling_from = state.step
            # Earlier if the minutes end first.
            state.last_step = min(cooled, state.last_step or cooled)

        planned_end = (
            config.steps is None and state.last_step is not None and state.step >= state.last_step
        )
        if planned_end and state.cooling_from is not None:
            return "patience"
        if planned_end or out_of_time:
            return "minutes"
        return None

    def _budget(self, minutes: float) -> float:
        """The seconds for steps: those of the last validation are left over, as many as the one before took."""
        return max(60 * minutes - self.state.look_seconds, 0.0)

    def _plan(self) -> None:
        """Plan the last step from the time used so far, on all processes the same."""
        config = self.config
        state = self.state
        if config.steps is not None or config.minutes is None or state.cooling_from is not None:
            return

        last = step_when_time_ends(state.step, self.clock.wall(), self._budget(config.minutes))
        # The sum hands the main process's plan to the others, which add nothing.
        [planned] = self.workers.sum(last if self.workers.is_main else 0)
        state.last_step = int(planned)

    def _step(self) -> None:
        """Do and report one step; plan the end every `PLAN_EVERY` steps, and log every `log_every` steps."""
        state = self.state
        last = self.last_step
        self.clock.restart_step()
        sums = self.engine.step(state.step, last)
        self.clock.step_done(sums.tokens)
        if sums.fault is not None:
            self._give_up(sums.fault)
        if sums.destroyed is not None:
            self._stop_destroyed(f"step {state.step + 1} made {sums.destroyed} not finite")

        state.step += 1
        self.unsaved = True
        state.tokens += sums.tokens
        state.interval_tokens += sums.tokens
        state.interval_loss += sums.loss * sums.tokens

        steps_left = None if last is None else last - state.step
        seconds_left = self.clock.seconds_left(steps_left, self.config.minutes)
        self._report(
            StepDone(
                step=state.step,
                steps=last,
                loss=sums.loss,
                learning_rate=sums.learning_rate,
                gradient_norm=sums.gradient_norm,
                tokens_per_second=self.clock.tokens_per_second(),
                seconds_left=seconds_left,
            )
        )

        if state.step % PLAN_EVERY == 0:
            self._plan()
        if state.step % self.config.log_every == 0:
            state.train_loss = state.interval_loss / state.interval_tokens
            planned = {} if self.config.steps is not None else {"last_step": state.last_step}
            self._write(
                "training",
                loss=state.train_loss,
                learning_rate=sums.learning_rate,
                gradient_norm=sums.gradient_norm,
                tokens=state.tokens,
                **planned,
            )
            state.interval_loss = 0.0
            state.interval_tokens = 0

    def _give_up(self, fault: str) -> NoReturn:
        """Stop before a step that is not finite, with everything saved as it was."""
        if self.unsaved:
            self._save()
        step = self.state.step
        raise RegardError(
            f"step {step + 1} cannot be done: {fault}. The run is saved as it was after step "
            f"{step}. Look for what is wrong in that batch, or begin another run with a lower learning rate "
            f"({self.config.learning_rate:g})"
        )

    def _stop_destroyed(self, fault: str) -> NoReturn:
        """Stop where a step destroyed the model; what was saved before it stays the run's last checkpoint."""
        saved = read_checkpoints(self.folder)
        assert saved is not None, "a run begins with a checkpoint"
        raise RegardError(
            f"{fault}, so the model is destroyed and is not saved. The run stays as it was saved in {saved.last}. "
            f"Begin another run with a lower learning rate ({self.config.learning_rate:g}), or with more warm-up steps "
            f"({self.config.warmup_steps})"
        )

    def _validate(self, *, in_turn: bool = False) -> None:
        state = self.state
        loss = self.engine.validate()
        if loss is not None and not math.isfinite(loss):
            self._stop_destroyed(f"after step {state.step} the validation loss is {loss}")
        state.validated_step = state.step
        self.unsaved = True
        if loss is None:
            return

        best = math.inf if state.best_loss is None else state.best_loss
        improved = loss < best
        if improved:
            state.best_step = state.step
            state.best_loss = loss
            self.is_best = True
        least = LEAST_IMPROVEMENT if self.config.steps is None else 0.0
        if loss < best * (1 - least):
            state.without_improvement = 0
        elif in_turn:
            # A last validation out of turn costs no patience.
            state.without_improvement += 1

        skills = self.engine.skills()
        shares = {f"{RIGHT}{name}": share for name, share in skills.items()}
        self._write("validation", loss=loss, **shares)
        # Saved before it is called the best so far: what is reported must be there after a kill.
        if improved:
            self._save()
        self._report(Validated(state.step, loss, improved, skills))
        if self.on_validation is not None and self.workers.is_main:
            self.on_validation(self.model.eval(), state.step, self.folder)

    def _save(self) -> None:
        self.state.wall_seconds = self.clock.wall()
        self.state.cpu_seconds = self.clock.cpu()
        if self.workers.is_main:
            weights = self.model.state_dict()
            moments = moments_of(self.model, self.engine.optimiser)
            if self.log is not None:
                self.log.sync()
            saved = save_checkpoint(
                self.folder, weights, moments, self.state, self.identity, is_best=self.is_best
            )
            self._report(Saved(self.state.step, saved.name, self.is_best))
        self.workers.wait()
        self.unsaved = False
        self.is_best = False


def _as_named_now(fingerprint: dict[str, Any]) -> dict[str, Any]:
    """The fingerprint of a run, whose settings have the names and the defaults that they have now."""
    settings = as_named_now(fingerprint["training"])
    return {**fingerprint, "training": {"accumulate": 1, **settings}}
