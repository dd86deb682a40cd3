"""`regard translate`, `generate`, `evaluate` and `classify`: results on standard output, remarks on standard error."""

import json
import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from commanding import LINES, SMALL, printed, refusal, regard, succeeded

from regard.errors import ArgumentError, ShapeError, UnsupportedError
from regard.layers import MultiHeadAttention
from regard.storage.sealed_json import render_sealed
from regard_lab.cli import view as view_command
from regard_lab.cli.running import Lengths, TrainedLength, remark_on_arguments, remark_on_training
from regard_lab.cli.translate import explain_why
from regard_lab.decoding import Generator, Sampling, Translation, Translator, evaluate
from regard_lab.decoding.compiled import compile_steps
from regard_lab.decoding.loading import TOKENISER_FILE, WORDS_FILE, load_with_tokeniser
from regard_lab.decoding.translator import Ends
from regard_lab.models import (
    LanguageModel,
    RecurrentTranslator,
    TextEncoder,
    TranslationTransformer,
    load_model,
)
from regard_lab.models.storage import read_checkpoints
from regard_lab.seeing import look
from regard_lab.seeing.terminal import terminal_map, visible
from regard_lab.text import BEGIN, END, Pair, Tokeniser
from regard_lab.text.seen_words import SeenWords
from regard_lab.training.checkpoint import STATE_FILE, read_training
from regard_lab.training.recipes import comparing
from regard_lab.training.recipes.evaluation import ClassScores, RunScores
from regard_lab.training.recipes.masked_words import MaskedWordTask

LONG = " ".join(["the bird sang in the street"] * 10)
BUDGET = ("--steps", 2, "--validate-every", 2, "--schedule", "constant")


def test_each_line_in_is_one_line_out(run_folder):
    lines = b"the animal sleeps\n\na street\r\n  \nan emoji \xf0\x9f\xa6\x8a and $x$\nno newline at the end"
    answers = succeeded("translate", run_folder, stdin=lines).stdout.split(b"\n")
    assert len(answers) == 7
    assert answers[1] == answers[3] == b""
    assert answers[0] != b""


def test_sentences_json_and_beams_give_the_same_texts(run_folder):
    records = printed("translate", run_folder, *LINES)
    assert [record["text"] for record in records] == succeeded(
        "translate", run_folder, *LINES
    ).out.splitlines()
    assert [record["source"] for record in records] == LINES
    succeeded(
        "translate", run_folder, "--beam", "3", "--normalisation", "average", stdin=b"a street\n"
    )


def test_n_best_lists_constraints_word_scores_and_word_pairs_are_printed(run_folder, tmp_path):
    search = ("--beam", 4, "--count", 3, "--max-length", 6)
    rows = [
        line.split(" ||| ")
        for line in succeeded("translate", run_folder, *LINES, *search).out.splitlines()
    ]
    best = []
    for number, record in enumerate(printed("translate", run_folder, *LINES, *search)):
        best += [(number, hypothesis) for hypothesis in record["n_best"]]
    assert rows == [
        [str(number), hypothesis["text"], f"{hypothesis['score']:.6f}"]
        for number, hypothesis in best
    ]
    assert [number for number, _ in best] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert best == sorted(best, key=lambda pair: (pair[0], -pair[1]["score"]))
    for _, hypothesis in best:
        assert sum(word["log_probability"] for word in hypothesis["words"]) == pytest.approx(
            hypothesis["log_probability"]
        )
    lengths = ("--min-length", 5, "--max-length", 9)
    rules = (
        "the animal sleeps",
        "--no-repeat",
        1,
        "--repetition-penalty",
        1.5,
        "--prefix",
        "the",
        *lengths,
        "--align",
    )
    record = printed("translate", run_folder, *rules)
    ids = record["ids"]
    assert record["text"].startswith("the")
    assert 5 <= len(ids) == len(set(ids)) <= 9
    translator = Translator.load(run_folder)
    cross = (
        look(translator.model, translator.tokeniser, rules[0], ids)
        .merged()
        .matrix("cross", -2)[:-1, :-1]
    )
    assert record["alignment"] == [[int(row.argmax()), place] for place, row in enumerate(cross)]
    pairs = " ".join(f"{i}-{j}" for i, j in record["alignment"])
    assert succeeded("translate", run_folder, *rules).out == f"{record['text']} ||| {pairs}\n"
    (tmp_path / "in.txt").write_text("the animal\n\na street\n")
    files = ("--input", tmp_path / "in.txt", "--out", tmp_path / "out.jsonl")
    succeeded("translate", run_folder, *files, *search, "--json")
    written = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [len(record["n_best"]) for record in written] == [3, 1, 3]


def test_evaluate_scores_a_file(run_folder, tmp_path):
    (tmp_path / "test.tsv").write_text("a street\teine Straße\nthe animal\tdas Tier\n")
    record = printed("evaluate", run_folder, tmp_path / "test.tsv")
    assert {"bleu", "chrf", "chrf_signature", "exact_match", "perplexity"} <= record.keys()
    assert record["count"] == 2
    text = succeeded("evaluate", run_folder, tmp_path / "test.tsv").out
    assert all(part in text for part in ("BLEU", record["bleu_signature"]))


# --- what one word depends on


