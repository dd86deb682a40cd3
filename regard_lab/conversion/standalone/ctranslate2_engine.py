"""Searches by CTranslate2."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from regard_lab.text.tokenisers import Tokeniser

BATCH_TOKENS = 2_048


class CTranslate2Engine:
    """The engine of a folder with a model of CTranslate2; several threads may use it at once."""

    def __init__(
        self, folder: Path, tokeniser: Tokeniser, most_positions: int | None, threads: int = 1
    ) -> None:
        library: Any = import_module("ctranslate2")
        self._pieces = tokeniser.vocabulary.pieces
        self._ids = {piece: i for i, piece in enumerate(self._pieces)}
        self._model = library.Translator(
            str(folder), device="cpu", inter_threads=1, intra_threads=threads
        )
        self.most_positions = most_positions

    def search(
        self,
        sources: Sequence[Sequence[int]],
        prefixes: Sequence[Sequence[int]],
        banned: Sequence[int],
        *,
        beam: int,
        most_ids: int,
    ) -> list[list[int]]:
        """See `Engine` in translating.py."""
        has_prefix = any(prefixes)
        results = self._model.translate_batch(
            list(map(self._names, sources)),
            target_prefix=list(map(self._names, prefixes)) if has_prefix else None,
            suppress_sequences=[[self._pieces[i]] for i in banned] or None,
            beam_size=beam,
            length_penalty=0.6,
            max_decoding_length=most_ids,
            max_input_length=0,  # else longer sources would be cut without a word
            max_batch_size=BATCH_TOKENS,
            batch_type="tokens",
        )
        return [[self._ids[name] for name in result.hypotheses[0]] for result in results]

    def _names(self, ids: Sequence[int]) -> list[str]:
        return [self._pieces[i] for i in ids]
