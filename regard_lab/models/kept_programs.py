"""The last program of each model: making one takes longer than running it a few times, so texts begin with a copy."""

from __future__ import annotations

import operator
import weakref
from typing import Any, Generic, NamedTuple, TypeVar

from torch import nn

from regard.backends.native.program import Form
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

    def find(self, model: nn.Module, origin: Origin) -> ProgramT | None:
        """The program of a model; None unless it was made from the same, and the weights are where they were."""
        kept = self._kept.get(model)
        if kept is None or not kept.origin.is_that_of(origin):
            return None
        program = kept.program
        return program if program.has_weights() and program.forms() == kept.forms else None

    def keep(self, model: nn.Module, origin: Origin, program: ProgramT) -> None:
        self._kept[model] = _KeptProgram(origin, program.forms(), program)

    def forget(self, model: nn.Module) -> None:
        """Keep nothing of a model, whose program would keep the weights of before."""
        self._kept.pop(model, None)
