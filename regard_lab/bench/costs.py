"""Measures the figures of regard/core/costs.py with calls of the library, beside their values there.

Times are CPU seconds on one thread, in turns with the call that gives the unit: a floating-point operation of a fused
call of 1,024 queries and keys. The cost that a plan states is linear in each figure. So a figure is what makes the
stated cost equal to the measured time, while all other figures keep their values. Figures of cuda are estimates, and
are not measured.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch

import regard as rg
from regard import bias, mechanisms, patterns
from regard.backends import BACKENDS, composed
from regard.backends.native.library import load
from regard.core import costs
from regard.core.call import make_problem
from regard.core.plan import Plan, make_plan
from regard.errors import ArgumentError
from regard.mechanisms.base import Sizes
from regard_lab.bench.measuring import Pace, take_turns, threads
from regard_lab.bench.processors import processor
from regard_lab.bench.results import environment
from regard_lab.text.remarks import Tell, silent
from regard_lab.text.writing import markdown_table

HEADS = 4
DIM = 64  # of a head


@dataclass(frozen=True)
class Measurement:
    """A call whose cost depends on a figure.

    `key` is the entry of the figure where it has several, `options` are those of the call. With `shared` the queries
    are the last keys, as in LSH attention.
    """

    figure: str
    backend: str
    q_len: int = 1024
    k_len: int = 1024
    key: str | None = None
    dtype: torch.dtype = torch.float32
    learns: bool = False
    shared: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.figure if self.key is None else f"{self.figure}[{self.key!r}]"

    @property
    def value(self) -> float:
        """The figure as it stands in the file."""
        figure = getattr(costs, self.figure)
        return figure if self.key is None else figure[self.key]

    @contextmanager
    def with_value(self, value: float) -> Generator[None]:
        """Within the block, plans count with another value."""
        before = getattr(costs, self.figure)
        setattr(costs, self.figure, value if self.key is None else {**before, self.key: value})
        try:
            yield
        finally:
            setattr(costs, self.figure, before)

    def tensors(self) -> list[torch.Tensor]:
        """q, k and v; q and k may have memory in common."""
        tensors = []
        for length in (self.q_len, self.k_len, self.k_len):
            x = torch.randn(1, HEADS, length, DIM, dtype=self.dtype)
            tensors.append(x.requires_grad_(self.learns))
        return tensors

    def inputs(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors as the call takes them."""
        q, k, v = tensors
        if self.shared:
            q = k[:, :, -self.q_len :]
        return [q, k, v]

    def plan(self) -> Plan:
        problem = make_problem(*self.inputs(self.tensors()), **self.options)
        return make_plan(problem, BACKENDS, self.backend)

    def call(self) -> Callable[[], object]:
        """The call that is timed, with its backward pass where the figure belongs to one."""
        tensors = self.tensors()
        attend = rg.attention_detail if "want" in self.options else rg.attention
        forward: Callable[[], Any] = partial(
            attend, *self.inputs(tensors), backend=self.backend, **self.options
        )
        if not self.learns:
            return forward
        grad = torch.randn(1, HEADS, self.q_len, DIM, dtype=self.dtype)
        leaves: list[torch.Tensor] = tensors[1:] if self.shared else tensors
        return lambda: torch.autograd.grad(forward(), leaves, grad)

    def figure_of(self, operations: float) -> float:
        """The value with which the stated cost is this number of operations."""
        with self.with_value(0.0):
            without = self.plan().cost.work_on("cpu")
        stated = self.plan().cost.work_on("cpu")
        return self.value * (operations - without) / (stated - without)


def of_pytorch() -> list[Measurement]:
    return [
        Measurement("BYTE", "decode", q_len=1, k_len=1 << 16, key="cpu"),
        Measurement("LAUNCH", "fused", q_len=8, k_len=8, key="cpu"),
    ]


def of_streamed() -> list[Measurement]:
    # A bias by distance: fused operations would compute the blocks of a call without options.
    plain = {"bias": bias.ALiBi()}
    window = {"pattern": "causal_window(16)", **plain}
    dropout = {"dropout": 0.1, "dropout_seed": 3}
    return [
        Measurement("STREAMED_PAIR", "streamed", options=plain),
        Measurement("STREAMED_PAIR_BACKWARD", "streamed", learns=True, options=plain),
        Measurement("STREAMED_START", "streamed", q_len=8, k_len=8, options=plain),
        Measurement("STREAMED_BLOCK", "streamed", q_len=4096, k_len=4096, options=window),
        Measurement("TANH_TERM", "streamed", 512, 512, options=additive()),
        Measurement("TANH_TERM_BACKWARD", "streamed", 512, 512, learns=True, options=additive()),
        Measurement("STATISTICS_PAIR", "fused", options={"want": ("entropy",)}),
        Measurement("DROPOUT_PAIR", "streamed", options=dropout),
    ]


def additive() -> dict[str, Any]:
    """Softmax over sums of tanh, with its parameters."""
    score = mechanisms.Additive(DIM, DIM, DIM)
    mechanism = mechanisms.Softmax(score)
    shapes = mechanism.parameter_shapes(Sizes(1, HEADS, HEADS, 512, DIM))
    parameters = {name: torch.randn(shape) / 8 for name, shape in shapes.items()}
    return {"mechanism": mechanism, "parameters": parameters}


def of_lsh() -> list[Measurement]:
    lsh = {"mechanism": "lsh(64, 32)"}
    return [
        Measurement("LSH_PAIR", "lsh", shared=True, options=lsh),
        Measurement("LSH_PAIR_BACKWARD", "lsh", learns=True, shared=True, options=lsh),
        # All keys in one chunk: nothing is hashed.
        Measurement("LSH_DENSE_PAIR", "lsh", shared=True, options={"mechanism": "lsh(1024, 2)"}),
    ]


