"""`regard conformance`: its table, its report, and what it refuses."""

import json
from pathlib import Path

import pytest
from commanding import refusal, regard, succeeded

from regard.testing.conformance import CLAUSES
from regard.testing.conformance import running as asking
from regard.testing.conformance.clause import Reply
from regard.testing.conformance.running import Column
from regard_lab.cli import conformance


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers without a process: sdpa has one wrong answer, all else agrees."""

    def ask(library: str, progress: object) -> Column:
        replies = {name: Reply(name, "agrees", error=0.0) for name in CLAUSES}
        if library == "sdpa":
            replies["causal-square"] = Reply("causal-square", "differs", error=0.5)
        return Column(library, "a version", replies)

    monkeypatch.setattr(conformance, "ask_library", ask)


def test_it_prints_a_table_and_writes_reports(tmp_path: Path) -> None:
    report = tmp_path / "answers.md"
    answer = succeeded("conformance", "sdpa", "regard", "--out", report)
    assert f"| sdpa | a version | {len(CLAUSES) - 1} | 0 | 1 |" in answer.out
    assert f"| regard | a version | {len(CLAUSES)} | 0 | 0 |" in answer.out
    assert "sdpa: other numbers, the largest error 0.5" in report.read_text()
    stored = tmp_path / "answers.json"
    succeeded("conformance", "sdpa", "--out", stored)
    assert len(json.loads(stored.read_text())["libraries"]["sdpa"]["answers"]) == len(CLAUSES)
    printed = json.loads(succeeded("conformance", "sdpa", "--json").out)
    assert printed["libraries"].keys() == {"sdpa"}


def test_all_that_are_installed_are_asked_and_the_others_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        conformance, "missing_packages", lambda name: ["jax"] if name == "jax" else []
    )
    answer = succeeded("conformance")
    assert "not installed, so not asked: jax" in answer.err
    assert "| jax |" not in answer.out
    assert "| sdpa:math |" in answer.out


def test_it_ends_with_an_error_only_if_that_is_asked_for() -> None:
    assert succeeded("conformance", "sdpa").returncode == 0
    assert succeeded("conformance", "regard", "--must-agree").returncode == 0
    answer = regard("conformance", "sdpa", "--must-agree")
    assert answer.returncode == 1
    assert "1 answer" in answer.err
    assert "sdpa: causal-square" in answer.err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["spda"], "there is no implementation 'spda'; did you mean 'sdpa'"),
        (["sdpa", "--out", "answers.txt"], "a name that ends in .md or .json"),
        (["sdpa", "--out", "nowhere/answers.md"], "cannot be written"),
    ],
)
def test_mistakes_get_a_sentence(arguments: list[str], sentence: str) -> None:
    assert sentence in refusal("conformance", *arguments)


def test_a_library_that_is_not_installed_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asking, "find_spec", lambda name: None)
    assert "jax needs jax, which is not installed" in refusal("conformance", "jax")
