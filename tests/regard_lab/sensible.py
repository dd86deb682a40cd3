"""Values that public names take, by the names of their parameters: what stands beside the garbage."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from regard import patterns
from regard_lab import models
from regard_lab.bench import Results
from regard_lab.conversion import Change, Conversion, load_converted
from regard_lab.decoding import Generator, Sampling, TextStream, Translator
from regard_lab.decoding.loading import TOKENISER_FILE
from regard_lab.models.translation_transformer import TranslationConfig
from regard_lab.seeing import AttentionMaps
from regard_lab.seeing.referents import HeadChoice
from regard_lab.text import Pair, TokenBatches, Tokeniser
from regard_lab.training import TrainingConfig
from regard_lab.walkthrough import walk

LINES = [
    "The animal sleeps.",
    "It was late.",
    "the animal did not cross the street",
    "Das Tier schläft.",
]
PAIRS = [Pair(f"The animal {n}", f"Das Tier {n}") for n in range(9)]
IDS = torch.tensor([[5, 6, 7, 3], [8, 9, 3, 0]])


@functools.cache
def tokeniser() -> Tokeniser:
    return Tokeniser.train(LINES, 300)


@functools.cache
def translator_model() -> models.TranslationTransformer:
    settings = {"dim": 8, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "hidden_dim": 8}
    return models.TranslationTransformer(
        TranslationConfig(vocab_size=tokeniser().vocab_size, **settings)
    ).eval()


@functools.cache
def language_model() -> models.LanguageModel:
    settings = {"dim": 8, "heads": 2, "layers": 1, "hidden_dim": 8}
    return models.LanguageModel(
        models.LanguageConfig(vocab_size=tokeniser().vocab_size, **settings)
    ).eval()


@functools.cache
def recurrent_model() -> models.RecurrentTranslator:
    config = models.RecurrentTranslator.Config(vocab_size=tokeniser().vocab_size, dim=8, hidden=8)
    return models.RecurrentTranslator(config).eval()


@functools.cache
def encoder() -> models.TextEncoder:
    settings = {"dim": 8, "heads": 2, "layers": 1, "hidden_dim": 8}
    return models.TextEncoder(
        models.EncoderConfig(vocab_size=tokeniser().vocab_size, **settings)
    ).eval()


@functools.cache
def maps() -> AttentionMaps:
    weights = torch.full((1, 2, 2, 2), 0.5)
    return AttentionMaps(("The", "animal"), ("Das", "Tier"), weights, weights, weights)


@functools.cache
def a_walk() -> Any:
    return walk("The animal sleeps", dim=4)


def saved_translator() -> Path:
    folder = Path("translator")
    if not folder.exists():
        translator_model().save(folder, {TOKENISER_FILE: tokeniser().to_json()})
    return folder


# By the name of a parameter, or of a public name and its parameter where the same word means something else there.
SENSIBLE: dict[str, Callable[[], Any]] = {
    # text
    "text": lambda: "The animal sleeps.",
    "source": lambda: IDS,
    "target": lambda: IDS,
    "lines": lambda: ["The animal sleeps."],
    "pairs": lambda: PAIRS,
    "split_by_hash.test": lambda: 0.1,
    "outputs": lambda: ["Das Tier"],
    "references": lambda: ["Das Tier"],
    "vocabulary": lambda: tokeniser().vocabulary,
    "Tokeniser.from_json.text": lambda: tokeniser().to_json(),
    "read_lines.source": lambda: "lines.txt",
    "paths": lambda: "lines.tsv",
    "lengths": lambda: [3, 4, 5],
    "budget": lambda: 16,
    "seed": lambda: 1,
    "step": lambda: 3,
    "value": lambda: 0,
    "ids": lambda: [5, 6],
    # models and decoding
    "config": lambda: language_model().config,
    "TranslationTransformer.config": lambda: translator_model().config,
    "RecurrentTranslator.config": lambda: recurrent_model().config,
    "TextEncoder.config": lambda: encoder().config,
    "model": translator_model,
    "tokeniser": tokeniser,
    "vocab_size": lambda: 300,
    "heads": lambda: 2,
    "save_model.config": lambda: {"a": 1},
    "save_model.state": lambda: {"a": torch.ones(2)},
    "kind": lambda: "a-kind",
    "folder": saved_translator,
    "load_model.kind": lambda: None,
    "save_model.folder": lambda: "saved",
    "Generator.model": language_model,
    "generate.model": language_model,
    "generate.prompts": lambda: IDS,
    "prompts": lambda: ["The"],
    "texts": lambda: IDS,
    "beam": lambda: 2,
    "Generator.load.folder": saved_translator,
    "log_probability": lambda: -1.0,
    "length": lambda: 2,
    "generate.normalisation": lambda: "none",
    "scores": lambda: torch.zeros(2, 300),
    "Sampling.choose.rows": lambda: torch.tensor([0, 1]),
    "place": lambda: 0,
    "translator": lambda: Translator(translator_model(), tokeniser()),
    "raw": lambda: b"x",
    "TranslationTransformer.step.ids": lambda: IDS[:, 0],
    "LanguageModel.step.ids": lambda: IDS[:, 0],
    "RecurrentTranslator.step.ids": lambda: IDS[:, 0],
    "LanguageModel.extend.ids": lambda: IDS[:, :2],
    "LanguageModel.forward.ids": lambda: IDS,
    "TextEncoder.forward.ids": lambda: IDS,
    "TextEncoder.vectors.ids": lambda: IDS,
    "TranslationTransformer.step.state": lambda: translator_model().start(IDS),
    "RecurrentTranslator.step.state": lambda: recurrent_model().start(IDS),
    "LanguageModel.step.state": lambda: language_model().start(IDS),
    "LanguageModel.extend.state": lambda: language_model().start(IDS),
    "LanguageModel.start.prompts": lambda: IDS,
    "saved": lambda: models.load_model(saved_translator()),
    "where": lambda: "a folder",
    "load_translation_model.folder": saved_translator,
    # training, conversion, seeing
    "settings": dict,
    "average_checkpoints.run": lambda: "run",
    "average_checkpoints.count": lambda: 2,
    "out": lambda: "out",
    "count": lambda: 1,
    "draw_curves.log_path": lambda: "log.jsonl",
    "draw_curves.png_path": lambda: "a.png",
    "path": lambda: "a.png",
    "kv_heads": lambda: 1,
    "method": lambda: "mean",
    "before": lambda: 4,
    "after": lambda: 2,
    "target_ids": lambda: [5, 6],
    "look.source": lambda: "The animal",
    "word": lambda: 1,
    "AttentionMaps.matrix.kind": lambda: "encoder",
    "AttentionMaps.labels.kind": lambda: "encoder",
    "head": lambda: HeadChoice(0, 0, 0.5),
    "AttentionMaps.matrix.head": lambda: 0,
    # patterns and tensors
    "q_len": lambda: 4,
    "k_len": lambda: 4,
    "tile": lambda: 2,
    "indices": lambda: [0, 1],
    "mask": lambda: IDS > 4,
    "patterns": lambda: [patterns.Causal()],
    "size": lambda: 2,
    "stride": lambda: 2,
    "dilation": lambda: 2,
    "function": lambda: lambda q, k: q >= k,
    "parse.text": lambda: "causal",
    "SameDocument.ids": lambda: torch.tensor([[0, 0, 1]]),
    "keys": lambda: range(2),
    "tensors": lambda: {"a": torch.ones(2)},
    "save_tensors.path": lambda: "new.safetensors",
    "load_tensors.path": lambda: "a.safetensors",
    "load_tensor_metadata.path": lambda: "a.safetensors",
    "read_log.path": lambda: "log.jsonl",
    "read_run.folder": lambda: "nowhere",
    # walkthrough, bench, testing
    "walk": a_walk,
    "walk.head": lambda: 1,
    "results": lambda: Results({}, True, "x"),
    "environment": dict,
    "quick": lambda: True,
    "LanguageConfig.dropout": lambda: 0.0,
    "Converted.save.folder": lambda: "converted2",
    "TranslationTransformer.save.folder": lambda: "saved2",
    "LanguageModel.save.folder": lambda: "saved3",
    "RecurrentTranslator.save.folder": lambda: "saved4",
    "TextEncoder.save.folder": lambda: "saved5",
    "Results.save.folder": lambda: Path("bench"),
    "Results.load.folder": lambda: Path("bench"),
    "describe_health.health": lambda: HEALTH(),
}


@functools.cache
def HEALTH() -> Any:  # noqa: N802
    from regard_lab.bench import Health

    return Health({"torch": "x"}, (), {}, True)


# What the methods of a class are asked of: an instance for each call.
INSTANCES: dict[str, Callable[[], Any]] = {
    "Tokeniser": tokeniser,
    "TokenBatches": lambda: TokenBatches([3, 4, 5], 16, 1),
    "TranslationTransformer": translator_model,
    "RecurrentTranslator": recurrent_model,
    "LanguageModel": language_model,
    "TextEncoder": encoder,
    "LanguageConfig": lambda: language_model().config,
    "EncoderConfig": lambda: encoder().config,
    "Translator": lambda: Translator(translator_model(), tokeniser()),
    "Generator": lambda: Generator(language_model(), tokeniser()),
    "TextStream": TextStream,
    "Sampling": Sampling,
    "TrainingConfig": TrainingConfig,
    "AttentionMaps": maps,
    "Converted": lambda: load_converted(saved_translator(), 1),
    "Conversion": lambda: Conversion("a", "mean", 2, {}, Change(2, 1), {}),
    "Results": lambda: Results({}, True, "x"),
    "Causal": patterns.Causal,
    "Strided": lambda: patterns.Strided(2),
    "Explicit": lambda: patterns.Explicit(IDS > 4),
    "Where": lambda: patterns.Where(lambda q, k: q >= k),
    "PerHead": lambda: patterns.PerHead([patterns.Causal()]),
}
