"""What people read of results: numbers and reasons."""

import pytest
from test_bench_running import PEAKS, record

from regard_lab.bench.report import describe_results, write_report
from regard_lab.bench.results import Results

HERE = {
    "regard": "0",
    "torch": "2",
    "python": "3",
    "packages": {"numpy": "2"},
    "system": "s",
    "processor": "p",
    "cores": 2,
    "threads": 2,
    "device": "cpu",
}


def case(*lengths):
    return {"title": "A title", "contests": [record("family", n) for n in lengths]}


def test_lines_show_times_ratio_memory_and_reasons():
    text = "\n".join(
        describe_results(Results(HERE, True, "regard bench --quick", {"case": case(64)}))
    )

    def line_of(name):
        return next(line for line in text.splitlines() if line.startswith(f"    {name}"))

    ours = line_of("regard (fused)")
    peer = line_of("peer")
    absent = line_of("absent")
    assert "2 ms (1 ms to 4 ms)" in ours
    assert "2.50x" in peer
    assert "a note" in peer
    assert absent.endswith("missing: the package x is not installed")
    assert "CPU, 1 thread" in text
    assert text.startswith(f"measured on {HERE['processor']}\n")
    assert text.endswith(
        "0 promises kept, 1 missed, 0 not measured.\nMissed in case, family 64: regard is 2.50x as fast"
    )


@pytest.mark.parametrize(
    ("amount", "ours", "theirs"),
    [
        ({"operations": 10**8, "dtype": "float32"}, "50 GF/s, 50%", "20 GF/s, 20%"),
        ({"operations": 10**8, "dtype": "bfloat16"}, "50 GF/s, 25%", "20 GF/s, 10%"),
        ({"bytes": 10**7}, "5 GB/s, 50%", "2 GB/s, 20%"),
    ],
)
def test_rates_have_their_share_of_the_peak(amount, ours, theirs):
    measured = case(64)
    measured["contests"][0]["amount"] = amount
    results = Results(HERE, True, "regard bench", {"case": measured}, PEAKS.to_dict())
    lines = describe_results(results)
    assert any(line.startswith("    regard") and ours in line for line in lines)
    assert any(line.startswith("    peer") and theirs in line for line in lines)
    assert lines[1] == f"one core does at most {PEAKS}"
    assert "GF/s" not in "".join(describe_results(Results(HERE, True, "x", {"case": measured})))


def test_the_page_is_a_table_with_versions_and_command(tmp_path):
    write_report(Results(HERE, True, "regard bench --quick", {"case": case(64)}), tmp_path)
    page = (tmp_path / "bench.md").read_text()
    assert "`regard bench --quick`" in page
    assert "torch 2, Python 3, numpy 2" in page
    tables = [line for line in page.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in tables} == {6}
    assert len(tables) == 2 + 3


def test_a_page_from_a_gpu_compares_its_times_and_names_it(tmp_path):
    """Without columns, promises or words that concern the CPU."""
    measured = case(64)
    for contest in measured["contests"]:
        contest["promises"] = []
        for answer in contest["contenders"].values():
            answer.pop("wall", None)
            if "cpu" in answer:
                answer["cuda"] = answer.pop("cpu")
    write_report(
        Results(HERE | {"device": "A GPU"}, True, "regard bench --device cuda", {"case": measured}),
        tmp_path,
    )
    page = (tmp_path / "bench.md").read_text()
    assert "GPU: A GPU" in page
    assert "2.50x" in page
    assert "CPU" not in page
    assert "promise" not in page
