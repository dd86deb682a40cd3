"""`regard lenses`: a table, JSON and a report; a sentence for a run that has learned nothing."""

import json

import pytest
from test_commands import regard, run_folder  # noqa: F401

from regard_lab.cli import evaluate as command
from regard_lab.seeing.lens_study import LensReport

ROW = {"name": "erase", "top": 0.5, "order": 0.25, "cause": 0.75, "deletion": 0.125, "passes": 16.0,
       "backward_passes": 2.0, "milliseconds": 3.0}  # fmt: skip
ROUTES = {"last": {"nothing": 0.9, "source": 0.3}, "first": {}, "counts": [9, 0], "verified": 7, "of": 9}


@pytest.fixture
def _measured(monkeypatch):
    def study(translator, *, sentences=200, seed=0, out=None, name, tell):
        report = LensReport(name, "abc", sentences, seed, right=9, agreement=0.96, heads={"cross": [1, 3]})
        report.routes, report.rows = ROUTES, {"erase": ROW}
        report.save(out)
        return report

    monkeypatch.setattr(command, "study_lenses", study)


@pytest.mark.usefixtures("_measured")
def test_the_table_names_what_was_measured(run_folder, tmp_path):  # noqa: F811
    answer = regard("lenses", run_folder, "--sentences", 10, "--out", tmp_path / "report")
    assert answer.returncode == 0, answer.stderr.decode()
    shown = answer.stdout.decode()
    for part in ("erasure", "0.250", "16 + 2", "9 of 10 test sentences", "0.960", "layer 1, head 3", "0.300", "of 7 "):
        assert part in shown, part
    assert (tmp_path / "report" / "lenses.md").exists()
    assert json.loads(regard("lenses", run_folder, "--json").stdout)["rows"]["erase"]["cause"] == 0.75


def test_a_run_that_has_learned_nothing_is_refused_with_a_sentence(run_folder):  # noqa: F811
    answer = regard("lenses", run_folder, "--sentences", 2)
    assert answer.returncode == 2
    assert "regard demo" in answer.stderr.decode()
    assert "Traceback" not in answer.stderr.decode()
