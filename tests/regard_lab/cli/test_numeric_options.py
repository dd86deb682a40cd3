"""Every number that no option means is answered by a sentence with exit code 2, and never by a traceback."""

import pytest
from test_commands import regard

PLAN = ("plan", "--q-len", "64")
HUGE = ["1" + "0" * 30, "9" * 5000, "nan", "x", "-1"]


def refused(*arguments):
    answer = regard(*arguments)
    said = answer.stderr.decode()
    assert answer.returncode == 2, said
    assert "Traceback" not in said
    assert said.strip()
    return said


@pytest.mark.parametrize(
    "option", ["--q-len", "--k-len", "--heads", "--kv-heads", "--head-dim", "--v-dim", "--batch", "--dropout"]
)
@pytest.mark.parametrize("number", HUGE)
def test_sizes_of_a_plan(option, number):
    refused(*PLAN, option, number)


@pytest.mark.parametrize("number", ["nan", "inf", "-1", "0", "1e400", "x"])
def test_a_softcap(number):
    refused(*PLAN, "--softcap", number)


@pytest.mark.parametrize("number", ["9" * 5000, "0", "-1", "nan", "1.5", "\u0663"])
def test_statistics_that_count(number):
    refused(*PLAN, "--want", f"top_keys({number})")
    if number != "0":
        refused(*PLAN, "--want", f"weights_of(rows=[{number}])")


def test_heads_that_no_key_value_head_divides():
    assert "multiple of kv-heads" in refused(*PLAN, "--kv-heads", "3")
    assert "must be a number from 0 to" in refused(*PLAN, "--k-len", str(10**18 + 1))


@pytest.mark.parametrize("what", ["translation", "language-model"])
@pytest.mark.parametrize(
    ("option", "number", "words"),
    [
        ("--dim", 10**30, "100 bits"),
        ("--seed", 10**30, "100 bits"),
        ("--steps", 10**30, "100 bits"),
        ("--steps", "9" * 5000, ""),
        ("--heads", 0, ""),
        ("--heads", -1, ""),
        ("--learning-rate", "nan", "finite"),
        ("--learning-rate", "inf", "finite"),
        ("--minutes", "nan", "finite"),
        ("--dropout", "inf", "finite"),
        ("--batch-tokens", 10**20, "67 bits"),
    ],
)
def test_numbers_of_a_training(tmp_path, what, option, number, words):
    data = tmp_path / "data.tsv"
    data.write_text("".join(f"a{n} b\tc{n} d\n" for n in range(60)))
    assert words in refused("train", what, "--data", data, "--out", tmp_path / "run", option, number)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("option", "number", "words"),
    [("--dim", 2**40, "at most 2147483647"), ("--dim", 2**28, "bytes of memory"), ("--layers", 10**18, "at most 10000"),
     ("--vocab-size", 2**40, "pieces are learned")],
)  # fmt: skip
@pytest.mark.parametrize("what", ["translation", "language-model"])
def test_models_that_no_memory_holds(tmp_path, what, option, number, words):
    data = tmp_path / "data.tsv"
    data.write_text("".join(f"a{n} b\tc{n} d\n" for n in range(60)))
    assert words in refused("train", what, "--data", data, "--out", tmp_path / "run", option, number)