@pytest.fixture(scope="module")
def asked(run_folder):
    """A sentence, a word that occurs once in its translation, and two other words."""
    tokeniser = Tokeniser.from_json((run_folder / "tokeniser.json").read_text("utf-8"))
    for line in (*LINES, "old", "street animal", "the", "a a street sleeps"):
        ids = printed("translate", run_folder, line)["ids"]
        words = [word for word, _ in tokeniser.words(ids)]
        lowered = [word.lower() for word in words]
        for word in words:
            others = [
                candidate
                for candidate in ("animal", "street", "old", "sleeps")
                if candidate[0] != word[0]
            ][:2]
            if lowered.count(word.lower()) == 1 and word.isalpha():
                return line, word, ",".join(others)
    raise AssertionError("no translation has a word that occurs once")


def test_translate_explains_one_word_in_lines_that_fit_the_terminal(
    run_folder, asked, tmp_path, monkeypatch
):
    line, word, others = asked
    picture = tmp_path / "why.png"
    answer = succeeded(
        "translate", run_folder, line, "--why", word, "--instead", others, "--picture", picture
    )
    lines = answer.out.splitlines()
    assert lines[1].startswith(f"{word} rather than {others.replace(',', ' or ')}: log odds ")
    assert "│" in lines[lines.index("source") + 1]
    assert "lens erase" in " ".join(lines[-3:])
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "drawn in" in answer.err
    monkeypatch.setenv("COLUMNS", "40")
    answer = succeeded(
        "translate", run_folder, line, "--why", word, "--instead", others, "--lens", "gradients"
    )
    assert max(map(len, answer.out.splitlines()[1:])) <= 40
    assert answer.out.count("│") > 3


def test_without_words_to_compare_with_the_most_probable_ones_are_taken_and_named(
    run_folder, asked
):
    line, word, _ = asked
    answer = succeeded("translate", run_folder, line, "--why", word)
    question = answer.out.splitlines()[1]
    others = question.removeprefix(f"{word} rather than ").partition(": log odds")[0].split(" or ")
    assert len(others) == 3
    assert answer.err.startswith(
        f"compared with {', '.join(others)}, the most probable alternatives to "
    )
    record = printed("translate", run_folder, line, "--why", word)
    assert [visible(other) for other in record["why"]["instead_of"]] == others
    itself = refusal("translate", run_folder, line, "--why", word, "--instead", word)
    assert itself == f"regard: {word!r} is the written word itself; compare it with other words"


def test_a_word_of_the_source_leads_to_a_written_one():
    empty = Translation("The animal sleeps because it is tired.", "", (), (), 0.0, 0.0, True)
    for word, text, end in (
        (
            "it",
            "Das Tier schläft, weil es müde ist.",
            "'it' is not in it; it is a word of the source. Ask about a "
            "written word, e.g. --why es",
        ),
        ("IT", "Das Tier kommt mit ihm.", "Ask about a written word, e.g. --why Das"),
        ("it", "", "'it' is not in it"),
        ("dog", "Das Tier schläft.", "'dog' is not in it"),
    ):
        with pytest.raises(ArgumentError) as refused:
            explain_why(None, replace(empty, text=text), word, (), "erase", None)
        assert str(refused.value).endswith(end)


@pytest.mark.parametrize("kind", ["cross", "encoder"])
def test_attention_is_drawn_in_the_terminal(run_folder, monkeypatch, kind):
    monkeypatch.setenv("COLUMNS", "40")
    answer = succeeded(
        "translate", run_folder, "the animal", "--map", kind, "--layer", 0, "--head", 1
    )
    _, *lines = answer.out.splitlines()
    ids = printed("translate", run_folder, "the animal")["ids"]
    translator = Translator.load(run_folder)
    maps = look(translator.model, translator.tokeniser, "the animal", ids).merged()
    drawn = terminal_map(maps.matrix(kind, 0, 1), *maps.labels(kind), 40).splitlines()
    assert max(map(len, lines)) <= 40
    assert lines[-len(drawn) :] == drawn
    assert "layer 0 (of 0 to " in " ".join(lines)
    refused = regard("translate", run_folder, "the animal", "--map", kind, "--layer", 9)
    assert (refused.returncode, "layer 9 does not exist" in refused.last) == (2, True)


# --- continuing prompts


def test_the_prompt_and_its_continuation_come_as_one_plain_line(writer):
    settings = [
        "--temperature",
        0.9,
        "--top-k",
        50,
        "--top-p",
        0.9,
        "--min-p",
        0.01,
        "--seed",
        3,
        "--max-tokens",
        7,
    ]
    answer = succeeded("generate", writer, "the animal", *settings)
    sampling = Sampling(temperature=0.9, top_k=50, top_p=0.9, min_p=0.01, seed=3)
    ((expected,),) = Generator.load(writer).generate(
        ["the animal"], max_tokens=7, sampling=sampling
    )
    assert (answer.out, answer.err) == (f"the animal{expected.text}\n", "")
    assert len(expected.ids) == 7


