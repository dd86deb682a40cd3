"""`regard convert kv-heads` as people run it."""

import json
import signal

import pytest
import torch
from commanding import refusal, regard, succeeded

from regard_lab.conversion import load_converted
from regard_lab.conversion.uptraining import Losses
from regard_lab.decoding.loading import TOKENISER_FILE
from regard_lab.models import LanguageModel, TextEncoder, TranslationTransformer
from regard_lab.models.storage import read_checkpoints
from regard_lab.text import Tokeniser
from regard_lab.training import read_log

TEXT = "".join(f"the bird number {n} sang in the street,\n  and rain fell.\n\n" for n in range(60))
PAIRS = "".join(f"the bird number {n} sang\tder Vogel Nummer {n} sang\n" for n in range(90))
SMALL = ("--block", 32, "--batch-tokens", 256, "--cpu")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A text, some pairs, and untrained models with eight heads."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "text.txt").write_text(TEXT)
    (folder / "pairs.tsv").write_text(PAIRS)
    torch.manual_seed(0)
    for name, made, verbatim in (
        ("writer", LanguageModel, True),
        ("reader", TextEncoder, False),
        ("translator", TranslationTransformer, False),
    ):
        lines = [TEXT] if verbatim else [*TEXT.splitlines(), *PAIRS.splitlines()]
        tokeniser = Tokeniser.train(lines, 300, verbatim=verbatim)
        model = made(made.Config(vocab_size=tokeniser.vocab_size, dim=32, heads=8))
        model.save(folder / name, {TOKENISER_FILE: tokeniser.to_json()})
    sorter = TextEncoder.load(folder / "reader").changed(head="classes", classes=2)
    sorter.save(folder / "sorter", {TOKENISER_FILE: tokeniser.to_json()})
    sorter.save(folder / "wordless")
    return folder


CONVERT = ("convert", "kv-heads")


def converted(*arguments):
    """What a conversion prints as JSON, and what it remarks."""
    answer = succeeded(*CONVERT, *arguments, "--json")
    return json.loads(answer.out), answer.err


def test_a_model_is_converted_and_the_savings_are_a_table(files, tmp_path):
    answer = succeeded(*CONVERT, files / "writer", "--kv-heads", 2, "--out", tmp_path / "two")
    lines = answer.out.splitlines()
    assert lines[1].split() == ["kv", "heads", "8", "2", "1/4", "of", "before"]
    assert "1/4 of before" in next(line for line in lines if line.startswith("KV bytes per token"))
    assert "removed" in next(line for line in lines if line.startswith("parameters"))
    for part in (
        "computes what the reference does with these heads",
        "this says nothing about the quality of the model",
        "train the model before you rely on its outputs, by the same command",
    ):
        assert part in answer.err
    assert LanguageModel.load(tmp_path / "two").config.kv_heads == 2
    report, said = converted(tmp_path / "two", "--kv-heads", 8, "--out", tmp_path / "eight")
    # no output has changed
    assert (report["method"], "train" in said, "quality" in said) == (
        "repeat",
        False,
        False,
    )


@pytest.mark.parametrize(
    ("model", "text"), [("reader", "text.txt"), ("translator", "pairs.tsv"), ("writer", "text.txt")]
)
def test_heads_are_aligned_and_measured_and_training_brings_loss_back(files, tmp_path, model, text):
    out = tmp_path / "one"
    arguments = (files / model, "--kv-heads", 1, "--out", out, "--text", files / text, *SMALL)
    report, said = converted(*arguments, "--uptrain-steps", 10, "--learning-rate", 0.01)
    losses = report["losses"]
    assert (report["method"], losses["steps"]) == ("align", 10)
    assert losses["uptrained"] < losses["converted"]
    assert report["invariance"] <= 1e-6
    assert (model == "reader") or report["predictions"]["divergence"] > 0
    assert "rely on its outputs" not in said
    for change in report["kv_bytes"].values():
        assert change["before"] == 8 * change["after"]
    loaded = load_converted(out, 8)  # the best model of the run, as any command reads it
    assert loaded.report.heads == 8
    validations = [line for line in read_log(out / "log.jsonl") if line["kind"] == "validation"]
    assert min(line["loss"] for line in validations) == pytest.approx(losses["uptrained"], rel=1e-6)


def test_the_rows_are_as_long_as_those_of_the_training(files, tmp_path):
    """The loss before is the last validation loss of the run, which was measured with its own block."""
    run = tmp_path / "run"
    sizes = ("--block", 24, "--dim", 32, "--layers", 1, "--heads", 4, "--vocab-size", 300, "--cpu")
    data = ("--data", files / "text.txt", "--out", run, "--steps", 4, "--dropout", 0)
    succeeded("train", "language-model", *data, *sizes)
    last = [line for line in read_log(run / "log.jsonl") if line["kind"] == "validation"][-1][
        "loss"
    ]
    for number, block in enumerate(((), ("--block", 48))):
        out = ("--out", tmp_path / f"two{number}")
        report, _ = converted(
            run, "--kv-heads", 2, "--text", files / "text.txt", "--cpu", *block, *out
        )
        assert (report["losses"]["before"] == pytest.approx(last, rel=1e-5)) == (not block)


