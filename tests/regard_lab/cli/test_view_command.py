"""`regard view`: the explorer of a trained model, as a file or as a local page."""

import http.client
import json
import re
import signal

import pytest
import tokenizers
import torch
import transformers
from commanding import Forked, printed, refusal, regard, succeeded

from regard.storage.sealed_json import render_sealed
from regard_lab.cli import heads as heads_command
from regard_lab.cli import view
from regard_lab.decoding import Translation, Translator
from regard_lab.decoding.loading import TOKENISER_FILE
from regard_lab.models import (
    LanguageModel,
    RecurrentTranslator,
    TextEncoder,
    TranslationTransformer,
)
from regard_lab.seeing.heads import Effect, Head, HeadEffects
from regard_lab.text import Tokeniser
from regard_lab.training.recipes.run_folder import SETTINGS_FILE

SENTENCE = "The animal didn't cross the street because it was too tired."
SHORT = "The animal was tired."  # a page explains each word that a model writes, and this one lets it write fewer
KINDS = {
    "transformer": (TranslationTransformer, {"heads": 2}),
    "bahdanau": (RecurrentTranslator, {"attention": "bahdanau"}),
    "none": (RecurrentTranslator, {"attention": "none"}),
    "language-model": (LanguageModel, {"heads": 2}),
    "encoder": (TextEncoder, {"heads": 2}),
    "hybrid": (
        LanguageModel,
        {
            "heads": 2,
            "layers": 3,
            "mechanism": ("gated_delta", "softmax"),
            "positions": "none",
        },
    ),
    "recurrent": (LanguageModel, {"heads": 2, "mechanism": "ssd", "positions": "none"}),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Models that were never trained, by their kind."""
    folder = tmp_path_factory.mktemp("runs")
    tokeniser = Tokeniser.train([SENTENCE, "das Tier, weil es er sie"] * 2, 400)
    torch.manual_seed(0)
    for name, (kind, settings) in KINDS.items():
        model = kind(kind.Config(vocab_size=tokeniser.vocab_size, dim=16, **settings))
        model.save(folder / name, {TOKENISER_FILE: tokeniser.to_json()})
    save_pretrained(folder / "pretrained")
    save_pretrained(folder / "mamba")
    (folder / "mamba" / "config.json").unlink()
    (folder / "mamba" / "model.safetensors").unlink()
    config = transformers.Mamba2Config(
        vocab_size=300,
        hidden_size=16,
        num_heads=4,
        head_dim=8,
        state_size=8,
        n_groups=1,
        num_hidden_layers=2,
        chunk_size=4,
    )
    transformers.Mamba2ForCausalLM(config).save_pretrained(folder / "mamba")
    return folder


def save_pretrained(folder):
    """A GPT-2 that was never trained, in the format of Hugging Face."""
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator([SENTENCE], trainer)
    transformers.PreTrainedTokenizerFast(tokenizer_object=inner).save_pretrained(folder)
    config = transformers.GPT2Config(
        vocab_size=300, n_embd=16, n_layer=2, n_head=4, n_positions=128
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)


@pytest.fixture
def exported(runs, tmp_path):
    """Exports the page of a run; returns its header, and what the command remarked."""
    path = tmp_path / "page.html"

    def export(kind, *words):
        answer = succeeded("view", runs / kind, *words, "--export", path)
        assert answer.stdout == b""
        text = path.read_text("utf-8")
        return json.loads(re.search(r'id="regard-header">(.*?)</script>', text)[1]), answer.err

    return export


@pytest.mark.parametrize("kind", ["transformer", "bahdanau", "language-model", "encoder"])
def test_every_kind_of_model_is_exported(exported, kind):
    page, _ = exported(kind, SHORT, "--no-model")
    names = {
        "transformer": ["Cross-attention", "Encoder self-attention", "Decoder self-attention"],
        "bahdanau": ["Cross-attention"],
    }.get(kind, ["Self-attention"])
    assert [attention["name"] for attention in page["attentions"]] == names
    assert (page["live"], len(page["patterns"])) == (None, len(names))
    assert bool(page["explained"]) == bool(page["changes"]) == (kind != "encoder")
    # what a random model writes may not read back
    assert page["walk"]["steps"] or page["walk"]["note"]
    assert kind == "transformer" or bool(page["walk"]["steps"]) == (kind != "bahdanau")


@pytest.mark.parametrize("kind", ["transformer", "language-model", "encoder"])
def test_a_page_contains_its_model_and_the_command_says_what_is_published(exported, kind):
    page, said = exported(kind, SHORT, "--int8")
    assert re.search("publishes its .* parameters in int8, its tokeniser", said)
    assert (page["attentions"], page["model"]["precision"]) == ([], "int8")
    assert page["walk"]["steps"] or page["walk"]["note"]
    assert "int8 rounds the weights" in page["notes"][1]


def test_a_hugging_face_folder_is_exported_between_its_words_and_without_its_model(exported):
    page, said = exported("pretrained", SENTENCE)
    assert re.search(
        "the page is written without its model: pages compute .* one of Hugging Face", said
    )
    assert page["model"] is None
    assert page["texts"]["text"][:4] == ["The", "animal", "didn't", "cross"]
    assert page["attentions"][0]["shape"][:2] == [2, 4]
    assert page["changes"]["follows"] == "words"
    assert len(page["changes"]["erased"]) == len(page["texts"]["text"])


def test_two_runs_and_two_sentences_are_compared(runs, exported):
    page, _ = exported("transformer", SENTENCE, "--with", runs / "bahdanau")
    assert page["second"]["said"] == str(runs / "bahdanau")
    # it reads the same translation
    assert page["second"]["header"]["texts"]["target"] == page["texts"]["target"]
    assert [attention["name"] for attention in page["second"]["header"]["attentions"]] == [
        "Cross-attention"
    ]
    page, _ = exported("language-model", SENTENCE, "--second", "The street.")
    assert page["second"]["header"]["texts"]["text"] == ["<begin>", "The", "street", "."]
    assert "apart" in page["attentions"][0]["statistics"]


@pytest.mark.parametrize("kind", ["transformer", "pretrained"])
def test_pictures_are_drawn(runs, tmp_path, kind):
    png, svg, pdf = (tmp_path / f"maps.{kind}" for kind in ("png", "svg", "pdf"))
    succeeded("view", runs / kind, SENTENCE, "--png", png, "--svg", svg, "--picture", pdf)
    assert pdf.exists()
    assert png.read_bytes()[:4] == b"\x89PNG"
    assert svg.read_text("utf-8").startswith("<?xml")


def test_what_cannot_be_viewed_is_one_sentence(runs):
    for kind, words, reason in (
        ("none", [SENTENCE], "attention='none'"),
        ("pretrained", [SENTENCE, "--why", "es"], "'es' was not"),
        ("encoder", [SENTENCE, "--lens", "erase"], "leave --lens out to see its attention"),
        ("language-model", ["the", "--lens", "erase"], "the text has one word"),
        ("pretrained", [SENTENCE * 60, "--export", "a.html"], "reads at most 128"),
        ("transformer", [SENTENCE, "--with", "nowhere"], "nowhere"),
        ("transformer", [SENTENCE, "--no-model", "--int8"], "--no-model leaves it out; give one"),
    ):
        answer = regard("view", runs / kind, *words)
        assert (answer.returncode > 0, reason in answer.last) == (True, True), answer.err


def test_a_hybrid_shows_the_layers_with_weights_and_names_the_others(runs, exported, tmp_path):
    header, _ = exported("hybrid", "the animal was tired", "--no-model")
    remark = "layers 0 and 2, with gated_delta, have no attention weights"
    (attention,) = header["attentions"]
    assert attention["shape"][:2] == [1, 2]
    assert remark in attention["says"]
    assert any(remark in note for note in header["notes"])
    names = set()
    for lenses in header["explained"].values():
        names |= {lens["lens"] for lens in lenses}
    assert names == {"erase", "gradients", "attention"}  # not all layers can be rolled out
    drawn = succeeded("view", runs / "hybrid", SENTENCE, "--png", tmp_path / "map.png")
    assert remark in drawn.err
    scored = printed("heads", runs / "hybrid", SENTENCE)["heads"]
    assert {token["name"] for token in scored if token.get("previous") is not None} == {
        "self 1.0",
        "self 1.1",
    }


@pytest.mark.parametrize("kind", ["recurrent", "mamba"])
@pytest.mark.parametrize("option", [("--export", "a.html"), ("--png", "a.png")])
def test_without_any_weights_the_advice_of_the_refusal_runs(runs, kind, option, tmp_path):
    refused = regard("view", runs / kind, SENTENCE, option[0], tmp_path / option[1])
    assert refused.returncode == 2
    advised = re.search(r"regard view \w+ TEXT (--lens \w+)$", refused.last)
    answer = succeeded("view", runs / kind, SENTENCE, *advised[1].split())
    assert "lens erase" in answer.out
    drawn = tmp_path / "words.svg"
    succeeded("view", runs / kind, SENTENCE, *advised[1].split(), "--svg", drawn)
    assert drawn.exists()


def test_heads_of_a_model_without_attention_are_refused_in_a_sentence(runs):
    assert "has heads of attention, so none can be replaced" in refusal(
        "heads", runs / "mamba", SENTENCE
    )


def test_the_page_is_served_until_it_is_interrupted(runs):
    with Forked("view", runs / "transformer", SENTENCE) as running:
        url = running.stdout.readline().decode().strip()
        host, path = re.fullmatch(r"http://(127\.0\.0\.1:\d+)(/\S{32,}/)", url).groups()
        connection = http.client.HTTPConnection(host, timeout=30)
        connection.request("GET", path)
        # the page itself reads other sentences
        assert b"regard-engine" in connection.getresponse().read()
        connection.close()
        body = json.dumps({"text": "The street."})
        connection.request("POST", f"{path}walk", body, {"Content-Type": "application/json"})
        assert "steps" in json.loads(connection.getresponse().read())["walk"]
        connection.close()
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=30)
        assert running.returncode == 0
        assert err.endswith(b"ended\n")
        assert b"Traceback" not in err


@pytest.fixture
def written(runs, monkeypatch):
    """The translator writes "es weil es" for the sentence, and "das Tier" for any other."""
    tokeniser = Tokeniser.from_json((runs / "transformer" / TOKENISER_FILE).read_text())

    def translate(self, sources, **search):
        texts = ["es weil es" if source == SENTENCE else "das Tier" for source in sources]
        return [
            Translation(source, text, (), tuple(tokeniser.encode(text)), 0.0, 0.0, True)
            for source, text in zip(sources, texts, strict=True)
        ]

    monkeypatch.setattr(Translator, "translate", translate)


@pytest.mark.usefixtures("written")
def test_a_word_that_was_written_twice_is_chosen_by_its_place(runs, exported):
    words = SENTENCE, "--why", "es"
    refused = refusal("view", runs / "transformer", *words)
    assert "'es' was written 2 times, at places 0, 2 of the written words" in refused
    assert "(--place in a command)" in refused
    for place, others in ((0, ["er"]), (2, None)):
        page, _ = exported(
            "transformer", *words, "--place", place, *(["--instead", "er"] if others else [])
        )
        assert page["model"]["asked"] == {
            "word": "es",
            "place": place,
            "others": others,
            "source": SENTENCE,
        }
    page, _ = exported("transformer", *words, "--place", 2, "--second", "The street.")
    assert (page["chosen"], page["texts"]["target"]) == (2, ["es", "weil", "es", "<end>"])
    assert page["second"]["header"]["texts"]["target"] == ["das", "Tier", "<end>"]
    assert "is not 'es'; it is at places 0, 2" in refusal(
        "view", runs / "transformer", *words, "--place", 1
    )


def test_the_only_pronoun_is_asked_about_where_the_run_learned_pronouns(runs, tmp_path):
    learned = tmp_path / "learned"
    learned.mkdir()
    settings = render_sealed({"settings": {"data": ["pronouns"]}, "files": {}})
    (learned / SETTINGS_FILE).write_bytes(settings)
    tokeniser = Tokeniser.from_json((runs / "transformer" / TOKENISER_FILE).read_text())
    for text, asked in (
        ("das Tier, weil es", True),
        ("es", True),
        ("das Tier, weil", False),
        ("es weil es", False),
        ("weil es es-es", False),
    ):
        ids = tokeniser.encode(text)
        asked_for = view.OpenedTranslator(learned, None, tokeniser).pronoun(text, ids)
        assert asked_for == ({"of": "es"} if asked else {}), text
        assert view.OpenedTranslator(tmp_path, None, tokeniser).pronoun(text, ids) == {}


def test_heads_are_printed_by_their_effect_and_drawn(runs, tmp_path):
    options = ("--by", "zero", "--picture", tmp_path / "a.pdf")
    answer = succeeded("heads", runs / "language-model", "the bird", "a cat sat", *options)
    first, head, *rows = answer.out.splitlines()
    assert first.startswith("loss ")
    assert head.split() == ["head", "effect", "previous", "induction"]
    effects = [float(row.split()[2]) for row in rows]
    assert effects == sorted(effects, reverse=True)
    assert "drawn in" in answer.err
    assert (
        "self 1.3"
        in succeeded("heads", runs / "pretrained", "the bird was tired", "--why", "tired").out
    )
    answer = printed("heads", runs / "transformer", "the bird", "--head", "cross 0.1")
    assert [head["name"] for head in answer["heads"]] == ["cross 0.1"]


def test_interrupted_heads_print_what_is_done(runs, monkeypatch):
    effects = {Head("self", 0, 0): Effect(0.5)}

    def interrupted(*arguments, progress, **options):
        progress(
            HeadEffects(measure="loss", by="mean", value=1.0, texts=1, asked=2, effects=effects)
        )
        raise KeyboardInterrupt

    monkeypatch.setattr(heads_command, "ablate", interrupted)
    answer = regard("heads", runs / "language-model", "the bird", "a cat")
    assert answer.returncode == 130
    assert "self 0.0  +0.500" in answer.out
    assert "over 1 text of 2" in answer.out
    assert "interrupted; the figures are those of 1 of 2 texts" in answer.err


def test_a_lens_is_printed_without_a_page(runs, tmp_path):
    words = "the animal was tired", "--lens", "erase", "--svg", tmp_path / "a.svg"
    assert "lens erase" in succeeded("view", runs / "pretrained", *words).out
    assert (tmp_path / "a.svg").exists()
