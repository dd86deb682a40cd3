"""`regard translate --why`: the scores behind one written word, and sentences for what cannot be explained."""

import json

import pytest
from test_commands import LINES, regard, run_folder  # noqa: F401

from regard.text import Tokeniser


@pytest.fixture
def asked(run_folder):  # noqa: F811
    """A sentence, a word that occurs once in its translation, and two other words."""
    tokeniser = Tokeniser.from_json((run_folder / "tokeniser.json").read_text("utf-8"))
    for line in (*LINES, "old", "street animal", "the", "a a street sleeps"):
        ids = json.loads(regard("translate", run_folder, line, "--json").stdout)["ids"]
        words = [word for word, _ in tokeniser.words(ids)]
        lowered = [word.lower() for word in words]
        for word in words:
            others = [w for w in ("animal", "street", "old", "sleeps") if w[0] != word[0]][:2]
            if lowered.count(word.lower()) == 1 and word.isalpha():
                return line, word, ",".join(others)
    raise AssertionError("no translation has a word that occurs once")


def test_translate_explains_one_word(run_folder, asked, tmp_path):  # noqa: F811
    line, word, others = asked
    picture = tmp_path / "why.png"
    answer = regard("translate", run_folder, line, "--why", word, "--instead", others, "--picture", picture)
    assert answer.returncode == 0, answer.stderr.decode()
    lines = answer.stdout.decode().splitlines()
    assert lines[1].startswith(f"{word} rather than {others.replace(',', ' or ')}: log odds ")
    assert lines[2:4][0] == "source"
    assert "│" in lines[3]
    assert "lens erase" in lines[-2]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "drawn in" in answer.stderr.decode()


@pytest.mark.parametrize("lens", ["gradients", "attention", "rollout"])
def test_json_holds_the_scores_of_every_lens(run_folder, asked, lens):  # noqa: F811
    line, word, others = asked
    answer = regard("translate", run_folder, line, "--why", word, "--instead", others, "--lens", lens, "--json")
    (record,) = map(json.loads, answer.stdout.splitlines())
    assert record["source"] == line
    assert record["why"]["lens"] == lens
    assert [one["word"] for one in record["why"]["source"]] == [*line.split(), "<end>"]
    assert record["why"]["of"] == word


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("a", "--why", "es"), "--instead er,sie"),
        (("a", "--why", "es", "--instead", " , "), "--instead er,sie"),
        (("a", "b", "--why", "es", "--instead", "er"), "2 were given"),
        (("--why", "es", "--instead", "er"), "0 were given"),
        (("a", "--instead", "er"), "belongs to --why"),
        (("a", "--place", "1"), "belongs to --why"),
        (("a", "--why", "es", "--instead", "er", "--lens", "glasses"), "no lens 'glasses'"),
        (("the animal", "--why", "Zebrafink", "--instead", "er"), "is not in it"),
    ],
)
def test_a_mistake_is_one_sentence(run_folder, options, words):  # noqa: F811
    answer = regard("translate", run_folder, *options)
    assert answer.returncode == 2
    assert answer.stderr.decode().count("\n") == 1
    assert words in answer.stderr.decode()