def of_kernel() -> list[Measurement]:
    """The figures of the native kernel for the instructions of this processor; none where it is not built."""
    library = load()
    if isinstance(library, str):
        return []
    keys = torch.rand(1, HEADS, 1024, 1024).argsort(-1)[..., :128].sort(-1).values
    listed = {"pattern": patterns.ChosenKeys(keys)}
    retention = {"mechanism": "retention", "pattern": "causal"}
    measurements = [
        Measurement("KERNEL_PACE", "native", key=library.instructions),
        Measurement("KERNEL_PACE_FLOAT64", "native", dtype=torch.float64),
        Measurement("KERNEL_TIMES_BY_ROW", "native", options=listed),
        Measurement("KERNEL_STATISTICS_PAIR", "native", options={"want": ("entropy",)}),
        Measurement("KERNEL_WEIGHT_AGAIN", "native", options={"want": ("received",)}),
        Measurement("KERNEL_RECURRENCE_PACE", "native", options=retention),
    ]
    if library.instructions == "AVX-512 with BF16":
        measurements.append(Measurement("KERNEL_PACE_BFLOAT16", "native", dtype=torch.bfloat16))
    return measurements


def seconds_in_turns(
    unit: Callable[[], object], call: Callable[[], object], rounds: int
) -> tuple[float, float]:
    """The medians of both calls, in CPU seconds."""
    pace = Pace(rounds=rounds, slow_rounds=min(3, rounds))
    times = take_turns({"unit": unit, "call": call}, time.process_time, pace)
    return times["unit"].median, times["call"].median


def row_block_pace(learns: bool, rounds: int) -> float:
    """The time of a pair in row blocks of 64 rows, in that of a pair in row blocks of 256 rows."""
    tensors = Measurement("ROW_BLOCK_PACE", "fused", learns=learns).tensors()
    problem = make_problem(*tensors, pattern="causal_window(512)")
    chosen = composed.ROWS
    plans = {}
    try:
        for rows in (64, 256):
            composed.ROWS = {rows: (1.0, 1.0)}
            plans[rows] = make_plan(problem, BACKENDS, "fused")
    finally:
        composed.ROWS = chosen
    if learns:
        grad = torch.randn(1, HEADS, 1024, DIM)
        outputs = {rows: plan.run(*tensors) for rows, plan in plans.items()}
        backward = partial(
            torch.autograd.grad, inputs=tensors, grad_outputs=grad, retain_graph=True
        )
        calls = [partial(backward, outputs[rows]) for rows in (64, 256)]
    else:
        calls = [partial(plans[rows].run, *tensors) for rows in (64, 256)]
    few, many = seconds_in_turns(*calls, rounds)
    return (few / plans[64].cost.pairs) / (many / plans[256].cost.pairs)


ROW_BLOCKS = "ROW_BLOCK_PACE"


@dataclass(frozen=True)
class MeasuredFigure:
    """A figure by name, its value in the file, and what was measured."""

    name: str
    value: float
    measured: float


def measure_costs(
    names: Collection[str] = (), *, rounds: int = 9, tell: Tell = silent
) -> list[MeasuredFigure]:
    """Measure the figures with these names, on one thread; all of them without names.

    Raises:
        ArgumentError: a name that no figure has.
    """
    with threads(1):
        torch.manual_seed(0)
        measurements = [*of_pytorch(), *of_streamed(), *of_lsh(), *of_kernel()]
        known = {measurement.figure for measurement in measurements} | {ROW_BLOCKS}
        unknown = sorted(set(names) - known)
        if unknown:
            raise ArgumentError(
                f"there is no figure {', '.join(unknown)}; figures are {', '.join(sorted(known))}"
            )
        fused = Measurement("", "fused")
        unit = fused.call()
        flops = fused.plan().cost.flops
        figures = []
        for measurement in measurements:
            if names and measurement.figure not in names:
                continue
            tell(f"measuring {measurement.name}")
            of_unit, of_call = seconds_in_turns(unit, measurement.call(), rounds)
            measured = measurement.figure_of(of_call / (of_unit / flops))
            figures.append(MeasuredFigure(measurement.name, measurement.value, measured))
        if not names or ROW_BLOCKS in names:
            for place, direction in enumerate(("forward", "backward")):
                tell(f"measuring {ROW_BLOCKS}, {direction}")
                measured = row_block_pace(direction == "backward", rounds)
                value = costs.ROW_BLOCK_PACE[64][place]
                figures.append(MeasuredFigure(f"{ROW_BLOCKS}[64], {direction}", value, measured))
    return figures


def costs_to_json(figures: Collection[MeasuredFigure]) -> str:
    """The figures as JSON text, with the environment that they depend on."""
    return json.dumps(
        {"environment": environment(), "figures": [asdict(figure) for figure in figures]}
    )


def describe_costs(figures: Collection[MeasuredFigure]) -> str:
    """A table of figures with the processor, as a maintainer needs it."""
    library = load()
    instructions = "no kernel" if isinstance(library, str) else f"kernel for {library.instructions}"
    rows = []
    for figure in figures:
        rows.append((figure.name, f"{figure.value:g}", f"{figure.measured:.3g}"))
    lines = [
        f"{processor()}; {instructions}; torch {torch.__version__}",
        "",
        *markdown_table(("figure", "in the file", "measured"), rows),
        "",
        "Plans on processors like this one become better if these lines are known: send them with the name of the",
        'machine, as a report of the kind "Figures of a processor" in the list of issues of regard.',
    ]
    return "\n".join(lines)
