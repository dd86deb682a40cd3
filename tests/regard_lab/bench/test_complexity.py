"""The table of costs: fits find what was put in, promises are told apart from what was found, rows are sound."""

import math
from dataclasses import replace

import pytest
import torch

from regard.errors import RegardError, UnsupportedError
from regard_lab.bench.complexity import CostTable, describe_table, measuring, read_row
from regard_lab.bench.complexity.measuring import (
    EFFORTS,
    LENGTHS,
    Effort,
    is_right,
    measure_times,
    memory_here,
    memory_of,
    run_complexity,
)
from regard_lab.bench.complexity.report import crossover, write_table
from regard_lab.bench.complexity.rows import (
    N_LOG_N,
    N_ROOT_N,
    N_SQUARED,
    ROWS,
    CostRow,
    N,
    TimedCall,
    slope,
)
from regard_lab.bench.measuring import Pace, call_apart

QUICK = Effort(trusted=0.0, wanted=2, reach=400, longest=10.0, pace=Pace(rounds=1, shortest=0.0))
HERE = {
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


def points(lengths, seconds, operations=lambda n: n):
    return [{"length": n, "median": seconds(n), "operations": operations(n)} for n in lengths]


def record(seconds, held=lambda n: 64.0 * n, lengths=LENGTHS[3:9], operations=lambda n: n):
    return {
        "error": 0.0,
        "times": points(lengths, seconds, operations),
        "memory": [{"length": n, "bytes": held(n)} for n in lengths],
    }


@pytest.fixture
def row():
    return CostRow(
        "own",
        "a row",
        "n·d",
        N,
        "O(1)",
        "O(1)",
        lambda n: TimedCall(lambda: torch.ones(n), n),
        "nobody",
    )


@pytest.mark.parametrize("power", [0.5, 1.0, 1.5, 2.0])
def test_a_fit_finds_the_power_that_was_put_in(power):
    assert slope(LENGTHS, [3e-5 * n**power for n in LENGTHS]) == pytest.approx(power)


def test_n_log_n_is_told_by_its_own_slope_over_the_lengths():
    found = N_LOG_N.exponent([4096, 65536])
    assert found == pytest.approx(1 + math.log(math.log(65536) / math.log(4096)) / math.log(16))
    assert N_LOG_N.exponent([2**30, 2**34]) < found
    assert [growth.exponent(LENGTHS) for growth in (N, N_ROOT_N, N_SQUARED)] == [1.0, 1.5, 2.0]


def test_only_lengths_that_take_long_enough_count(row):
    seconds = lambda n: max(1e-7 * n, 5e-4)  # noqa: E731  # below 5,000 positions all calls take as long
    reading = read_row(row, record(seconds, lengths=LENGTHS), None, trusted=1e-3)
    assert reading.time.found == pytest.approx(1.0)
    assert min(reading.time.lengths) == 16384
    assert not reading.remarks


def test_a_missed_promise_comes_with_the_operations_and_their_rate(row):
    found = read_row(
        row, record(lambda n: 1e-9 * n**1.4, operations=lambda n: n**1.3), None, trusted=0.0
    )
    assert not found.time.near
    assert "its operations grow as n^1.30, and run at 0.461 to 0.33 GFLOP/s" in found.remarks[0]
    assert "the last two lengths show n^1.40" in found.remarks[0]


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
    twice = points(LENGTHS, lambda n: 1e-9 * n**2 * (0.5 if n == 576 else 2e3 / n))
    assert crossover(twice, exact) == "2,000"


@pytest.mark.parametrize("name", ROWS)
def test_every_row_computes_what_another_path_does(name):
    found = ROWS[name]
    error = is_right(found)
    assert error is None or error < 1e-4
    call = found.prepare(576)
    assert call.run().shape[-2:] in ((576, 64), (64, 576))
    assert call.operations > 0
    assert found.exact in ("", *ROWS)
    assert found.source


def test_a_length_that_is_refused_ends_the_row_and_says_why(row):
    def prepare(n):
        if n > 600:
            raise UnsupportedError("it would hold 5 GB at once")
        return TimedCall(lambda: torch.ones(n), n)

    refused = replace(row, prepare=prepare)
    lengths, ended = measure_times(refused, replace(QUICK, reach=2000), lambda line: None, LENGTHS)
    assert [point["length"] for point in lengths] == [256, 576]
    assert ended == "n=1,024 was refused: it would hold 5 GB at once"
    said = read_row(row, record(lambda n: 1e-9 * n) | {"ended": ended}, None, trusted=0.0)
    assert ended in said.remarks


def test_a_wrong_row_is_found_out(row):
    def wrong(n):
        return TimedCall(lambda: torch.full((n,), 1.001), n, lambda: torch.ones(n))

    assert is_right(replace(row, prepare=wrong)) == pytest.approx(1e-3, rel=1e-3)
    assert is_right(row) is None


def test_memory_is_what_a_call_holds_at_most(row):
    def hoarding(n):
        return TimedCall(lambda: torch.ones(n * 1000).sum(), n)

    # 40 and 80 MB: what is above 32 MiB is never taken from memory that other tests have freed
    held = memory_here(replace(row, prepare=hoarding), [10_000, 20_000])
    assert [point["bytes"] / point["length"] for point in held] == pytest.approx(
        [4000, 4000], rel=0.1
    )


def test_a_process_that_dies_says_why(monkeypatch):
    monkeypatch.setattr("regard_lab.bench.measuring.PROGRAM", "raise SystemExit('out of breath')")
    with pytest.raises(RegardError, match="the memory of softmax was not measured: out of breath"):
        call_apart(memory_of, "softmax", row="softmax", lengths=[1024])


def test_a_row_that_is_wrong_or_fails_is_not_timed(row):
    def wrong(n):
        return TimedCall(lambda: torch.zeros(n), n, lambda: torch.ones(n))

    def failing(n):
        raise RegardError("it cannot\nand more")

    for prepare, reason in (
        (wrong, "relative error is 1, above"),
        (failing, "RegardError: it cannot"),
    ):
        found = measuring._measured(replace(row, prepare=prepare), True, lambda line: None)
        assert reason in found["reason"]
        assert found["times"] == found["memory"] == []
        table = CostTable(HERE, True, "", {"softmax": found})
        assert reason in table.our_mistakes[0]
        assert reason in "\n".join(describe_table(table))


def test_the_table_is_written_with_promises_corrections_and_points(tmp_path):
    exact, strided = (
        record(lambda n: 1e-9 * n**2, operations=lambda n: n**2),
        record(lambda n: 5e-8 * n**1.5),
    )
    table = CostTable(HERE, False, "regard bench complexity", {"causal": exact, "strided": strided})
    text = "\n".join(describe_table(table))
    line = next(
        line for line in text.splitlines() if line.startswith("Sparse Transformer, strided")
    )
    assert "1.50 (1.50)" in line
    assert "2,500" in line  # where 5e-8 n^1.5 meets 1e-9 n²
    assert "often listed as O(n); its paper states n·sqrt(n)" in text
    write_table(table, tmp_path)
    page = (tmp_path / "complexity.md").read_text()
    assert "Times below 20 ms and memory below 4 MiB are not used for a fit" in page
    assert page.count("| self-attention, causal |") == 1 + len(exact["times"])
    assert {
        line.count("|")
        for line in page.split("## Every measurement")[0].splitlines()
        if line.startswith("|")
    } == {8}


def test_a_short_table_from_start_to_end(monkeypatch, tmp_path):
    monkeypatch.setitem(EFFORTS, True, QUICK)
    table = run_complexity(["softmax", "conv-3"], quick=True, out=tmp_path)
    assert not table.our_mistakes
    assert [len(row["times"]) for row in table.rows.values()] == [2, 2]
    assert table.command == "regard bench complexity softmax conv-3 --quick"
    assert table.rows["softmax"]["error"] < 1e-5
