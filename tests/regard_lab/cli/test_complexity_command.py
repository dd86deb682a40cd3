"""`regard bench complexity` as people run it; rows are not measured here."""

import json

import pytest
from test_commands import regard

from regard_lab.bench.complexity import measuring

POINTS = [{"length": n, "median": 1e-8 * n**2, "operations": n**2, "bytes": 256 * n} for n in (2304, 4096, 9216)]


@pytest.fixture(autouse=True)
def measured(monkeypatch):
    """The rows that were measured; naming "interrupt" or "fail" makes them so."""
    done = []

    def measure(row, quick, tell):
        if "interrupt" in done and row.name == "causal":
            raise KeyboardInterrupt
        done.append(row.name)
        failed = {"reason": "off by a mile", "times": [], "memory": []}
        return failed if "fail" in done else {"error": 0.0, "times": POINTS, "memory": POINTS}

    monkeypatch.setattr(measuring, "_measured", measure)
    return done


def test_the_table_is_shown_written_and_told_as_json(tmp_path):
    answer = regard("bench", "complexity", "softmax", "gru", "--out", tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert "recurrent (GRU)" in answer.stdout.decode()
    assert {path.name for path in tmp_path.iterdir()} == {"complexity.json", "complexity.md", "complexity.png"}
    shown = json.loads(regard("bench", "complexity", "softmax", "gru", "--json", "--out", tmp_path).stdout)
    written = json.loads((tmp_path / "complexity.json").read_text())
    assert shown | {"sha256": written["sha256"]} == written
    assert shown["command"] == "regard bench complexity softmax gru"


def test_an_interrupted_table_says_how_to_go_on(measured, tmp_path):
    measured.append("interrupt")
    answer = regard("bench", "complexity", "softmax", "causal", "--out", tmp_path)
    assert answer.returncode == 130
    assert "--resume goes on" in answer.stderr.decode()
    measured.clear()
    answer = regard("bench", "complexity", "softmax", "causal", "--out", tmp_path, "--resume")
    assert answer.returncode == 0, answer.stderr
    assert measured == ["causal"]


def test_a_row_that_failed_fails_the_command(measured, tmp_path):
    measured.append("fail")
    answer = regard("bench", "complexity", "softmax", "--out", tmp_path)
    assert answer.returncode == 1
    assert "regard was wrong or failed: softmax: off by a mile" in answer.stderr.decode()


@pytest.mark.parametrize(
    ("words", "said"),
    [(["nothing"], "no row is called 'nothing'; there are"), (["--device", "cuda"], "CPU time on 1 thread")],
)
def test_what_cannot_be_measured_is_refused(words, said, tmp_path):
    answer = regard("bench", "complexity", *words, "--out", tmp_path)
    assert answer.returncode == 2
    assert said in answer.stderr.decode()