def test_an_interrupted_training_goes_on_with_the_same_command(files, tmp_path, monkeypatch):
    from regard_lab.training.recipes.language import LanguageTask

    arguments = (
        "--kv-heads",
        2,
        "--method",
        "mean",
        "--text",
        files / "text.txt",
        *SMALL,
        "--uptrain-steps",
        6,
    )
    honest = LanguageTask.batch

    def interrupting(self, index):
        if index == 3:
            signal.raise_signal(signal.SIGINT)
        return honest(self, index)

    with monkeypatch.context() as patch:
        patch.setattr(LanguageTask, "batch", interrupting)
        answer = regard(*CONVERT, files / "writer", *arguments, "--out", tmp_path / "stopped")
    assert answer.returncode == 130
    assert answer.last == "regard: interrupted after 4 of 6 steps; the same command goes on"
    for name in ("stopped", "whole"):
        succeeded(*CONVERT, files / "writer", *arguments, "--out", tmp_path / name)
    folders = [
        tmp_path / name / read_checkpoints(tmp_path / name).last for name in ("stopped", "whole")
    ]
    weights = [LanguageModel.load(folder).state_dict() for folder in folders]
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())
    assert "holds another run" in refusal(
        *CONVERT, files / "writer", *arguments, "--method", "first", "--out", tmp_path / "stopped"
    )


def test_the_share_that_came_back_is_of_what_was_lost():
    assert Losses(1.0, 3.0, 1.5, 10).recovered == 0.75
    assert Losses(1.0, 3.0).recovered is None
    assert Losses(3.0, 3.0, 2.0, 10).recovered is None
    assert "1.5000 after 10 steps: 75% of what was lost is back" in str(Losses(1.0, 3.0, 1.5, 10))
    further = str(Losses(2.0, 3.0, 1.0, 10))
    assert "lower than before" in further
    assert "%" not in further


def test_a_hugging_face_folder_is_converted_and_needs_its_tokeniser_for_a_text(files, tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    folder = tmp_path / "llama"
    config = transformers.LlamaConfig(
        **sizes, num_attention_heads=4, bos_token_id=1, eos_token_id=2
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    words = (folder, "--kv-heads", 1, "--out", tmp_path / "out")
    assert converted(*words)[0]["kv_bytes"] == {"token": {"before": 64, "after": 16}}
    for more, says in (
        ((), "has no tokeniser that transformers can read"),
        (("--uptrain-steps", 3), "--uptrain-steps trains our own models"),
    ):
        assert says in refusal(*CONVERT, *words, "--text", files / "text.txt", *more)


def test_a_hugging_face_folder_is_calibrated_and_measured_on_a_text(files, tmp_path):
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    tokeniser = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"<unk>": 0, "the": 1, "bird": 2, "sang": 3}, "<unk>")
    )
    tokeniser.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    config = transformers.LlamaConfig(
        vocab_size=8,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=600,
        bos_token_id=1,
        eos_token_id=2,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "in")
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokeniser, unk_token="<unk>"
    ).save_pretrained(tmp_path / "in")
    arguments = ("--kv-heads", 2, "--text", files / "text.txt", "--out", tmp_path / "out")
    report, _ = converted(tmp_path / "in", *arguments)
    assert (report["method"], report["kv_bytes"]["token"]) == (
        "align",
        {"before": 256, "after": 128},
    )
    assert report["predictions"]["ids"] > 10
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "out")("the bird")[
        "input_ids"
    ] == [1, 2]


def test_latents_are_calibrated_measured_trained_and_reported(files, tmp_path):
    latent = ("convert", "latent", files / "writer", "--latent-dim", 24)
    answer = succeeded(*latent, "--rope-dim", 8, "--out", tmp_path / "small")
    rows = [" ".join(line.split()) for line in answer.out.splitlines()]
    assert rows[1:3] == [
        "numbers of a token, each layer 64 32 1/2 of before",
        "KV bytes per token 1,024 512 1/2 of before",
    ]
    assert "in latents that lose nothing changes outputs by at most" in answer.err
    assert "the outputs of latents differ" in answer.err
    more = (
        "--text",
        files / "text.txt",
        *SMALL,
        "--uptrain-steps",
        6,
        "--out",
        tmp_path / "trained",
        "--json",
    )
    losses = json.loads(succeeded(*latent, *more).out)["losses"]
    assert losses["uptrained"] < losses["converted"]
    config = LanguageModel.load(tmp_path / "trained").config
    assert (config.latent_dim, config.rope_dim) == (24, 24)
    again = regard(*latent, "--out", tmp_path / "small")
    assert "an earlier conversion (keys and values to latents of 24 numbers)" in again.err
    for folder, words in (
        (files / "translator", "a LanguageModel"),
        (tmp_path / "small", "latent attention already"),
    ):
        answer = regard("convert", "latent", folder, "--latent-dim", 8, "--out", tmp_path / "no")
        assert (answer.returncode, words in answer.err) == (2, True), answer.err


def test_a_model_with_latents_is_trained_from_the_start_and_writes(files, tmp_path):
    run = tmp_path / "run"
    sizes = ("--dim", 32, "--layers", 1, "--heads", 4, "--vocab-size", 300, "--latent-dim", 12)
    data = ("--data", files / "text.txt", "--out", run, "--steps", 4, "--block", 24, "--cpu")
    succeeded("train", "language-model", *data, *sizes)
    config = LanguageModel.load(run).config
    assert (config.latent_dim, config.rope_dim) == (12, 4)
    for kind in ("dynamic", "paged"):
        succeeded("generate", run, "the bird", "--max-tokens", 4, "--cache", kind)
