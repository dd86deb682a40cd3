"""`regard generate` as people run it."""

import io
import json
import sys

import pytest
import torch

from regard.errors import ArgumentError
from regard.layers import MultiHeadAttention
from regard_lab.cli import main
from regard_lab.decoding import Generator, Sampling
from regard_lab.decoding.loading import TOKENISER_FILE, WORDS_FILE
from regard_lab.models import LanguageConfig, LanguageModel, load_model
from regard_lab.text import Tokeniser
from regard_lab.text.seen_words import SeenWords

LINES = ["the animal sleeps", "a café in the street", "the old animal"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    tokeniser = Tokeniser.train(LINES, 300)
    torch.manual_seed(0)
    model = LanguageModel(LanguageConfig(vocab_size=tokeniser.vocab_size, dim=16, heads=2, layers=1))
    model.save(folder, {TOKENISER_FILE: tokeniser.to_json()})
    return folder


@pytest.fixture
def regard(capsys, monkeypatch):
    """The command line in this process: exit code, standard output, standard error."""

    def call(*arguments, stdin=""):
        monkeypatch.setattr(sys, "argv", ["regard", "generate", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8"))
        with pytest.raises(SystemExit) as leaving:
            main()
        return leaving.value.code, *capsys.readouterr()

    return call


def test_the_prompt_and_its_continuation_come_as_one_plain_line(run, regard):
    settings = ["--temperature", 0.9, "--top-k", 50, "--top-p", 0.9, "--min-p", 0.01, "--seed", 3, "--max-tokens", 7]
    code, said, remarks = regard(run, "the animal", *settings)
    sampling = Sampling(temperature=0.9, top_k=50, top_p=0.9, min_p=0.01, seed=3)
    ((expected,),) = Generator.load(run).generate(["the animal"], max_tokens=7, sampling=sampling)
    assert (code, said, remarks) == (0, f"the animal{expected.text}\n", "")
    assert len(expected.ids) == 7


def test_json_says_all_there_is_and_lines_of_standard_input_are_prompts(run, regard):
    code, said, _ = regard(run, "--json", "--temperature", 0, "--max-tokens", 4, stdin="the animal\n\na café\n")
    records = [json.loads(line) for line in said.splitlines()]
    assert code == 0
    assert [record["prompt"] for record in records] == ["the animal", "", "a café"]
    assert all(record["settings"]["temperature"] == 0 for record in records)
    assert {"text", "ids", "log_probability", "ended"} <= records[0].keys()


def test_each_line_draws_for_itself_and_the_same_seed_draws_the_same_again(run, regard):
    settings = ["--seed", 5, "--max-tokens", 12, "--json"]
    found = [regard(run, *settings, stdin="the animal\n" * 4)[1].splitlines() for _ in range(2)]
    texts = [json.loads(line)["ids"] for line in found[0]]
    assert found[0] == found[1]
    assert len(set(map(tuple, texts))) == 4
    together = Generator.load(run).generate(["the animal"] * 4, max_tokens=12, sampling=Sampling(seed=5))
    assert texts == [list(one.ids) for (one,) in together]
    assert regard(run, *["the animal"] * 4, *settings)[1].splitlines() == found[0]


@pytest.mark.parametrize("row", [-1, 2**32, 1.0, True])
def test_a_row_that_is_none_is_refused(run, row):
    with pytest.raises(ArgumentError, match="first_row is"):
        Generator.load(run).generate(["the animal"], first_row=row)


@pytest.mark.parametrize("kind", ["dynamic", "static", "paged"])
def test_a_kind_of_cache_writes_the_same(run, regard, kind, monkeypatch):
    expected = regard(run, "the animal", "--temperature", 0, "--max-tokens", 6)
    kinds = []
    new_cache = MultiHeadAttention.new_cache
    monkeypatch.setattr(
        MultiHeadAttention, "new_cache", lambda self, *given: kinds.append(given[1]) or new_cache(self, *given)
    )
    assert regard(run, "the animal", "--temperature", 0, "--max-tokens", 6, "--cache", kind) == expected
    assert kinds == [kind]
    code, said, _ = regard(run, "the animal", "--temperature", 0, "--max-tokens", 6, "--cache-dtype", "int8")
    assert (code, said[:10]) == (0, "the animal")


def test_a_stop_and_a_beam_are_heeded(run, regard):
    _, said, _ = regard(run, "the", "--beam", 2, "--max-tokens", 6, "--json")
    record = json.loads(said)
    stop = record["text"][2]
    _, said, _ = regard(run, "the", "--beam", 2, "--max-tokens", 6, "--json", "--stop", stop)
    assert stop not in json.loads(said)["text"]
    assert json.loads(said)["settings"] == {"beam": 2}


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--beam", 2, "--top-k", 3], 2, "leave out --top-k"),
        (["--top-p", 1.5], 2, "top_p is 1.5"),
        (["--temperature", -1], 2, "temperature is -1;"),
        (["--seed", -1], 2, "seed is -1"),
        (["--stop", ""], 2, "stops are"),
        (["--normalisation", "google"], 2, "--normalisation 'google'"),
        (["--cache", "pagd"], 2, "kind='pagd' does not exist"),
        (["--cache-dtype", "int4"], 2, "dtype='int4'"),
    ],
)
def test_a_mistake_is_one_sentence(run, regard, arguments, code, said):
    found = regard(run, "the animal", *arguments)
    assert (found[0], found[1]) == (code, "")
    assert said in found[2]
    assert len(found[2].splitlines()) == 1


def test_what_is_no_run_is_one_sentence(regard, tmp_path):
    code, _, remarks = regard(tmp_path / "nothing", "the animal")
    assert code == 2
    assert len(remarks.splitlines()) == 1


def test_an_interruption_is_one_word_after_what_was_written(run, regard, monkeypatch):
    def interrupted(self, prompts, on_text, **options):
        on_text(0, 0, " and")
        raise KeyboardInterrupt

    monkeypatch.setattr(Generator, "generate", interrupted)
    assert regard(run, "the animal") == (130, "the animal and\n", "regard: interrupted\n")


def test_words_that_the_training_never_had_are_named_once(regard, run, tmp_path):
    saved = load_model(run)
    files = {**saved.extra_files, WORDS_FILE: SeenWords.of(LINES).to_json()}
    LanguageModel.from_saved(saved, "run").save(tmp_path / "run", files)
    code, _, said = regard(tmp_path / "run", "the zebra", "a zebra", "--max-tokens", 1)
    assert code == 0
    assert said == "not in the training of this model: zebra; the continuation of such words is a guess\n"
    assert regard(run, "the zebra", "--max-tokens", 1)[2] == "", "a model that stores no words"
