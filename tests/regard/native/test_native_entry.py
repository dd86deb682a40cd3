"""The C entry refuses every size, offset and array that does not fit the others, before anything is written."""

import ctypes
import random
from collections.abc import Callable

import pytest
import torch

import regard as rg
from regard.backends.native import library, program
from regard.backends.native.bands import RowBand
from regard.backends.native.filling import KernelCall, describe
from regard.backends.native.kernel import KernelStatistics
from regard.backends.native.library import MOST_TOP
from regard.backends.native.lowering import Lowered, band_schedules, lower
from regard.backends.schedule import Arrays, RunKind
from regard.core.call import make_problem
from regard.errors import RegardError
from regard.patterns.band import Band

Q = torch.randn(2, 4, 300, 8)
K = torch.randn(2, 2, 300, 8)
WITH_BOUNDS = "sliding_window(20) | global_tokens(0)"
WITH_BITS = "strided(7, local=false)"
WANT = ["entropy", "distance", "received", rg.top_keys(5), rg.weights_of([3, 299], [1])]
UNWRITTEN = 7.0
NAMES_OF_ARRAYS = ("blocks", "runs", "lo", "hi", "bits")


class SoundCall:
    """A call of the kernel that computes every statistic, for a test to damage."""

    def __init__(self, pattern: str = WITH_BOUNDS) -> None:
        problem = make_problem(Q, K, K, pattern=pattern, want=WANT)
        self.output = torch.full((2, 4, 300, 8), UNWRITTEN)
        self.sums = torch.full((2, 4, 300), UNWRITTEN)
        self.starts = torch.zeros(2, dtype=torch.int64)
        self.statistics = KernelStatistics(problem, range(300), torch.float32)
        self.kernel_call = KernelCall(problem)
        self.struct = self.kernel_call.struct
        self.struct.first_key = 0
        self.struct.keys = 300
        self.struct.threads = 1
        self.struct.start = self.starts.data_ptr()
        self.struct.log_sum_exp = self.sums.data_ptr()
        self.struct.statistics = self.statistics.address
        self.use(lower(problem, range(300), [0]))
        for tensor_struct, x in zip(self.kernel_call.tensors, (Q, K, K, self.output), strict=True):
            describe(tensor_struct, x)

    def compute(self, native) -> None:
        native.forward(self.kernel_call.address)

    def use(self, lowered: Lowered) -> None:
        self.lowered = lowered  # the struct points at it
        self.struct.schedules = len(lowered.schedules)
        self.struct.schedule = lowered.address

    @property
    def arrays(self) -> Arrays:
        return self.lowered.schedules[0][0]

    def set(self, **fields: int | None) -> None:
        for name, value in fields.items():
            setattr(self.struct, name, value)

    def set_statistics(self, **fields: int | None) -> None:
        for name, value in fields.items():
            setattr(self.statistics._struct, name, value)

    def set_head_slot(self, head: int, slot: int) -> None:
        self.statistics._slots[0][head] = slot

    def set_row_slot(self, row: int, slot: int) -> None:
        self.statistics._slots[1][row] = slot

    def set_array(self, name: str, place: tuple[int, int], number: int) -> None:
        """Replace a number of an array of the schedule; the arrays of other calls stay as they are."""
        arrays = {other: getattr(self.arrays, other).clone() for other in NAMES_OF_ARRAYS}
        arrays[name][place] = number
        self.use(Lowered([(Arrays(**arrays), 0)], None))

    def first_run_of(self, kind: RunKind) -> int:
        return int((self.arrays.runs[:, 2] == kind).nonzero()[0])


def name_a_run_behind_the_last(call: SoundCall) -> None:
    last_block = len(call.arrays.blocks) - 1
    call.set_array("blocks", (last_block, 3), len(call.arrays.runs) + 1)


def empty_a_run(call: SoundCall) -> None:
    call.set_array("runs", (0, 1), int(call.arrays.runs[0, 0]))


def name_bounds_behind_the_last(call: SoundCall) -> None:
    call.set_array("runs", (call.first_run_of(RunKind.BOUNDED), 3), len(call.arrays.lo) - 5)


