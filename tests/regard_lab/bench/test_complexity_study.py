"""The study of costs by length: fits, promises beside measurements, sound rows, and what its command prints."""

import json
import math
from dataclasses import replace

import pytest
import torch

from benchmarks.complexity import measuring, memory
from benchmarks.complexity.__main__ import main
from benchmarks.complexity.calls import TimedCall
from benchmarks.complexity.fits import crossover, read_row
from benchmarks.complexity.growth import N_LOG_N, N_ROOT_N, N_SQUARED, N, slope
from benchmarks.complexity.measuring import (
    LENGTHS,
    error_of,
    measure_row,
    measure_times,
    run_complexity,
)
from benchmarks.complexity.memory import measure_memory, memory_here
from benchmarks.complexity.report import describe_table, write_table
from benchmarks.complexity.results import CostTable, Effort
from benchmarks.complexity.rows import ROWS, CostRow
from regard.errors import OccupiedError, RegardError, UnsupportedError
from regard_lab.bench.measuring import Pace

TWO_LENGTHS = Effort(
    trusted=0.0, wanted=2, reach=400, longest=10.0, pace=Pace(rounds=1, shortest=0.0)
)
ENVIRONMENT = {
    "regard": "0",
    "torch": "2",
    "python": "3",
    "packages": {},
    "system": "s",
    "processor": "p",
    "cores": 2,
    "threads": 2,
    "device": "cpu",
}


def ignore(line):
    """Messages before each step, which these tests do not read."""


def points(lengths, seconds, operations=lambda n: n):
    return [{"length": n, "median": seconds(n), "operations": operations(n)} for n in lengths]


def record(seconds, bytes_of=lambda n: 64.0 * n, lengths=LENGTHS[3:9], operations=lambda n: n):
    return {
        "error": 0.0,
        "times": points(lengths, seconds, operations),
        "memory": [{"length": n, "bytes": bytes_of(n)} for n in lengths],
    }


@pytest.fixture
def row():
    """A row of ones that takes as many operations as it has numbers, and that no other backend computes."""
    return CostRow(
        name="ones",
        title="a row",
        cost="n·d",
        growth=N,
        sequential="O(1)",
        path="O(1)",
        prepare=lambda n: TimedCall(lambda: torch.ones(n), n),
        source="a paper",
    )


# --- fits and promises


@pytest.mark.parametrize("power", [0.5, 1.0, 1.5, 2.0])
def test_a_fit_finds_the_power_that_was_put_in(power):
    assert slope(LENGTHS, [3e-5 * n**power for n in LENGTHS]) == pytest.approx(power)


def test_n_log_n_is_told_by_its_own_slope_over_the_lengths():
    exponent = N_LOG_N.exponent([4096, 65536])
    growth_of_log = math.log(65536) / math.log(4096)
    assert exponent == pytest.approx(1 + math.log(growth_of_log) / math.log(16))
    assert N_LOG_N.exponent([2**30, 2**34]) < exponent
    assert [growth.exponent(LENGTHS) for growth in (N, N_ROOT_N, N_SQUARED)] == [1.0, 1.5, 2.0]


def test_only_lengths_that_take_long_enough_count(row):
    def seconds(n):
        return max(1e-7 * n, 5e-4)  # below 5,000 positions all calls take as long

    reading = read_row(row, record(seconds, lengths=LENGTHS), None, trusted=1e-3)
    assert reading.time.fitted == pytest.approx(1.0)
    assert min(reading.time.lengths) == 16384
    assert not reading.remarks


def test_a_missed_promise_comes_with_the_operations_and_their_rate(row):
    measured = record(lambda n: 1e-9 * n**1.4, operations=lambda n: n**1.3)
    reading = read_row(row, measured, None, trusted=0.0)
    assert not reading.time.near
    assert (
        "its operations grow as n^1.30, and run at 0.461 to 0.33 GFLOP/s from n=2,304 to 65,536"
        in reading.remarks[0]
    )
    assert "the last two lengths show n^1.40" in reading.remarks[0]


def test_memory_that_grows_otherwise_is_told_by_position(row):
    measured = record(lambda n: n, bytes_of=lambda n: 2.0 * n**2)
    reading = read_row(row, measured, None, trusted=0.0)
    assert reading.memory.fitted == pytest.approx(2.0)
    assert reading.remarks == (
        "memory per position: 4,608 bytes at n=2,304, 131,072 at the longest",
    )


