"""The built site, and the models that pages speak of: small, untrained, and saved as a training saves them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import torch

from regard_lab.bench.measuring import Times
from regard_lab.decoding.loading import TOKENISER_FILE
from regard_lab.lessons import words
from regard_lab.models import LanguageConfig, LanguageModel, TranslationTransformer
from regard_lab.models.translation_transformer import TranslationConfig
from regard_lab.text import Tokeniser

ROOT = Path(__file__).parents[3]
LINES = ["The animal sleeps.", "It was late.", "the animal did not cross the street", "Das Tier schläft."]


@pytest.fixture(scope="session")
def saved_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `demo`, a translator, and `novel`, a language model."""
    folder = tmp_path_factory.mktemp("runs")
    tokeniser = Tokeniser.train(LINES, 300)
    torch.manual_seed(0)
    size = tokeniser.vocab_size
    models = {
        "demo": TranslationTransformer(TranslationConfig(vocab_size=size, dim=16, heads=2)),
        "novel": LanguageModel(LanguageConfig(vocab_size=size, dim=16, heads=2, layers=1)),
    }
    for name, model in models.items():
        model.save(folder / name, {TOKENISER_FILE: tokeniser.to_json()})
    return folder


@pytest.fixture(scope="module")
def untimed() -> Iterator[None]:
    """Lessons that measure take a millisecond for each call: no page is compared in the times of a machine."""

    def at_once(calls: Mapping[str, Callable[[], object]], *_: object) -> dict[str, Times]:
        return {name: Times((0.001,)) for name in calls}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(words, "take_turns", at_once)
        yield


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site, built strictly."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder
