"""The last program of each model: making one takes longer than running it a few times, so texts begin with a copy."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import nn

from regard.backends.native.program import Form, Program, library_of_programs
from regard_lab.models import model_program
from regard_lab.models.model_program import ModelProgram
from regard_lab.models.passed_modules import PassedModules

ProgramT = TypeVar("ProgramT", bound=ModelProgram)


class Origin(NamedTuple):
    """What the program of a model was made from: its parameters, and whatever else it depends on."""

    parameters: list[nn.Parameter | None]
    settings: list[Any]

    @classmethod
    def of(cls, modules: PassedModules, *settings: Any) -> Origin:
        return cls(modules.parameters(), [*settings, *modules.settings()])

    def is_that_of(self, other: Origin) -> bool:
        return (
            len(self.parameters) == len(other.parameters)
            and self.settings == other.settings
            and all(map(operator.is_, self.parameters, other.parameters))
        )


class _KeptProgram(NamedTuple, Generic[ProgramT]):
    origin: Origin
    forms: list[Form]
    program: ProgramT


class KeptPrograms(Generic[ProgramT]):
    """The last program of each model. It is copied, and never run."""

    def __init__(self) -> None:
        self._kept: weakref.WeakKeyDictionary[nn.Module, _KeptProgram[ProgramT]] = (
            weakref.WeakKeyDictionary()
        )

    def for_new_texts(
        self, model: Any, modules: PassedModules, make: Callable[[Program], ProgramT | None]
    ) -> ProgramT | None:
        """A program of a model that reads nothing yet; None where there is no library, or a program cannot compute it.

        Args:
            model: one with a config.
            modules: those that the program does not call.
            make: gives an empty program the operations of the model; returns None if it needs others.
        """
        library = library_of_programs()
        program = None
        if library is not None:
            origin = Origin.of(modules, model.config.norm, model.config.dim)
            program = self._find(model, origin)
            if program is None and _may_be_read(modules):
                program = make(Program(library))
                if program is not None:
                    self._kept[model] = _KeptProgram(origin, program.forms(), program)
        if program is None:
            self._kept.pop(model, None)  # it would keep the weights of before
            return None
        return program.of_new_texts()

    def _find(self, model: nn.Module, origin: Origin) -> ProgramT | None:
        """The kept program; None unless it was made from the same, and the weights are where they were."""
        kept = self._kept.get(model)
        if kept is None or not kept.origin.is_that_of(origin):
            return None
        program = kept.program
        return program if program.has_weights() and program.forms() == kept.forms else None


def _may_be_read(modules: PassedModules) -> bool:
    """Whether a program can read all weights of these modules, and reads them in less time than PyTorch."""
    return (
        modules.have_usual_parameters(torch.float32)
        and modules.weight_count() <= model_program.MOST_WEIGHTS
    )
