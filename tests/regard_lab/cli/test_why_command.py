"""`regard translate --why`: the scores behind one written word, and sentences for what cannot be explained."""

import json
from dataclasses import replace

import pytest
from test_commands import LINES, regard, run_folder  # noqa: F401

from regard.errors import ArgumentError
from regard_lab.cli.translate import Why
from regard_lab.decoding import Translation, Translator
from regard_lab.seeing import look, terminal_map, visible
from regard_lab.text import Tokeniser


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
    source = lines.index("source")
    assert 2 <= source <= 4  # the sentence of the log odds may fill several lines
    assert "│" in lines[source + 1]
    assert "lens erase" in " ".join(lines[-3:])
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
        (("a", "--why", "es", "--instead", " , "), "--instead is empty"),
        (("a", "b", "--why", "es", "--instead", "er"), "2 were given"),
        (("--why", "es", "--instead", "er"), "0 were given"),
        (("a", "--instead", "er"), "belongs to --why"),
        (("a", "--place", "1"), "belongs to --why"),
        (("a", "--lens", "erase"), "--lens belongs to --why"),
        (("a", "--lens", "erase", "--place", "1"), "--lens and --place belong to --why"),
        (("the animal", "--why", "Zebrafink"), "'Zebrafink' is not in it"),
        (("a", "--why", "es", "--instead", "er", "--lens", "glasses"), "no lens 'glasses'"),
        (("the animal", "--why", "Zebrafink", "--instead", "er"), "is not in it"),
    ],
)
def test_a_mistake_is_one_sentence(run_folder, options, words):  # noqa: F811
    answer = regard("translate", run_folder, *options)
    assert answer.returncode == 2
    assert answer.stderr.decode().count("\n") == 1
    assert words in answer.stderr.decode()


def test_without_words_to_compare_with_the_most_probable_ones_are_taken_and_named(run_folder, asked):  # noqa: F811
    line, word, _ = asked
    answer = regard("translate", run_folder, line, "--why", word)
    assert answer.returncode == 0, answer.stderr.decode()
    question = answer.stdout.decode().splitlines()[1]
    named = answer.stderr.decode()
    others = question.removeprefix(f"{word} rather than ").partition(": log odds")[0].split(" or ")
    assert len(others) == 3
    assert named.startswith(f"compared with {', '.join(others)}, the most probable alternatives to ")
    record = json.loads(regard("translate", run_folder, line, "--why", word, "--json").stdout)
    assert [visible(other) for other in record["why"]["instead_of"]] == others


NOTHING = Translation("", "", (), (), 0.0, 0.0, True)


@pytest.mark.parametrize(
    ("word", "text", "said"),
    [
        ("it", "Das Tier schläft, weil es müde ist.", "'it' is not in it; it is a word of the source. Ask about a "
         "written word, e.g. --why es"),
        ("IT", "Das Tier kommt mit ihm.", "Ask about a written word, e.g. --why Das"),
        ("it", "", "'it' is not in it"),
        ("dog", "Das Tier schläft.", "'dog' is not in it"),
    ],
)  # fmt: skip
def test_a_word_of_the_source_is_answered_by_a_written_one(word, text, said):
    asked = Why(word, (), "erase", None)
    with pytest.raises(ArgumentError) as refused:
        asked.relevance(None, replace(NOTHING, source="The animal sleeps because it is tired.", text=text))
    assert str(refused.value).endswith(said)


def test_a_word_compared_with_itself_is_answered_so(run_folder, asked):  # noqa: F811
    line, word, _ = asked
    answer = regard("translate", run_folder, line, "--why", word, "--instead", word)
    assert answer.returncode == 2
    assert answer.stderr.decode() == f"regard: {word!r} is the written word itself; compare it with other words\n"
    twice = regard("translate", run_folder, line, "--why", word, "--instead", "7,7")
    assert "'7' is named twice; name it once" in twice.stderr.decode()


@pytest.mark.parametrize("width", [40, 70])
def test_what_a_word_depends_on_fits_the_terminal(run_folder, asked, monkeypatch, width):  # noqa: F811
    line, word, others = asked
    monkeypatch.setenv("COLUMNS", str(width))
    answer = regard("translate", run_folder, line, "--why", word, "--instead", others)
    lines = answer.stdout.decode().splitlines()[1:]
    assert max(map(len, lines)) <= width
    assert sum("│" in line for line in lines) > 3


@pytest.mark.parametrize("kind", ["cross", "encoder", "decoder"])
def test_attention_is_drawn_in_the_terminal(run_folder, monkeypatch, kind):  # noqa: F811
    monkeypatch.setenv("COLUMNS", "40")
    answer = regard("translate", run_folder, "the animal", "--map", kind, "--layer", 0, "--head", 1)
    assert answer.returncode == 0, answer.stderr.decode()
    _, *lines = answer.stdout.decode().splitlines()
    ids = json.loads(regard("translate", run_folder, "the animal", "--json").stdout)["ids"]
    translator = Translator.load(run_folder)
    maps = look(translator.model, translator.tokeniser, "the animal", ids).merged()
    drawn = terminal_map(maps.matrix(kind, 0, 1), *maps.labels(kind), 40).splitlines()
    assert max(map(len, lines)) <= 40
    assert lines[-len(drawn) :] == drawn
    assert "layer 0 (of 0 to " in " ".join(lines)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--map", "corss"), "--map 'corss' does not exist; did you mean 'cross'?"),
        (("--layer", 1, "--head", 0), "--layer and --head need --map, such as --map cross"),
        (("--map", "cross", "--json"), "leave one of them out"),
        (("--map", "cross", "--layer", 9), "layer 9 does not exist"),
    ],
)
def test_a_map_that_cannot_be_is_one_sentence(run_folder, options, words):  # noqa: F811
    answer = regard("translate", run_folder, "the animal", *options)
    assert answer.returncode == 2
    assert answer.stderr.decode().count("\n") == 1
    assert words in answer.stderr.decode()
