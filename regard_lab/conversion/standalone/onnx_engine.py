"""Greedy searches by onnxruntime: the encoder runs once, and the decoder once for each id."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from regard.errors import UnsupportedError
from regard_lab.text.vocabularies import BEGIN, END, NEVER_WRITTEN, PAD

ROWS = 32  # texts that are searched for at once


class OnnxEngine:
    """The engine of a folder with encoder.onnx and decoder.onnx; several threads may use it at once."""

    def __init__(self, folder: Path, most_positions: int | None, threads: int = 1) -> None:
        library: Any = import_module("onnxruntime")
        options = library.SessionOptions()
        options.intra_op_num_threads = threads
        providers = ["CPUExecutionProvider"]
        self._encoder = library.InferenceSession(
            str(folder / "encoder.onnx"), options, providers=providers
        )
        self._decoder = library.InferenceSession(
            str(folder / "decoder.onnx"), options, providers=providers
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
        """See `Engine` in translating.py; the search is greedy."""
        if beam > 1:
            raise UnsupportedError(
                f"beam is {beam}, and a folder for onnxruntime is searched greedily; leave it out, or export --to "
                f"ctranslate2"
            )
        # Texts of like lengths together, so that little is padding.
        order = sorted(range(len(sources)), key=lambda index: len(sources[index]))
        written: dict[int, list[int]] = {}
        for first in range(0, len(order), ROWS):
            chosen = order[first : first + ROWS]
            found = self._search_some(
                [sources[index] for index in chosen],
                [prefixes[index] for index in chosen],
                banned,
                most_ids,
            )
            written |= zip(chosen, found, strict=True)
        return [written[index] for index in range(len(sources))]

    def _search_some(
        self,
        sources: Sequence[Sequence[int]],
        prefixes: Sequence[Sequence[int]],
        banned: Sequence[int],
        most_ids: int,
    ) -> list[list[int]]:
        source = np.full((len(sources), max(map(len, sources))), PAD, np.int64)
        for row, ids in enumerate(sources):
            source[row, : len(ids)] = ids
        (context,) = self._encoder.run(["context"], {"source": source})
        target = np.full((len(sources), 1), BEGIN, np.int64)
        alive = np.arange(len(sources))
        written: list[list[int]] = [[] for _ in sources]

        for length in range(most_ids):
            inputs = {"context": context, "source": source, "target": target}
            (scores,) = self._decoder.run(["scores"], inputs)  # (alive, vocab_size)
            scores[:, [*NEVER_WRITTEN, *banned]] = -np.inf
            next_ids = scores.argmax(-1)
            for place, row in enumerate(alive):
                if length < len(prefixes[row]):
                    next_ids[place] = prefixes[row][length]
                if next_ids[place] != END:
                    written[row].append(int(next_ids[place]))
            goes_on = next_ids != END
            alive = alive[goes_on]
            if not len(alive):
                break
            context = context[goes_on]
            source = source[goes_on]
            target = np.concatenate([target[goes_on], next_ids[goes_on, None]], axis=1)
        return written