def test_lines_of_standard_input_are_prompts_and_each_draws_for_itself(writer):
    options = ("--seed", 5, "--max-tokens", 12)
    prompts = ["the animal", "", "a café", "the animal", "the animal"]
    lines = "\n".join(prompts).encode()
    records, again = (printed("generate", writer, *options, stdin=lines) for _ in range(2))
    assert records == again
    assert [record["prompt"] for record in records] == prompts
    assert records[0]["settings"]["seed"] == 5
    assert {"text", "ids", "log_probability", "ended"} <= records[0].keys()
    together = Generator.load(writer).generate(prompts, max_tokens=12, sampling=Sampling(seed=5))
    assert [record["ids"] for record in records] == [
        list(translation.ids) for (translation,) in together
    ]
    assert len({tuple(records[index]["ids"]) for index in (0, 3, 4)}) == 3

    for row in (-1, 2**32, 1.0, True):
        with pytest.raises(ArgumentError, match="first_row is"):
            Generator.load(writer).generate(["the animal"], first_row=row)


def test_every_kind_of_cache_writes_the_same(writer, monkeypatch):
    greedy = ("generate", writer, "the animal", "--temperature", 0, "--max-tokens", 6)
    expected = succeeded(*greedy)
    kinds = []
    new_cache = MultiHeadAttention.new_cache
    monkeypatch.setattr(
        MultiHeadAttention,
        "new_cache",
        lambda self, *arguments: kinds.append(arguments[1]) or new_cache(self, *arguments),
    )
    for kind in ("static", "paged"):
        assert succeeded(*greedy, "--cache", kind) == expected
    assert kinds == ["static"] * 2 + ["paged"] * 2  # of both layers
    assert succeeded(*greedy, "--cache-dtype", "int8").out.startswith("the animal")


def test_compiled_steps_write_the_same_and_one_graph_serves_all_lengths(
    writer, tmp_path, monkeypatch
):
    from torch._dynamo.exc import TorchDynamoException  # it takes a second to import
    from torch._dynamo.testing import CompileCounterWithBackend

    tokeniser = Tokeniser.train(LINES, 300)
    counter = CompileCounterWithBackend("eager")
    compiling = torch.compile
    config = TranslationTransformer.Config(
        vocab_size=tokeniser.vocab_size,
        dim=16,
        heads=2,
        encoder_layers=1,
        decoder_layers=1,
        positions="learned",
        max_length=20,
    )
    TranslationTransformer(config).save(tmp_path, {TOKENISER_FILE: tokeniser.to_json()})
    eager = {"fullgraph": True, "dynamic": True, "backend": counter}
    monkeypatch.setattr(torch, "compile", lambda step, **options: compiling(step, **eager))
    prompts = ("generate", writer, "the animal", "a", "--max-tokens", 9, "--seed", 3)
    for number, command in enumerate(
        (prompts, ("translate", tmp_path, "a", "the animal", "--max-length", 9)), 1
    ):
        answer = succeeded(*command, "--compile")
        assert answer.out == succeeded(*command).out
        assert (
            answer.err.count("compiling a step, which") == answer.err.count("compiling took") == 1
        )
        assert counter.frame_count == 2 * number  # the layers and the scores
    with pytest.raises(UnsupportedError, match="RecurrentTranslator keeps no keys and values"):
        compile_steps(
            RecurrentTranslator(RecurrentTranslator.Config(vocab_size=9, dim=4, hidden=4))
        )

    monkeypatch.setattr(
        torch, "compile", lambda step, **options: lambda *arguments: torch.zeros(1, 16)
    )
    compile_steps(model := TranslationTransformer(config).eval())
    with pytest.raises(ShapeError, match="this table has 0 to 19"), torch.inference_mode():
        model._through_layers(torch.ones(1, 1, dtype=torch.int64), torch.tensor([20]))

    def refused(*arguments):
        raise TorchDynamoException("no compiler\nand more")

    monkeypatch.setattr(torch, "compile", lambda step, **options: refused)
    assert "cannot be compiled (no compiler); do not" in refusal(*prompts, "--compile")


@pytest.fixture
def _graphs_without_kernels(monkeypatch):
    """Inductor rewrites a graph, which then runs as PyTorch's operations: a compiler needs 15 seconds of CPU time."""
    from torch._dynamo.utils import detect_fake_mode
    from torch._inductor import compile_fx
    from torch._inductor.virtualized import V

    def rewrite(graph, inputs, **options):
        with V.set_fake_mode(detect_fake_mode(inputs)):
            compile_fx._recursive_post_grad_passes(graph, options["is_inference"])
        return graph

    rewriting = partial(compile_fx.compile_fx, inner_compile=rewrite)
    monkeypatch.setattr(compile_fx, "compile_fx", rewriting)


def assert_one_row_is_multiplied_by_sums():
    from torch._dynamo.utils import counters  # these take a second to import
    from torch._inductor.utils import fresh_cache

    model = LanguageModel(
        LanguageModel.Config(vocab_size=2_053, dim=16, layers=1, heads=2, tied=False)
    ).eval()
    with torch.inference_mode(), fresh_cache():
        text = torch.tensor([[BEGIN, 7, 11]])
        plain = model.step(text[0, :1], model.start(text, "static", capacity=5))
        counters.clear()
        compile_steps(model)
        torch.testing.assert_close(
            model.step(text[0, :1], model.start(text, "static", capacity=5)), plain
        )
    assert counters["inductor"]["decompose_mm"] == sum(
        isinstance(part, torch.nn.Linear) for part in model.modules()
    )


@pytest.mark.usefixtures("_graphs_without_kernels")
def test_the_graph_of_a_step_multiplies_one_row_by_sums():
    assert_one_row_is_multiplied_by_sums()


