"""How a run prepares its texts: as it did when it was begun, whichever version began it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from regard_lab.decoding.loading import TOKENISER_FILE, WORDS_FILE
from regard_lab.models import load_model
from regard_lab.text import Tokeniser
from regard_lab.text.seen_words import SeenWords
from regard_lab.training.recipes.run_folder import goes_on


@dataclass(frozen=True)
class Preparation:
    """What a run of an earlier version did otherwise: its tokeniser kept invisible characters, it stored no symbols."""

    keep_invisible: bool = False
    store_symbols: bool = True

    @classmethod
    def of(cls, begun: Path | None) -> Preparation:
        """That of the run in a folder, or of a new one where there is no run.

        Raises:
            CheckpointError: the run is damaged.

        >>> Preparation.of(None)
        Preparation(keep_invisible=False, store_symbols=True)
        """
        preparation = cls()
        if begun is None or not goes_on(begun):
            return preparation

        files = load_model(begun).extra_files
        if TOKENISER_FILE in files:
            vocabulary = Tokeniser.from_json(files[TOKENISER_FILE]).vocabulary
            keeps = not (vocabulary.verbatim or vocabulary.without_invisible)
            preparation = replace(preparation, keep_invisible=keeps)
        if WORDS_FILE in files:
            stores = SeenWords.from_json(files[WORDS_FILE]).symbols is not None
            preparation = replace(preparation, store_symbols=stores)
        return preparation

    def words(
        self, lines: Iterable[str], tokeniser: Tokeniser, before: SeenWords | None = None
    ) -> str:
        """The words of texts as the tokeniser reads them, with those learned before, as a run stores them."""
        words = SeenWords.of(map(tokeniser.reads, lines))
        if before is not None:
            words = words.joined(before)
        if not self.store_symbols:
            words = replace(words, symbols=None)
        return words.to_json()
