"""What lessons compute with: seeded vectors of words, watched modules, CPU milliseconds."""

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cmp_to_key
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from regard.arguments import count_of
from regard.errors import ArgumentError
from regard_lab.bench.measuring import Pace, take_turns, threads
from regard_lab.seeing.terminal import visible

MOST_WORDS = 120
ROUNDING = "equal except for rounding"  # of claims that compare two results in float64
Module = TypeVar("Module", bound=torch.nn.Module)


def words_of(text: str, least: int = 2) -> tuple[str, ...]:
    r"""Split a text into words that are safe to print.

    >>> words_of("the cat\tsleeps")
    ('the', 'cat', 'sleeps')
    """
    words = tuple(map(visible, text.split()))
    if not least <= len(words) <= MOST_WORDS:
        raise ArgumentError(
            f"the text has {count_of(len(words), 'words')}; this lesson takes {least} to {MOST_WORDS}"
        )
    return words


def embedded(words: Sequence[str], dim: int, seed: int) -> torch.Tensor:
    """A vector of standard normal numbers for each different word, (1, length, dim) in float64.

    >>> x = embedded(("the", "cat", "the"), 4, seed=0)
    >>> x.shape, torch.equal(x[:, 0], x[:, 2])
    (torch.Size([1, 3, 4]), True)
    """
    vocabulary = sorted(set(words))
    vectors = normal(seed, len(vocabulary), dim)
    return vectors[[vocabulary.index(word) for word in words]][None]


def normal(seed: int, *shape: int) -> torch.Tensor:
    """Standard normal numbers in float64, the same on every machine."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def seeded(seed: int, module: type[Module], *sizes: Any, **options: Any) -> Module:
    """A module in float64 with weights drawn from a seed; the state of torch's generator is left unchanged."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # those of other devices are not used
        return module(*sizes, **options).double()


def rounded(values: torch.Tensor, digits: int = 4) -> Any:
    """Nested lists, rounded so that different processors give the same values."""
    return torch.round(values.detach().double(), decimals=digits).tolist()


def largest(values: torch.Tensor) -> float:
    """The largest absolute value; 0 for an empty tensor."""
    return float(values.detach().abs().max()) if values.numel() else 0.0


def operations(call: Callable[[], object]) -> int:
    """Floating-point operations of the matrix products and convolutions of a call, as torch counts them.

    >>> operations(lambda: torch.zeros(2, 3) @ torch.zeros(3, 4))
    48
    """
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


def comparisons(numbers: Sequence[int]) -> int:
    """How many comparisons a sort of the numbers makes.

    >>> comparisons([1, 2, 3, 4])
    3
    """
    count = 0

    def compare(left: int, right: int) -> int:
        nonlocal count
        count += 1
        return left - right

    sorted(numbers, key=cmp_to_key(compare))
    return count


Name = TypeVar("Name", bound=Hashable)
PACE = Pace(rounds=41, slow_rounds=5, slow=0.05, shortest=0.001)  # times in seconds


def milliseconds(calls: Mapping[Name, Callable[[], object]]) -> dict[Name, float]:
    """The least CPU time of each call in milliseconds, on one thread and without gradients.

    The least of many rounds in turns, because other work on the machine only adds time.
    """
    named = {str(name): call for name, call in calls.items()}
    with threads(1), torch.no_grad():
        times = take_turns(named, time.process_time, PACE)
    return {name: round(1e3 * min(times[str(name)].samples), 3) for name in calls}


@dataclass
class Watched:
    """The calls of one module: the first input of each, and what it returned."""

    inputs: list[torch.Tensor] = field(default_factory=list)
    outputs: list[torch.Tensor] = field(default_factory=list)

    @property
    def calls(self) -> int:
        return len(self.outputs)

    def add_call(
        self, module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor
    ) -> None:
        """The hook that a module calls after its forward pass."""
        self.inputs.append(inputs[0])
        self.outputs.append(output)


def watch(modules: Mapping[str, nn.Module], call: Callable[[], object]) -> dict[str, Watched]:
    """Run `call` without gradients, and return what each module read and returned, by name.

    >>> layer = nn.Linear(2, 3)
    >>> watch({"layer": layer}, lambda: layer(torch.zeros(1, 2)))["layer"].outputs[0].shape
    torch.Size([1, 3])
    """
    watched = {name: Watched() for name in modules}
    with ExitStack() as hooks, torch.no_grad():
        for name, module in modules.items():
            hooks.enter_context(module.register_forward_hook(watched[name].add_call))
        call()
    return watched