@pytest.mark.slow
def test_a_compiled_step_multiplies_one_row_by_sums():
    assert_one_row_is_multiplied_by_sums()


def test_speculation_writes_the_same_and_says_how_many_sub_words_a_call_wrote(writer, tmp_path):
    drawn = ("generate", writer, "the animal", "--seed", 2, "--max-tokens", 9)
    expected = succeeded(*drawn).out
    for options in (("--speculate", "lookup"), ("--draft", writer, "--proposals", 3)):
        answer = succeeded(*drawn, *options)
        out = tmp_path / f"{options[0]}.txt"
        assert answer.out == expected
        assert "sub-words for each call of the model" in answer.err
        assert printed(*drawn, *options)["tokens_per_step"] >= 1
        (tmp_path / "prompts.txt").write_text("the animal\n")
        succeeded(
            *drawn[:2], "--input", tmp_path / "prompts.txt", *drawn[3:], "--out", out, *options
        )
        assert out.read_text().split() == expected.split()
    assert "tokens_per_step" not in printed(*drawn)


def test_a_stop_and_a_beam_are_heeded(writer, monkeypatch):
    beam = ("generate", writer, "the", "--beam", 2, "--max-tokens", 6)
    stop = printed(*beam)["text"][2]
    record = printed(*beam, "--stop", stop)
    assert (stop in record["text"], record["settings"]) == (False, {"beam": 2})
    stops = []

    def begin(stream, others=(), begins=False):
        stops.extend(others)
        raise ArgumentError("the stops are known")

    monkeypatch.setattr("regard_lab.decoding.streaming.TextStream.__init__", begin)
    for typed in (r"\n", r"a\tb", r"\\n", r"\d", "\n"):
        regard("generate", writer, "a", "--stop", typed)
    assert stops == ["\n", "a\tb", r"\n", r"\d", "\n"]


def test_an_interruption_is_one_word_after_what_was_written(writer, monkeypatch):
    def interrupted(self, prompts, on_text, **options):
        on_text(0, 0, " and")
        raise KeyboardInterrupt

    monkeypatch.setattr(Generator, "generate", interrupted)
    answer = regard("generate", writer, "the animal")
    assert (answer.returncode, answer.out, answer.err) == (
        130,
        "the animal and\n",
        "regard: interrupted\n",
    )


def test_a_text_beyond_the_trained_length_is_remarked_once(writer, tmp_path):
    saved = load_model(writer)
    LanguageModel.from_saved(saved, "run").save(tmp_path / "run", saved.extra_files)
    (tmp_path / "run/settings.json").write_bytes(
        render_sealed({"settings": {"block": 24}, "files": {}})
    )
    remark = (
        "this model was trained on 24 at once; what it writes after the first 24 may make no sense"
    )
    for prompts in (("a" * 30, "b" * 30), ("a",)):
        answer = succeeded(
            "generate", tmp_path / "run", *prompts, "--max-tokens", 40, "--temperature", 0
        )
        assert answer.err.count(remark) == 1
    assert remark not in succeeded("generate", tmp_path / "run", "a", "--max-tokens", 5).err

    length = TrainedLength(tmp_path / "run")
    assert length.remark(24) is None
    assert remark in length.remark(25)
    assert length.remark(25) is None


# --- remarks on translations


def translator_that(ends):
    """A translator that writes END at once, or never."""
    torch.manual_seed(0)
    tokeniser = Tokeniser.train(LINES, 300, targets=LINES)
    model = TranslationTransformer(
        TranslationTransformer.Config(vocab_size=tokeniser.vocab_size, dim=16, heads=2)
    )
    step = model.step
    favoured = torch.zeros(tokeniser.vocab_size)
    favoured[END] = 1e4 if ends else -1e4
    object.__setattr__(
        model, "step", lambda *arguments, **more: step(*arguments, **more) + favoured
    )
    return Translator(model, tokeniser)


@pytest.mark.parametrize("ends", [True, False])
def test_translations_that_are_empty_or_endless_are_counted_and_remarked(
    ends, monkeypatch, tmp_path
):
    translator = translator_that(ends)
    result = evaluate(
        translator, [Pair("the animal sleeps", "a street"), Pair("a street", "a street")]
    )
    text = "\n".join(RunScores("some pairs", result).lines())
    counts = {name: result.to_dict()[name] for name in ("empty", "unfinished")}
    low, high = sorted(len(hypothesis.ids) for hypothesis in result.translations)
    remark = f"reached the limits of {low} to {high} ids without an end"
    remark = f"2 of 2 translations {'are empty' if ends else remark}"
    assert counts == ({"empty": 2, "unfinished": 0} if ends else {"empty": 0, "unfinished": 2})
    assert f"  {remark}\n" in text
    monkeypatch.setattr(Translator, "load", lambda folder: translator)
    (tmp_path / "lines.txt").write_text("the animal sleeps\na street\n")
    files = ("--input", tmp_path / "lines.txt", "--out", tmp_path / "out.txt")
    for words in (("the animal sleeps", "a street"), files):
        assert remark in succeeded("translate", tmp_path, *words).err


