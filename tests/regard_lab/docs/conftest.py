"""The built site, and the models that pages speak of: small, untrained, and saved as a training saves them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from regard_lab.decoding.loading import TOKENISER_FILE
from regard_lab.models import LanguageConfig, LanguageModel, TranslationTransformer
from regard_lab.models.translation_transformer import TranslationConfig
from regard_lab.text import Tokeniser

ROOT = Path(__file__).parents[3]
LINES = [
    "The animal sleeps.",
    "It was late.",
    "the animal did not cross the street",
    "Das Tier schläft.",
]


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


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site, built strictly."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(
        command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder
