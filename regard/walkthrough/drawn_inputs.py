"""What a layer with drawn weights reads: words, their numbers, and vectors from a table that was drawn as well."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from regard.walkthrough.steps import Axis, numbered
from regard.walkthrough.walker import Walker

Text = str | Sequence[str]


def read_words(
    walker: Walker, text: Text, context: Text | None, table: torch.Tensor, words: Axis, seen: Axis | None, seed: int
) -> None:
    """The texts cut into words, and the words numbered."""
    walker.section = "From text to vectors"
    every = "set(words)" if seen is None else "{*words, *context_words}"
    for name, given, axis, what in (("", text, words, "text"), ("context_", context, seen, "context")):
        if axis is not None:
            walker.give(what, given if isinstance(given, str) else list(given or ()), f"the {what}")
            cut = f"split_words({what})" if isinstance(given, str) else f"list({what})"
            says = f"The {what}, cut into words and punctuation: the pieces that attention compares."
            walker.step(f"{name}words = {cut}", "Words" if not name else "Words of the context", says, axes=(axis,))
    walker.give("table", table, f"a vector for each word of the vocabulary, drawn with seed {seed}")
    vocabulary = Axis("words", tuple(sorted({*words.labels, *(seen.labels if seen else ())})), first=0)
    says = "Every word once, in order. A trained model comes with a vocabulary; this one is of the text alone."
    walker.step(f"vocabulary = sorted({every})", "Vocabulary", says, axes=(vocabulary,))
    for name, axis in (("", words), ("context_", seen)):
        if axis is not None:
            walker.step(
                f"{name}ids = torch.tensor([vocabulary.index(word) for word in {name}words])",
                "Ids" if not name else "Ids of the context", "Each word's place in the vocabulary, from 0.",
                axes=(axis,), scale="none",
            )  # fmt: skip


def embed_words(walker: Walker, names: tuple[str, str, str], words: Axis, positions: str) -> str:
    """Vectors of words, with their positions where those are added; the name of the vectors."""
    ids, embeddings, x = names
    dim = walker.values["table"].shape[1]
    size, of = numbered("numbers", dim), "" if x == "x" else " of the context"
    waves = positions == "sinusoidal"
    walker.step(
        f"{embeddings if waves else x} = F.embedding({ids}, table)", f"Embeddings{of}",
        "Each id takes its row of the table: a word becomes numbers.", f"{'e' if waves else x}_i = E_{{id_i}}",
        axes=(words, size),
    )  # fmt: skip
    if waves:
        _add_waves(walker, embeddings, x, words, size, of)
    return x


def _add_waves(walker: Walker, embeddings: str, x: str, words: Axis, size: Axis, of: str) -> None:
    """Sines and cosines of the place, added."""
    dim, name = len(size), "positions" if x == "x" else "context_positions"
    angles = f"{name}_angles"
    walker.step(
        f"{angles} = torch.arange({len(words)})[:, None] * 10000 ** (-torch.arange(0, {dim}, 2).double() / {dim})",
        f"Angles{of}", "The place times speeds that fall from 1 to nearly 1 / 10000.", "θ_{ic} = i · 10000^{-2c/d}",
        axes=(words, numbered("numbers", dim // 2)),
    )  # fmt: skip
    walker.step(
        f"{name} = torch.stack([{angles}.sin(), {angles}.cos()], dim=-1).flatten(1)", f"Positions{of}",
        "A sine and a cosine for each angle: slow and fast waves that tell where a word stands.",
        "p_i = [sin θ_{i0} ; cos θ_{i0} ; sin θ_{i1} ; …]", axes=(words, size),
    )  # fmt: skip
    walker.step(
        f"{x} = {embeddings} + {name}", f"Embeddings with positions{of}", "What a word is, and where it stands.",
        f"{x}_i = e_i + p_i", axes=(words, size),
    )  # fmt: skip
