"""The C entry refuses every size, offset and array that does not fit the others, before anything is written."""

import ctypes
import random
from collections.abc import Callable

import pytest
import torch

import regard as rg
from regard.backends.native import library
from regard.backends.native.bands import RowBand
from regard.backends.native.filling import KernelCall, describe
from regard.backends.native.kernel import KernelStatistics
from regard.backends.native.library import MOST_TOP
from regard.backends.native.lowering import Lowered, band_schedules, lower
from regard.backends.schedule import Arrays
from regard.core.call import make_problem
from regard.errors import RegardError
from regard.patterns.band import Band

Q = torch.randn(2, 4, 300, 8)
K = torch.randn(2, 2, 300, 8)
# with BOUNDED runs; with BITS
PATTERN, BITS = (
    "sliding_window(20) | global_tokens(0)",
    "strided(7, local=false)",
)


class Call:
    """A sound call of the kernel, which a test damages."""

    def __init__(self, pattern: str = PATTERN) -> None:
        self.problem = make_problem(Q, K, K, pattern=pattern)
        self.lowered = lower(self.problem, range(300), [0])
        self.output = torch.full((2, 4, 300, 8), 7.0)
        self.kernel_call = KernelCall(self.problem)
        call = self.call = self.kernel_call.struct
        call.first_key, call.keys, call.threads = 0, 300, 1
        self.use(self.lowered)
        for into, x in zip(self.kernel_call.tensors, (Q, K, K, self.output), strict=True):
            describe(into, x)

    def use(self, lowered: Lowered) -> None:
        self.lowered = lowered
        self.call.schedules, self.call.schedule = len(lowered.schedules), lowered.address

    @property
    def arrays(self) -> Arrays:
        return self.lowered.schedules[0][0]

    def change(self, name: str, place: tuple[int, ...], number: int) -> None:
        """Replace a number of an array of the schedule; the arrays of other calls stay as they are."""
        arrays = {
            one: getattr(self.arrays, one).clone() for one in ("blocks", "runs", "lo", "hi", "bits")
        }
        arrays[name][place] = number
        self.use(Lowered([(Arrays(**arrays), 0)], None))


def _run_of(kind: int, call: Call) -> int:
    return int((call.arrays.runs[:, 2] == kind).nonzero()[0])


DAMAGES: dict[str, tuple[int, Callable[[Call], object]]] = {
    "no batch": (2, lambda c: setattr(c.call, "batch", 0)),
    "heads that do not divide": (2, lambda c: setattr(c.call, "kv_heads", 3)),
    "keys beyond 32 bits": (2, lambda c: setattr(c.call, "first_key", 2**31 - 10)),
    "a first row that is not 0": (3, lambda c: c.change("blocks", (0, 0), 1)),
    "a block that ends before it begins": (3, lambda c: c.change("blocks", (0, 1), 0)),
    "runs that do not exist": (
        3,
        lambda c: c.change("blocks", (len(c.arrays.blocks) - 1, 3), len(c.arrays.runs) + 1),
    ),
    "a run before the first key": (4, lambda c: c.change("runs", (0, 0), -1)),
    "an empty run": (4, lambda c: c.change("runs", (0, 1), int(c.arrays.runs[0, 0]))),
    "an unknown kind": (4, lambda c: c.change("runs", (0, 2), 3)),
    "bounds that are not there": (
        5,
        lambda c: c.change("runs", (_run_of(1, c), 3), len(c.arrays.lo) - 5),
    ),
    "bits behind their array": (
        5,
        lambda c: c.change("runs", (_run_of(2, c), 3), len(c.arrays.bits) - 1),
    ),
    "a stride that leaves the tensor": (6, lambda c: setattr(c.call.k, "row", 9)),
    "a stride that would overflow": (6, lambda c: setattr(c.call.v, "batch", 2**62)),
    "an unknown dtype": (6, lambda c: setattr(c.call.out, "type", 9)),
    "int8 keys without scales": (6, lambda c: setattr(c.call.k, "type", 3)),
    "an output in another precision": (6, lambda c: setattr(c.call.out, "type", 4)),
    "no tensor": (6, lambda c: setattr(c.call.q, "data", None)),
    "no thread": (7, lambda c: setattr(c.call, "threads", 0)),
    "dropout without positions": (
        7,
        lambda c: [setattr(c.call, "dropout", 0.5), setattr(c.call, "start", None)],
    ),
}


