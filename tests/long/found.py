"""What a long run found: counts by name, largest values by name, and a sentence for each thing that went wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

KEPT, NOTED = 80, 400  # sentences of things that went wrong, and of others


@dataclass
class Found:
    """Added up over cases."""

    counts: Counter[str] = field(default_factory=Counter)
    largest: dict[str, float] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    noted: list[str] = field(default_factory=list)  # to be looked at, and no failure of itself

    def count(self, name: str, number: int = 1) -> None:
        self.counts[name] += number

    def at_most(self, name: str, value: float) -> None:
        self.largest[name] = max(self.largest.get(name, value), value)

    def add(self, other: Found) -> None:
        self.counts += other.counts
        for name, value in other.largest.items():
            self.at_most(name, value)
        self.wrong = [*self.wrong, *other.wrong][:KEPT]
        self.noted = [*self.noted, *other.noted][:NOTED]


@dataclass(frozen=True)
class Run:
    """One subject of the long tier: numbered cases, each of which is the same whenever it is run.

    Args:
        name: what the command calls it.
        claim: what a case shows, in a sentence.
        unit: what a case is.
        cases: how many there are to be.
        batch: cases between two times that the figure is written.
        place: `module.function` in this package; it takes the cases' numbers and a folder of its own.
        options: further arguments of that function.
    """

    name: str
    claim: str
    unit: str
    cases: int
    batch: int
    place: str
    options: tuple[str, ...] = ()

    def work(self, numbers: Sequence[int], folder: Path) -> Found:
        module, _, function = self.place.rpartition(".")
        call: Callable[..., Found] = getattr(import_module(f"tests.long.{module}"), function)
        return call(numbers, folder, *self.options)

    @property
    def command(self) -> str:
        return f"python -m tests.long {self.name}"
