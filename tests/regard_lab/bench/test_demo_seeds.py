"""The table of many demos: a run is measured once, and the worst of each column is what counts."""

import pytest

from benchmarks import demo_seeds

GOOD = {
    "train_cpu_seconds": 200.0, "steps": 900, "exact_match": 0.99, "pronoun_accuracy": 0.995, "contrast_accuracy": 0.99,
    "bleu": 99.9, "majority_baseline": 0.34, "referent_chance": 0.07, "bleu_signature": "v",
}  # fmt: skip


def record(**changed):
    return {"processor": "avx2", "seed": 0, **GOOD, **changed}


def test_the_worst_of_a_column_is_its_least_and_of_the_cost_its_greatest():
    values = demo_seeds.worst([record(), record(exact_match=0.97, train_cpu_seconds=100.0)])
    assert values["exact_match"] == 0.97
    assert values["train_cpu_seconds"] == 200.0


@pytest.mark.parametrize(
    ("name", "value"), [("exact_match", 0.97), ("contrast_accuracy", 0.96), ("train_cpu_seconds", 400.0)]
)
def test_a_single_bad_run_is_named_in_the_report(name, value):
    assert "keeps all" in demo_seeds.report([record(), record(seed=1)])
    text = demo_seeds.report([record(), record(**{name: value}), record(seed=1)])
    assert f"Broken by the worst: {demo_seeds.SHOWN[name]}" in text


def test_a_finished_run_is_read_and_not_run_again(tmp_path):
    ran = []

    def run(folder, processor, seed):
        ran.append((folder, processor, seed))
        return dict(GOOD)

    first = demo_seeds.measured(tmp_path, "avx2", 3, run)
    assert demo_seeds.measured(tmp_path, "avx2", 3, run) == first
    demo_seeds.measured(tmp_path, "default", 3, run)
    assert [one[1:] for one in ran] == [("avx2", 3), ("default", 3)]
    assert [(r["processor"], r["seed"]) for r in demo_seeds.kept(tmp_path)] == [("avx2", 3), ("default", 3)]
