"""The report of the lens benchmark: JSON that can be continued, and Markdown to read."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from regard.arguments import count_of
from regard.errors import ArgumentError, DataError
from regard.reprs import brief
from regard.storage.files import replace_file
from regard_lab.seeing.lens_study.routes import SWAPS

JSON, MARKDOWN = "lenses.json", "lenses.md"
LENS_ROWS = {
    "random": "random relevance",
    "it": "raw attention of *it*, best encoder head",
    "cross": "raw cross-attention, mean of all heads",
    "cross_head": "raw cross-attention, best head",
    "rollout": "attention rollout",
    "erase": "erasure (default)",
    "gradients": "integrated gradients",
    "swap": "swap of the nouns (a reference that knows them)",
}
COLUMNS = {
    "top": "top word is the referent",
    "order": "referent above the other noun",
    "cause": "top word is referent or adjective",
    "deletion": "deletion",
}


@brief
@dataclass
class LensReport:
    """The figures of one run.

    Args:
        name: the run.
        weights: a hash of its parameters.
        sentences, seed: the test sentences that were translated.
        right: how many of them have the right pronoun.
        agreement: `lens_agreement` on all of those.
        heads: the chosen heads, [layer, head]: "it" of the encoder, "cross" of the decoder.
        routes: as `Routes.to_dict` gives them.
        rows: a `LensRow` for each lens, by the keys of `LENS_ROWS`.
        machine: versions and threads.
    """

    name: str
    weights: str
    sentences: int
    seed: int
    right: int = 0
    agreement: float | None = None
    heads: dict[str, list[int]] = field(default_factory=dict)
    routes: dict[str, Any] = field(default_factory=dict)
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    machine: str = ""

    @property
    def count(self) -> int:
        """The number of sentences with a verified cause, on which the lenses are measured."""
        return int(self.routes["verified"])

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return asdict(self)

    @classmethod
    def load(cls, folder: Path) -> LensReport:
        """The report in a folder.

        Raises:
            DataError: there is none, or it is damaged.
        """
        try:
            return cls(**json.loads((folder / JSON).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise DataError(f"{folder / JSON} is not a report of lenses: {error}") from error

    def save(self, folder: Path | None) -> None:
        """Write JSON and Markdown; a folder of None writes nothing."""
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        content = json.dumps(self.to_dict(), indent=1, ensure_ascii=False) + "\n"
        replace_file(folder / JSON, content.encode())
        replace_file(folder / MARKDOWN, ("\n".join(self.markdown()) + "\n").encode())

    def markdown(self) -> Iterator[str]:
        """The report in Markdown."""
        yield "# Lenses on a translator with known causes"
        yield ""
        yield from (f"- {sentence}" for sentence in self.summary())
        yield ""
        yield "## Swaps"
        yield ""
        yield "Mean probability of the written pronoun among *es*, *er* and *sie*."
        yield ""
        yield from routes_table(self.routes)
        yield ""
        yield "## Lenses"
        yield ""
        yield from lens_table(self.rows)
        yield ""
        yield self.legend
        yield ""
        yield "## How it was measured"
        yield ""
        yield f"- Command: `regard lenses {self.name} --sentences {self.sentences} --seed {self.seed}`"
        yield f"- Hash of the model's weights: {self.weights}"
        yield f"- Versions: {self.machine}"

    def summary(self) -> Iterator[str]:
        """What was measured, in sentences."""
        yield (
            f"{self.right} of {count_of(self.sentences, 'test sentences')} have the right pronoun. "
            f"Swaps verify the cause of "
            f"{self.count}: the pronoun depends on the referent and on the adjective, and not on the other noun."
        )
        if self.agreement is not None:
            yield (
                f"Over all {self.right}, the share in which the default lens puts the referent above the other noun "
                f"is {self.agreement:.3f}."
            )
        if self.heads:
            named = {"it": "encoder (attention of *it*)", "cross": "cross-attention"}
            heads = "; ".join(
                f"{named[kind]}: layer {layer}, head {head}" for kind, (layer, head) in self.heads.items()
            )
            yield f"Heads chosen on validation sentences, counted from 0: {heads}."

    @property
    def legend(self) -> str:
        """What the columns of the lens table mean."""
        return (
            f"Shares of {count_of(self.count, 'sentences')}, with a standard error of at most "
            f"{0.5 / math.sqrt(self.count):.3f}. *It* itself does not count as the top word. Deletion: the mean fall "
            "of the pronoun's probability without the 1, 2, 3 and 4 words of largest relevance. Passes: forward + "
            "backward. ms: CPU time per sentence in batches, on this machine."
        )


def routes_table(routes: Mapping[str, Any]) -> Iterator[str]:
    """The routes as a Markdown table."""
    last, first = routes["counts"]
    yield f"| swapped | subordinate clause last ({last}) | first ({first}) |"
    yield "|---|---|---|"
    for name, words in SWAPS.items():
        cells = (f"{routes[kind][name]:.3f}" if name in routes[kind] else "-" for kind in ("last", "first"))
        yield f"| {words} | {' | '.join(cells)} |"


def lens_table(rows: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """The lenses as a Markdown table."""
    yield f"| lens | {' | '.join(COLUMNS.values())} | passes | ms |"
    yield f"|---|{'---|' * len(COLUMNS)}---|---|"
    for name, row in rows.items():
        cells = " | ".join(f"{row[column]:.3f}" for column in COLUMNS)
        back = f" + {row['backward_passes']:.0f}" if row["backward_passes"] else ""
        yield f"| {LENS_ROWS[name]} | {cells} | {row['passes']:.0f}{back} | {row['milliseconds']:.1f} |"


def begin_report(folder: Path | None, *, name: str, weights: str, sentences: int, seed: int) -> LensReport:
    """A new report, or the one that was begun in the folder.

    Raises:
        ArgumentError: the folder has a report of other weights or sentences.
    """
    versions = f"torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}"
    new = LensReport(
        name, weights, sentences, seed, machine=f"{versions}, {count_of(torch.get_num_threads(), 'threads')}"
    )
    if folder is None or not os.path.lexists(folder / JSON):
        return new
    kept = LensReport.load(folder)
    if (kept.weights, kept.sentences, kept.seed) != (weights, sentences, seed):
        raise ArgumentError(
            f"{folder} has the report of other weights or sentences ({kept.weights}, {kept.sentences}, seed "
            f"{kept.seed}); give another folder with --out, or remove it"
        )
    return kept