class Watched(Call):
    """A sound call that computes every statistic."""

    def __init__(self, pattern: str = PATTERN) -> None:
        super().__init__(pattern)
        self.starts = torch.zeros(2, dtype=torch.int64)
        self.sums = torch.full((2, 4, 300), 7.0)
        want = ["entropy", "distance", "received", rg.top_keys(5), rg.weights_of([3, 299], [1])]
        self.asked = KernelStatistics(
            make_problem(Q, K, K, pattern=pattern, want=want), range(300), torch.float32
        )
        self.struct = self.asked._struct
        self.call.start, self.call.log_sum_exp = self.starts.data_ptr(), self.sums.data_ptr()
        self.call.statistics = self.asked.address

    def place(self, name: str, at: int, number: int) -> None:
        """Change the place of a head or of a row among the chosen weights."""
        self.asked._slots[("head_slot", "row_slot").index(name)][at] = number


STATISTICS: dict[str, Callable[[Watched], object]] = {
    "distances without positions": lambda c: setattr(c.call, "start", None),
    "sums for keys without the log-sum-exp": lambda c: setattr(c.call, "log_sum_exp", None),
    "weights without the log-sum-exp": lambda c: (
        setattr(c.call, "log_sum_exp", None),
        setattr(c.struct, "received", None),
    ),
    "more top keys than the kernel keeps": lambda c: setattr(c.struct, "top", MOST_TOP + 1),
    "top keys without their weights": lambda c: setattr(c.struct, "top_weights", None),
    "a negative number of rows": lambda c: setattr(c.struct, "weight_rows", -2),
    "no places of heads": lambda c: setattr(c.struct, "head_slot", None),
    "a head behind the last": lambda c: c.place("head_slot", 3, 1),
    "a head before the first": lambda c: c.place("head_slot", 0, -2),
    "a row behind the last": lambda c: c.place("row_slot", 299, 2),
}


def test_a_sound_call_with_statistics_is_computed(native):
    call = Watched()
    native.forward(call.kernel_call.address)
    want = ["entropy", rg.weights_of([3, 299], [1])]
    expected = rg.attention_detail(Q, K, K, pattern=PATTERN, want=want, backend="reference")
    found = call.asked.results()
    torch.testing.assert_close(call.output, expected.output)
    torch.testing.assert_close(found["entropy"], expected.entropy)
    torch.testing.assert_close(found["chosen_weights"], expected.chosen_weights)


@pytest.mark.parametrize("name", [*DAMAGES, *STATISTICS])
def test_a_damaged_call_is_refused_and_writes_nothing(native, name):
    code, damage = DAMAGES[name] if name in DAMAGES else (7, STATISTICS[name])
    call = Watched(BITS if name.startswith("bits") else PATTERN)
    damage(call)
    with pytest.raises(RegardError, match="native kernel refused a call") as refusal:
        native.forward(call.kernel_call.address)
    assert library._WRONG[code] in str(refusal.value)
    assert (call.output == 7).all()
    assert (call.sums == 7).all()
    empty = {"top_keys": -1}
    assert all((x == empty.get(key, 0)).all() for key, x in call.asked._made.items())


def test_schedules_that_do_not_exist_are_refused(native):
    call = Call()
    numbers = torch.zeros(2, 4, dtype=torch.int32)
    call.call.schedule_of = numbers.data_ptr()
    native.forward(call.kernel_call.address)
    numbers[1, 2] = 1
    with pytest.raises(RegardError, match="array is missing"):
        native.forward(call.kernel_call.address)


def test_the_structs_of_python_and_c_have_equal_sizes(native):
    sizes = (ctypes.c_int32 * 9)()
    native.handle.rg_sizes(sizes)
    names = (
        "CSchedule",
        "CTensor",
        "CBias",
        "CCall",
        "CGradients",
        "CStatistics",
        "CRecurrence",
        "CRecurrenceGradients",
        "CLists",
    )
    structs = [getattr(library, name) for name in names]
    assert list(sizes) == [ctypes.sizeof(one) for one in structs]


def test_one_query_is_lowered_without_tensors_as_it_is_with_them(monkeypatch):
    draw = random.Random(1)
    for _ in range(300):
        k_len = draw.randint(1, 200)
        position = draw.randint(-20, 220)
        left, right = (draw.choice([None, draw.randint(-5, 90)]) for _ in range(2))
        span = draw.randint(0, k_len), draw.randint(0, k_len + 5)
        first_key = draw.randint(0, k_len)
        keys = range(first_key, draw.randint(first_key, k_len))
        band = RowBand(Band(left, right), [span])
        assert band.bounds_of_one_query([position], 1, keys) is not None
        ((alone, origin),) = band_schedules(band, [position], 1, keys)
        with monkeypatch.context() as patch:
            patch.setattr(RowBand, "bounds_of_one_query", lambda *arguments: None)
            ((arrays, expected_origin),) = band_schedules(band, [position], 1, keys)
        assert origin == expected_origin
        for name in ("blocks", "runs", "lo", "hi", "bits"):
            numbers = getattr(alone, name)
            expected = getattr(arrays, name)
            assert numbers.dtype == expected.dtype
            assert torch.equal(numbers, expected), (name, band, keys)