@pytest.mark.parametrize(
    ("power", "near"), [(1.14, True), (1.16, False), (0.86, True), (0.84, False)]
)
def test_a_promise_is_kept_within_fifteen_hundredths(row, power, near):
    assert read_row(row, record(lambda n: n**power), None, trusted=0.0).time.near is near


def test_the_crossover_is_where_the_lines_meet():
    exact = points(LENGTHS, lambda n: 1e-9 * n**2)
    assert crossover(points(LENGTHS, lambda n: 1e-6 * n), exact) == "1,000"
    assert crossover(points(LENGTHS[:4], lambda n: n), exact) == "not up to 2,304"
    assert crossover(points(LENGTHS, lambda n: 1e-9 * n), exact) == "cheaper from 256 on"
    assert crossover(points([7], lambda n: n), exact) == "no length in common"
    # cheaper once, dearer again
    cheaper_twice = points(LENGTHS, lambda n: 1e-9 * n**2 * (0.5 if n == 576 else 2e3 / n))
    assert crossover(cheaper_twice, exact) == "2,000"


# --- measuring


@pytest.mark.parametrize("name", ROWS)
def test_every_row_computes_what_another_path_does(name):
    row = ROWS[name]
    error = error_of(row)
    assert error is None or error < 1e-4
    call = row.prepare(576)
    assert call.run().shape[-2:] in ((576, 64), (64, 576))
    assert call.operations > 0
    assert row.exact in ("", *ROWS)
    assert row.source


def test_a_length_that_is_refused_ends_the_row_and_says_why(row):
    def prepare(n):
        if n > 600:
            raise UnsupportedError("it would hold 5 GB at once")
        return TimedCall(lambda: torch.ones(n), n)

    effort = replace(TWO_LENGTHS, reach=2000)
    timings = measure_times(replace(row, prepare=prepare), effort, ignore, LENGTHS)
    assert [point["length"] for point in timings.points] == [256, 576]
    assert timings.refusal == "n=1,024 was refused: it would hold 5 GB at once"
    measured = record(lambda n: 1e-9 * n) | {"ended": timings.refusal}
    assert timings.refusal in read_row(row, measured, None, trusted=0.0).remarks


def test_a_wrong_row_is_found_out(row):
    def wrong(n):
        return TimedCall(lambda: torch.full((n,), 1.001), n, lambda: torch.ones(n))

    assert error_of(replace(row, prepare=wrong)) == pytest.approx(1e-3, rel=1e-3)
    assert error_of(row) is None


def test_memory_is_what_a_call_holds_at_most(row):
    def hoarding(n):
        return TimedCall(lambda: torch.ones(n * 1000).sum(), n)

    # 40 and 80 MB: what is above 32 MiB is never taken from memory that other tests have freed
    measured = memory_here(replace(row, prepare=hoarding), [10_000, 20_000])
    bytes_per_position = [point["bytes"] / point["length"] for point in measured]
    assert bytes_per_position == pytest.approx([4000, 4000], rel=0.1)


def test_memory_is_measured_in_a_process_of_its_own():
    (point,) = measure_memory("conv-3", [9216])
    assert point["length"] == 9216
    assert point["bytes"] > 9216 * 64 * 4  # the output


def test_a_process_that_dies_says_why():
    with pytest.raises(
        RegardError, match="the memory of absent was not measured: KeyError: 'absent'"
    ):
        measure_memory("absent", [1024])


def test_a_row_that_is_wrong_or_fails_is_not_timed(row):
    def wrong(n):
        return TimedCall(lambda: torch.zeros(n), n, lambda: torch.ones(n))

    def failing(n):
        raise RegardError("it cannot\nand more")

    reasons = {wrong: "relative error is 1, above", failing: "RegardError: it cannot"}
    for prepare, reason in reasons.items():
        failed = measure_row(replace(row, prepare=prepare), True, ignore)
        assert reason in failed["reason"]
        assert "and more" not in failed["reason"]
        assert failed["times"] == failed["memory"] == []
        table = CostTable(ENVIRONMENT, True, "", {"softmax": failed})
        assert reason in table.our_mistakes[0]
        assert reason in "\n".join(describe_table(table))