def test_translations_of_blank_lines_and_whole_translations_are_not_remarked():
    blank, whole, empty, endless = (
        Translation(source, text, ids, written, 0.0, 0.0, finished)
        for source, text, ids, written, finished in (
            (" ", "", (), (), True),
            ("a", "b", (5,), (6,), True),
            ("a", " ", (5,), (), True),
            ("a", "b", (5,), (6,) * 7, False),
        )
    )
    assert Ends([blank, whole]).remark() is None
    assert Ends([blank, whole, empty]).remark() == "1 of 2 translations is empty"
    assert (
        Ends([whole, endless]).remark()
        == "1 of 2 translations reached the limit of 7 ids without an end"
    )


def test_a_wide_beam_and_a_long_text_are_announced_as_slow(monkeypatch, tmp_path):
    translator = translator_that(True)
    monkeypatch.setattr(Translator, "load", lambda run: translator)
    assert (
        "--beam 9999 keeps 9,999 hypotheses at each step"
        in regard("translate", tmp_path, "a", "--beam", 9999).err
    )
    assert "hypotheses" not in regard("translate", tmp_path, "a", "--beam", 4).err

    def opened(*arguments):
        raise ArgumentError("the work begins")

    monkeypatch.setattr(view_command.OpenedRun, "read", opened)
    monkeypatch.setattr(
        view_command, "open_run", lambda *arguments: view_command.OpenedRun(tmp_path, None, None)
    )
    long = "a bird " * 120
    page = ("--export", tmp_path / "page.html")
    assert (
        "the text has 240 words, which are read again many times"
        in regard("view", tmp_path, long, *page).err
    )
    assert "many times" not in regard("view", tmp_path, "a bird", *page).err
    assert "many times" not in regard("view", tmp_path, long, "--png", tmp_path / "x.png").err


@pytest.fixture(scope="module")
def runs(data, tmp_path_factory):
    """A translator, a language model and a classifier that were trained for two steps."""
    folder = tmp_path_factory.mktemp("trained")
    # these are too long to be learned from
    long = ""
    for row in range(6):
        words = " ".join(f"q{n}x{row}z" for n in range(70))
        long += f"elephants {words}\tzu lang\n"
    (folder / "pairs.tsv").write_text((data / "pairs.tsv").read_text() + long)
    files = {"translation": folder / "pairs.tsv", "language-model": data / "text.txt"}
    for kind, file in {**files, "classifier": data / "labels.tsv"}.items():
        more = ("--mechanism", "performer(16)") if kind == "translation" else ()
        answer = succeeded(
            "train", kind, "--data", file, "--out", folder / kind, *SMALL, *BUDGET, *more
        )
        assert ("were left out of training" in answer.err) == (kind == "translation")
    return folder


@pytest.fixture
def planned(runs):
    """Writes other numbers into the last checkpoint of a run, which come back after the test."""
    contents = {}

    def plan(kind, state, config):
        path = runs / kind / read_checkpoints(runs / kind).last / STATE_FILE
        contents.setdefault(path, path.read_bytes())
        content = {
            key: value for key, value in read_training(path.parent).items() if key != "sha256"
        }
        content["state"] |= state
        content["config"] |= config
        path.write_bytes(render_sealed(content))

    yield plan
    for path, content in contents.items():
        path.write_bytes(content)


def test_every_command_names_a_training_that_has_not_ended_with_its_step(runs, planned, tmp_path):
    commands = (
        ("translate", runs / "translation", "the bird sang"),
        ("evaluate", runs / "translation"),
        ("view", runs / "language-model", "the bird", "--png", tmp_path / "a.png"),
        ("generate", runs / "language-model", "the", "--max-tokens", 1),
        ("classify", runs / "classifier", "a bird"),
    )
    assert "not finished" not in succeeded(*commands[0]).err
    for kind in ("translation", "language-model", "classifier"):
        remark = remark_on_training(runs / kind)
        assert remark is None if kind == "classifier" else remark.startswith(HARDLY)
        planned(kind, {}, {"steps": 2800})
    for command in commands:
        assert (
            "this model is at step 2 of 2,800; its training is not finished"
            in succeeded(*command).err
        ), command


def test_a_training_has_ended_when_its_patience_or_its_minutes_are_used_up(runs, planned):
    run = runs / "translation"
    learned = {"best_loss": 0.5}  # so that nothing else is to be remarked
    planned("translation", {**learned, "without_improvement": 3}, {"steps": 2800, "patience": 3})
    assert remark_on_training(run) is None
    planned("translation", {"without_improvement": 2}, {})
    assert remark_on_training(run).startswith("this model is at step 2 of 2,800; ")
    planned(
        "translation", {"last_step": 500, "wall_seconds": 60.0}, {"steps": None, "minutes": 5.0}
    )
    assert remark_on_training(run).startswith("this model is at step 2 of 500; ")
    planned("translation", {"wall_seconds": 299.0, "look_seconds": 2.0}, {})
    assert remark_on_training(run) is None


def test_words_without_quotes_and_empty_arguments_are_remarked(runs):
    run = runs / "translation"
    assert f'regard translate {run} "The bird"' in succeeded("translate", run, "The", "bird").err
    assert [record["source"] for record in printed("translate", run, "The", "bird")] == [
        "The",
        "bird",
    ]
    assert "quotes" not in succeeded("translate", run, "the bird", "the bird sang").err
    assert remark_on_arguments("a b", ["it's", "$5"]).endswith(
        """regard translate 'a b' 'it'"'"'s $5'"""
    )
    assert "without words gives an empty line" in succeeded("translate", run, "").err
    answer = succeeded("translate", run, stdin=b"\nthe bird\n")
    assert (answer.out.splitlines()[0], "without words" in answer.err) == ("", False)


