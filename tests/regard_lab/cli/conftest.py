"""Data and models that several tests of commands read; each is made once."""

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest
import torch
from commanding import LINES
from matplotlib.figure import Figure

from regard_lab.decoding.loading import TOKENISER_FILE
from regard_lab.models import LanguageConfig, LanguageModel, TranslationTransformer
from regard_lab.text import Tokeniser

SAVE = Figure.savefig


@pytest.fixture(autouse=True, scope="module")
def _pictures_without_pixels() -> Iterator[None]:
    """Pictures are composed and saved without pixels, which take half of the time here: other rooms look at them."""

    def save(figure: Figure, picture: BytesIO, *, format: str, **options: object) -> None:
        picture.write(b"\x89PNG\r\n\x1a\n" if format == "png" else b"<?xml")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", save)
        yield


@pytest.fixture
def drawn_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that look at pictures themselves."""
    monkeypatch.setattr(Figure, "savefig", SAVE)


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory) -> Path:
    """A translator that was never trained: its words are noise, its commands work."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    tokeniser = Tokeniser.train(LINES, 300)
    torch.manual_seed(9)  # its translations have words that occur once
    model = TranslationTransformer(
        TranslationTransformer.Config(vocab_size=tokeniser.vocab_size, dim=16, heads=2)
    )
    model.save(folder, {TOKENISER_FILE: tokeniser.to_json()})
    return folder


@pytest.fixture(scope="session")
def writer(tmp_path_factory) -> Path:
    """A language model that was never trained."""
    folder = tmp_path_factory.mktemp("runs") / "writer"
    tokeniser = Tokeniser.train(
        ["the animal sleeps", "a café in the street", "the old animal"], 300
    )
    torch.manual_seed(0)
    model = LanguageModel(
        LanguageConfig(vocab_size=tokeniser.vocab_size, dim=16, heads=2, layers=2)
    )
    model.save(folder, {TOKENISER_FILE: tokeniser.to_json()})
    return folder


@pytest.fixture(scope="session")
def data(tmp_path_factory) -> Path:
    """A folder of data: pairs.tsv, text.txt and labels.tsv, all of few words."""
    folder = tmp_path_factory.mktemp("data")
    pairs = "".join(f"the bird number {n} sang\tder Vogel Nummer {n} sang\n" for n in range(90))
    (folder / "pairs.tsv").write_text(pairs)
    text = "".join(
        f"the bird number {n} sang in the street,\n  and rain fell.\n\n" for n in range(60)
    )
    (folder / "text.txt").write_text(text)
    labels = "".join(f"{'odd' if n % 2 else 'even'}\tthe bird number {n} sang\n" for n in range(80))
    (folder / "labels.tsv").write_text(labels)
    return folder