# --- the report and the command


def test_the_table_is_written_with_promises_corrections_and_points(tmp_path):
    exact = record(lambda n: 1e-9 * n**2, operations=lambda n: n**2)
    strided = record(lambda n: 5e-8 * n**1.5)
    table = CostTable(ENVIRONMENT, False, "", {"causal": exact, "strided": strided})
    text = "\n".join(describe_table(table))
    lines = text.splitlines()
    (line,) = [line for line in lines if line.startswith("Sparse Transformer, strided, causal  ")]
    assert "1.50 (1.50)" in line
    assert "2,500" in line  # where 5e-8 n^1.5 meets 1e-9 n²
    assert "often listed as O(n); its paper states n·sqrt(n)" in text

    write_table(table, tmp_path)
    page = (tmp_path / "complexity.md").read_text()
    assert "- Command: `python -m benchmarks.complexity causal strided`" in page
    assert "Times below 20 ms and memory below 4 MiB are not used for a fit" in page
    assert page.count("| self-attention, causal |") == 1 + len(exact["times"])
    head, _ = page.split("## Every measurement")
    columns = {line.count("|") for line in head.splitlines() if line.startswith("|")}
    assert columns == {8}


def test_a_short_table_from_start_to_end(monkeypatch, tmp_path):
    monkeypatch.setattr(measuring, "QUICK", TWO_LENGTHS)
    table = run_complexity(["softmax", "conv-3"], quick=True, out=tmp_path)
    assert not table.our_mistakes
    assert [len(row["times"]) for row in table.rows.values()] == [2, 2]
    assert table.command == "python -m benchmarks.complexity softmax conv-3 --quick"
    assert table.rows["softmax"]["error"] < 1e-5


@pytest.fixture
def measured_rows(monkeypatch):
    """The names of the rows that were measured; "interrupt" in it stops the row causal, "fail" makes rows fail."""
    names = []
    row_points = [
        {"length": n, "median": 1e-8 * n**2, "operations": n**2, "bytes": 256 * n}
        for n in (2304, 4096, 9216)
    ]

    def measure_row(row, quick, tell):
        if "interrupt" in names and row.name == "causal":
            raise KeyboardInterrupt
        names.append(row.name)
        if "fail" in names:
            return {"reason": "off by a mile", "times": [], "memory": []}
        return {"error": 0.0, "times": row_points, "memory": row_points}

    monkeypatch.setattr(measuring, "measure_row", measure_row)
    return names


def test_the_command_prints_and_writes_the_table(measured_rows, tmp_path, capsys):
    main(["softmax", "gru", "--out", str(tmp_path)])
    assert "recurrent (GRU)" in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == {"complexity.json", "complexity.md"}
    written = json.loads((tmp_path / "complexity.json").read_text())
    assert written["command"] == "python -m benchmarks.complexity softmax gru"


def test_an_interrupted_study_goes_on_with_what_is_missing(measured_rows, tmp_path):
    words = ["softmax", "causal", "--out", str(tmp_path)]
    measured_rows.append("interrupt")
    with pytest.raises(SystemExit, match="--resume goes on"):
        main(words)
    measured_rows.clear()
    main([*words, "--resume"])
    assert measured_rows == ["causal"]


def test_a_row_that_failed_ends_the_command_with_its_reason(measured_rows, tmp_path):
    measured_rows.append("fail")
    with pytest.raises(SystemExit, match="wrong or failed: softmax: off by a mile"):
        main(["softmax", "--out", str(tmp_path)])


def test_an_unknown_row_and_a_folder_of_others_are_refused(measured_rows, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["sofmax"])
    assert "no row is called 'sofmax'; did you mean 'softmax'?" in capsys.readouterr().err
    (tmp_path / "notes.txt").write_text("{}")
    with pytest.raises(OccupiedError, match=r"holds notes\.txt and no benchmark results"):
        run_complexity(["softmax"], out=tmp_path)
    assert not measured_rows


def test_memory_is_refused_where_the_system_does_not_report_it(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "RESET", tmp_path / "absent")
    with pytest.raises(UnsupportedError, match="which this system does not have"):
        memory.peak_of(lambda: None)