def test_a_sentence_far_longer_than_those_of_the_test_is_remarked_before_it_is_translated(runs):
    run = runs / "translation"
    remark = (
        "a sentence has 60 words, and the longest of the test sentences of this run has 5 words"
    )
    assert remark in succeeded("translate", run, stdin=LONG.encode() + b"\n").err
    assert Lengths(run).remark(" ".join(["word"] * 39)) is None
    assert Lengths(run.parent).remark(LONG) is None  # there is no test split to compare with


def remarks(answer):
    """But that this model, which learned for two steps, has hardly learned and does not end its translations."""
    lines = answer.err.splitlines()
    return [line for line in lines if "without an end" not in line and HARDLY not in line]


HARDLY = "this model has hardly learned: its best validation loss is "


def test_commands_say_that_a_model_has_hardly_learned(runs, data):
    for words in (
        ("translate", runs / "translation", "the bird"),
        ("generate", runs / "language-model", "the bird", "--max-tokens", 3),
        ("evaluate", runs / "translation", data / "pairs.tsv"),
        ("score", runs / "translation", data / "pairs.tsv"),
    ):
        assert succeeded(*words).err.startswith(HARDLY)
    assert HARDLY in succeeded("evaluate", runs / "translation", data / "pairs.tsv").out
    assert printed("evaluate", runs / "language-model", data / "text.txt")["hardly_learned"] is True


def test_unknown_words_are_named_once_and_in_the_record(runs):
    run = runs / "translation"
    answer = succeeded(
        "translate", run, "bird, the zebra sang.", "A zebra", "the street elephants", "--json"
    )
    assert remarks(answer) == [
        "not in the training of this model: zebra; the translation of such words is a guess",
        "not in the training of this model: A; the translation of such words is a guess",
        "not in the training of this model: street, elephants; the translation of such words is a guess",
    ]
    unknown = [json.loads(line)["unknown_words"] for line in answer.out.splitlines()]
    assert unknown == [["zebra"], ["A", "zebra"], ["street", "elephants"]]
    assert remarks(succeeded("translate", run, "the bird sang.")) == []
    answer = succeeded(
        "translate",
        run,
        stdin=b"the bird\n\n" + " ".join(f"w{n}" for n in range(20)).encode() + b"\n",
    )
    assert "w11 and 8 more; the translation" in remarks(answer)[-1]
    answer = succeeded("translate", run, "Seven elephants crossed a wide river.")
    assert remarks(answer)[-1].endswith("; the translation is a guess: 6 of 6 words are unknown")


def test_a_classifier_is_evaluated_with_its_baseline_confusions_and_calibration(
    runs, data, tmp_path
):
    run = runs / "classifier"
    out = tmp_path / "rows.tsv"
    record = printed("evaluate", run, data / "labels.tsv", "--out", out)
    header, *rows = [line.split("\t") for line in out.read_text().splitlines()]
    assert header == ["text", "label", "given", "probability"]
    right = sum(label == answered for _, label, answered, _ in rows)
    assert (record["accuracy"], record["majority_baseline"]) == (right / 80, 0.5)
    assert record["trained_on"] == len((run / "trained-pairs.hashes").read_bytes()) // 8
    assert (
        sum(map(sum, record["confusion"]))
        == sum(bin["count"] for bin in record["calibration"])
        == 80
    )
    text = succeeded("evaluate", run).out
    parts = ("of the run's own test split", "recall", "trained on")
    assert [part in text for part in parts] == [True, True, False]
    (tmp_path / "new.tsv").write_text("odd\ta bird\nstrange\ta street\n")
    assert "has the label 'strange', which" in regard("evaluate", run, tmp_path / "new.tsv").last


def test_measures_of_a_classifier_are_their_formulas():
    pairs = [Pair("1", "a"), Pair("2", "a"), Pair("3", "a"), Pair("4", "b")]
    scores = ClassScores(
        "x", ("a", "b"), pairs, [(0.9, 0.1), (0.95, 0.05), (0.3, 0.7), (0.25, 0.75)]
    )
    assert (scores.accuracy, scores.baseline, scores.confusion) == (0.75, 0.75, [[2, 1], [0, 1]])
    assert [figures.recall for figures in scores.by_class()] == [2 / 3, 1]
    assert [figures.precision for figures in scores.by_class()] == [1, 0.5]
    assert [tenth.count for tenth in scores.calibration] == [2, 2]
    assert scores.calibration_error == pytest.approx(
        (2 * abs(1 - 0.925) + 2 * abs(0.5 - 0.725)) / 4
    )