def name_bits_behind_the_last(call: SoundCall) -> None:
    call.set_array("runs", (call.first_run_of(RunKind.BITS), 3), len(call.arrays.bits) - 1)


# What is wrong: the code of the refusal, and what a test does to a call.
DAMAGES: dict[str, tuple[int, Callable[[SoundCall], object]]] = {
    "no batch": (2, lambda call: call.set(batch=0)),
    "heads that do not divide": (2, lambda call: call.set(kv_heads=3)),
    "keys beyond 32 bits": (2, lambda call: call.set(first_key=2**31 - 10)),
    "a first row that is not 0": (3, lambda call: call.set_array("blocks", (0, 0), 1)),
    "a block that ends before it begins": (3, lambda call: call.set_array("blocks", (0, 1), 0)),
    "runs that do not exist": (3, name_a_run_behind_the_last),
    "a run before the first key": (4, lambda call: call.set_array("runs", (0, 0), -1)),
    "an empty run": (4, empty_a_run),
    "an unknown kind": (4, lambda call: call.set_array("runs", (0, 2), 3)),
    "bounds that are not there": (5, name_bounds_behind_the_last),
    "bits behind their array": (5, name_bits_behind_the_last),
    "a stride that leaves the tensor": (6, lambda call: setattr(call.struct.k, "row", 9)),
    "a stride that would overflow": (6, lambda call: setattr(call.struct.v, "batch", 2**62)),
    "an unknown dtype": (6, lambda call: setattr(call.struct.out, "type", 9)),
    "int8 keys without scales": (6, lambda call: setattr(call.struct.k, "type", 3)),
    "an output in another precision": (6, lambda call: setattr(call.struct.out, "type", 4)),
    "no tensor": (6, lambda call: setattr(call.struct.q, "data", None)),
    "no thread": (7, lambda call: call.set(threads=0)),
    "dropout without positions": (7, lambda call: call.set(dropout=0.5, start=None)),
    "distances without positions": (7, lambda call: call.set(start=None)),
    "sums for keys without the log-sum-exp": (7, lambda call: call.set(log_sum_exp=None)),
    "weights without the log-sum-exp": (
        7,
        lambda call: (call.set(log_sum_exp=None), call.set_statistics(received=None)),
    ),
    "more top keys than the kernel keeps": (7, lambda call: call.set_statistics(top=MOST_TOP + 1)),
    "top keys without their weights": (7, lambda call: call.set_statistics(top_weights=None)),
    "a negative number of rows": (7, lambda call: call.set_statistics(weight_rows=-2)),
    "no places of heads": (7, lambda call: call.set_statistics(head_slot=None)),
    "a head behind the last": (7, lambda call: call.set_head_slot(3, 1)),
    "a head before the first": (7, lambda call: call.set_head_slot(0, -2)),
    "a row behind the last": (7, lambda call: call.set_row_slot(299, 2)),
}


def test_a_sound_call_with_statistics_is_computed(native):
    call = SoundCall()
    call.compute(native)
    expected = rg.attention_detail(Q, K, K, pattern=WITH_BOUNDS, want=WANT, backend="reference")
    found = call.statistics.results()
    torch.testing.assert_close(call.output, expected.output)
    torch.testing.assert_close(found["entropy"], expected.entropy)
    torch.testing.assert_close(found["chosen_weights"], expected.chosen_weights)


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_call_is_refused_and_writes_nothing(native, name):
    code, damage = DAMAGES[name]
    call = SoundCall(WITH_BITS if name.startswith("bits") else WITH_BOUNDS)
    damage(call)
    with pytest.raises(RegardError, match="native kernel refused a call") as refusal:
        call.compute(native)
    assert library._WRONG[code] in str(refusal.value)
    assert (call.output == UNWRITTEN).all()
    assert (call.sums == UNWRITTEN).all()
    for statistic, x in call.statistics._made.items():
        assert (x == (-1 if statistic == "top_keys" else 0)).all()


def test_schedules_that_do_not_exist_are_refused(native):
    call = SoundCall()
    schedule_of = torch.zeros(2, 4, dtype=torch.int32)
    call.struct.schedule_of = schedule_of.data_ptr()
    call.compute(native)
    schedule_of[1, 2] = 1
    with pytest.raises(RegardError, match="array is missing"):
        call.compute(native)


class WindowedCall(SoundCall):
    """A call of five windows, for a test to damage."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.arange(0, 301, 60, dtype=torch.int32)
        self.cells = torch.arange(299, -1, -1, dtype=torch.int32)
        self.windows = library.CWindows(
            windows=5, first=self.first.data_ptr(), cell=self.cells.data_ptr()
        )
        self.set(windows=ctypes.addressof(self.windows), statistics=None)

    def set_first(self, window: int, place: int) -> None:
        self.first[window] = place

    def set_cell(self, place: int, cell: int) -> None:
        self.cells[place] = cell


DAMAGES_OF_WINDOWS: dict[str, tuple[int, Callable[[WindowedCall], object]]] = {
    "no window": (3, lambda call: setattr(call.windows, "windows", 0)),
    "more windows than positions": (3, lambda call: setattr(call.windows, "windows", 2**31 - 1)),
    "no positions": (3, lambda call: setattr(call.windows, "cell", None)),
    "a first position that is not 0": (3, lambda call: call.set_first(0, 1)),
    "an empty window": (3, lambda call: call.set_first(2, 60)),
    "a window behind the last position": (3, lambda call: call.set_first(4, 400)),
    "positions without a window": (3, lambda call: call.set_first(5, 299)),
    "a position before the first": (3, lambda call: call.set_cell(7, -1)),
    "a position behind the last": (3, lambda call: call.set_cell(7, 300)),
    "fewer keys than queries": (7, lambda call: call.set(keys=299)),
    "keys from another one on": (7, lambda call: call.set(first_key=1)),
    "dropout": (7, lambda call: call.set(dropout=0.5)),
    "statistics": (7, lambda call: call.set(statistics=call.statistics.address)),
    "int8 values": (7, lambda call: setattr(call.struct.v, "type", 3)),
}


def test_a_call_of_windows_is_computed(native):
    call = WindowedCall()
    call.compute(native)
    windows = 299 - torch.arange(300).view(5, 60)
    for cells in windows:
        expected = rg.attention(Q[:, :, cells], K[:, :, cells], K[:, :, cells])
        torch.testing.assert_close(call.output[:, :, cells], expected)


@pytest.mark.parametrize("name", DAMAGES_OF_WINDOWS)
def test_damaged_windows_are_refused_and_nothing_is_written(native, name):
    code, damage = DAMAGES_OF_WINDOWS[name]
    call = WindowedCall()
    damage(call)
    with pytest.raises(RegardError, match="native kernel refused a call") as refusal:
        call.compute(native)
    assert library._WRONG[code] in str(refusal.value)
    assert (call.output == UNWRITTEN).all()
    assert (call.sums == UNWRITTEN).all()


STRUCTS = (
    library.CSchedule,
    library.CTensor,
    library.CBias,
    library.CCall,
    library.CGradients,
    library.CStatistics,
    library.CRecurrence,
    library.CRecurrenceGradients,
    library.CLists,
    library.CVisible,
    program.COperation,
    program.CProgram,
    program.CWriting,
    library.CWindows,
)


def test_the_structs_of_python_and_c_have_equal_sizes(native):
    sizes = (ctypes.c_int32 * len(STRUCTS))()
    native.handle.rg_sizes(sizes)
    assert list(sizes) == [ctypes.sizeof(struct) for struct in STRUCTS]


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
        ((found, origin),) = band_schedules(band, [position], 1, keys)
        with monkeypatch.context() as patch:
            patch.setattr(RowBand, "bounds_of_one_query", lambda *arguments: None)
            ((expected, expected_origin),) = band_schedules(band, [position], 1, keys)
        assert origin == expected_origin
        for name in NAMES_OF_ARRAYS:
            numbers = getattr(found, name)
            assert numbers.dtype == getattr(expected, name).dtype
            assert torch.equal(numbers, getattr(expected, name)), (name, band, keys)