@torch.no_grad()
def test_hidden_words_are_scored_as_a_loop_over_words_scores_them(run_folder, tmp_path):
    lines = [f"the {'old ' * (n % 5)}animal number {n} sleeps in the street" for n in range(200)]
    (tmp_path / "new.txt").write_text("\n".join(lines))
    tokeniser = Translator.load(run_folder).tokeniser
    model = TextEncoder(
        TextEncoder.Config(vocab_size=tokeniser.vocab_size, dim=8, heads=2, layers=1)
    ).eval()
    model.save(tmp_path / "run", {TOKENISER_FILE: tokeniser.to_json()})
    record = printed("evaluate", tmp_path / "run", tmp_path / "new.txt")
    words = []
    losses = []
    best = []
    batches = MaskedWordTask(lines[:1], lines, tokeniser).validation_batches()
    for batch in batches:
        words += batch.words.tolist()
        scores = model(batch.ids, batch.places).log_softmax(-1)
        losses += scores.neg().tolist()
        best += scores.argmax(-1).tolist()
    assert (len(batches) > 1, record["words"]) == (True, len(words))
    assert record["loss"] == pytest.approx(
        sum(row[word] for row, word in zip(losses, words, strict=True)) / len(words)
    )
    assert record["accuracy"] == sum(map(int.__eq__, best, words)) / len(words) > 0
    assert record["majority_baseline"] == max(map(words.count, words)) / len(words)


def test_a_language_model_knows_which_lines_it_learned_from_and_scores_lines(runs, tmp_path):
    run = runs / "language-model"
    new = tmp_path / "new.txt"
    new.write_text("the bird number 3 sang in the street,\na zebra\n")
    record = printed("evaluate", run, new)
    assert (record["trained_on"], record["line_count"]) == (1, 2)
    assert "1 of these lines was trained on" in succeeded("evaluate", run, new).out
    scores = [
        f"{record['log_probability']:.6f}\t{record['text']}"
        for record in printed("score", run, new)
    ]
    assert succeeded("score", run, new).out.splitlines() == scores
    assert "--out" in regard("evaluate", run, new, "--out", tmp_path / "a.tsv").last


def test_runs_are_compared_on_each_file_and_nothing_is_trained(runs, planned, data, tmp_path):
    # as runs begun by an earlier version
    planned("translation", {"skipped": 1}, {"parallel": "ddp"})
    twice = f"{runs / 'translation'},{runs / 'translation'}"
    (tmp_path / "new.tsv").write_text("a street\teine Straße\n")
    files = (
        "--data",
        data / "pairs.tsv",
        "--data",
        tmp_path / "new.tsv",
        "--out",
        tmp_path / "out",
    )
    record = printed("compare", "--runs", twice, *files)
    alone = printed("evaluate", runs / "translation", data / "pairs.tsv")
    assert [row["test"] for row in record["rows"]] == [str(data / "pairs.tsv")] * 2 + [
        str(tmp_path / "new.tsv")
    ] * 2
    assert {name: record["rows"][0][name] for name in alone} == alone
    assert (tmp_path / "out/compare.md").read_text().count("| ") > 10
    parameters = sum(
        parameter.numel() for parameter in Translator.load(runs / "translation").model.parameters()
    )
    (trained,) = record["training"]
    assert (trained["parameters"], trained["steps"], trained["run"]) == (
        parameters,
        2,
        str(runs / "translation"),
    )
    texts = [data / "text.txt", tmp_path / "new.tsv"]
    _, made = comparing.compare_runs([runs / "language-model"] * 2, texts, tmp_path)
    assert [row["line_count"] for row in json.loads(made)["rows"]][2:] == [1, 1]


def test_pairs_are_scored_and_sentences_written_with_their_scores(runs, data, tmp_path):
    run = runs / "translation"
    out = tmp_path / "rows.jsonl"
    answer = succeeded("score", run, data / "pairs.tsv")
    first, *others = answer.out.splitlines()
    assert (len(others), "kept 90 of 90 lines" in answer.err) == (89, True)
    number, source, target = first.split("\t")
    assert (float(number) < 0, source, target) == (
        True,
        "the bird number 0 sang",
        "der Vogel Nummer 0 sang",
    )
    succeeded("evaluate", run, "--out", out)
    names = [
        "source",
        "reference",
        "output",
        "bleu",
        "chrf",
        "exact_match",
        "log_probability",
        "finished",
    ]
    assert list(json.loads(out.read_text().splitlines()[0])) == names
    assert "ends in .tsv or .jsonl" in regard("evaluate", run, "--out", tmp_path / "rows.xml").last


@pytest.mark.parametrize("as_json", [False, True])
def test_score_writes_a_row_for_each_line_and_fails_if_one_has_no_score(runs, tmp_path, as_json):
    run = runs / "translation"
    path = tmp_path / "some.tsv"
    good = "the bird number 7 sang\tder Vogel Nummer 7 sang"
    path.write_bytes(
        f"{good}\nno tab\n{good}\n\nthe bird\t\n".encode() + b"caf\xe9\tx\n" + good.encode()
    )
    answer = regard("score", run, path, *(["--json"] if as_json else []))
    rows = answer.out.splitlines()
    reasons = ["not exactly two columns", "empty line", "empty side", "not valid UTF-8"]
    places = [2, 4, 5, 6]
    assert (len(rows), answer.returncode) == (7, 1)
    for row in (rows[0], rows[2], rows[6]):  # a repeated pair has its row too
        target = json.loads(row)["text"] if as_json else row.split("\t")[2]
        assert target == "der Vogel Nummer 7 sang"
    for number, reason in zip(places, reasons, strict=True):
        row = rows[number - 1]
        if as_json:
            assert json.loads(row) == {"unscored": reason, "file": str(path), "line": number}
        else:
            assert row == f"unscored\t{reason}\t{path} line {number}"
    assert "kept 3 of 7 lines; unscored 4 (1 not exactly two columns" in answer.err
    assert "4 of 7 lines have no score" in answer.last
    assert succeeded("score", run, _with(path, good + "\n")).out.count("\n") == 1
    assert regard("score", run, _with(path, "a b\n")).out.startswith("unscored\tnot exactly two")
    assert "is empty" in refusal("score", run, _with(path, ""), code=1)


def _with(path, text):
    path.write_text(text)
    return path


def test_score_of_a_language_model_writes_a_row_for_an_empty_line(runs, tmp_path):
    path = _with(tmp_path / "some.txt", "the bird\n\n  \nthe street\n")
    answer = regard("score", runs / "language-model", path)
    rows = answer.out.splitlines()
    assert (len(rows), answer.returncode) == (4, 1)
    assert rows[1:3] == [f"unscored\tempty line\t{path} line {number}" for number in (2, 3)]
    assert "2 of 4 lines have no score" in answer.last


def test_a_classifier_remarks_on_texts_and_not_on_single_words(runs):
    texts = ("the zebra sang", "Seven elephants crossed the river")
    answer = succeeded("classify", runs / "classifier", *texts)
    assert len(answer.out.splitlines()) == 2
    assert answer.err == (
        "not in the training of this model: Seven, elephants, crossed, river; the label is a guess: 4 of 5 words are "
        "unknown\n"
    )


def test_the_list_of_known_words_may_be_incomplete_missing_or_damaged(runs, writer, tmp_path):
    saved = load_model(runs / "translation")
    some = SeenWords(frozenset({"bird"}), 9).to_json()
    for name, files in (("some", {WORDS_FILE: some}), ("old", {}), ("bad", {WORDS_FILE: "{}"})):
        files = {TOKENISER_FILE: saved.extra_files[TOKENISER_FILE], **files}
        TranslationTransformer.from_saved(saved, "run").save(tmp_path / name, files)
    answer = succeeded("translate", tmp_path / "some", "bird sang")
    assert remarks(answer)[-1].startswith(
        "not among the 1 most frequent words of its training: sang; "
    )
    answer = succeeded("translate", tmp_path / "old", "the zebra", "--json")
    assert (remarks(answer), json.loads(answer.out)["unknown_words"]) == ([], None)
    answer = regard("translate", tmp_path / "bad", "the bird")
    assert (answer.returncode, "the list of training words is damaged" in answer.last) == (1, True)
    saved = load_model(writer)
    files = {**saved.extra_files, WORDS_FILE: SeenWords.of(LINES).to_json()}
    LanguageModel.from_saved(saved, "run").save(tmp_path / "writer", files)
    answer = succeeded("generate", tmp_path / "writer", "the zebra", "a zebra", "--max-tokens", 1)
    assert (
        answer.err
        == "not in the training of this model: zebra; the continuation of such words is a guess\n"
    )


def test_each_text_has_the_label_that_is_most_probable(runs):
    run = runs / "classifier"
    lines = b"the bird 4 sang\n\nthe bird 7 sang, and sang, and sang"
    records = printed("classify", run, stdin=lines)
    assert [record["text"] for record in records] == lines.decode().splitlines()
    assert records[1] == {"text": "", "label": None, "probabilities": {}}
    plain = succeeded("classify", run, stdin=lines).out.splitlines()
    for record, line in zip(records, plain, strict=True):
        if probabilities := record["probabilities"]:
            most = max(probabilities.values())
            assert sum(probabilities.values()) == pytest.approx(1)
            assert (line, probabilities[record["label"]]) == (
                f"{record['label']}\t{most:.3f}",
                most,
            )
    alone = printed("classify", run, "the bird 4 sang")["probabilities"]
    # what is beside a text changes nothing
    assert alone == pytest.approx(records[0]["probabilities"], abs=1e-6)


def test_a_language_model_is_evaluated_on_a_text(runs, data, tmp_path):
    run = runs / "language-model"
    old = data / "text.txt"
    new = tmp_path / "new.txt"
    new.write_text(old.read_text().replace("bird", "dog"))
    record = printed("evaluate", run, new)
    loss, ids = whole_text(run, new)
    bits = record["loss"] * ids / math.log(2) / len(new.read_text())
    expected = {
        "characters": len(new.read_text()),
        "perplexity": pytest.approx(math.exp(record["loss"])),
        "ids": ids,
        "loss": pytest.approx(loss, rel=1e-4),
        "bits_per_character": pytest.approx(bits),
    }
    assert {name: record[name] for name in expected} == expected
    assert "trained on" in succeeded("evaluate", run, old).out
    # "and rain fell."
    assert "1 of these lines was trained on" in succeeded("evaluate", run, new).out
    assert f"regard evaluate {run} TEXT.txt" in regard("evaluate", run).err


def whole_text(run, path) -> tuple[float, int]:
    """The loss of a language model on a text, block by block from the formula, and the number of ids."""
    saved, tokeniser = load_with_tokeniser(run)
    model = LanguageModel.from_saved(saved, "here").eval()
    ids = [*tokeniser.encode(path.read_text()), END]
    blocks = [ids[start : start + 256] for start in range(0, len(ids), 256)]
    with torch.no_grad():
        rows = [
            (model(torch.tensor([[BEGIN, *block[:-1]]]))[0].double().log_softmax(-1), block)
            for block in blocks
        ]
    return -sum(float(logs[range(len(block)), block].sum()) for logs, block in rows) / len(
        ids
    ), len(ids)
