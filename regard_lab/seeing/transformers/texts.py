"""A text as a model of transformers reads it: its ids and their words, with another word, and what is written then.

Of a tokenizer only `decode` and the call with a text are used, so that all kinds are read alike.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from transformers import PreTrainedModel

from regard.arguments import a_string, kind_of, shown
from regard.errors import ArgumentError
from regard.integrations.transformers.attaching import attached
from regard.integrations.transformers.watching import observe
from regard_lab.seeing.explorer.records import Follows
from regard_lab.seeing.watching import Span, in_eval_mode

MOST_WRITTEN = 200  # ids that an encoder-decoder writes
CONTEXT = 8  # ids before one, which decide how it is written
LONGEST_WORD = 60  # characters of a word that another is compared with
MOST_BYTES = 4  # of a character in UTF-8, each of which may be an id


@dataclass(frozen=True, eq=False)
class PretrainedText:
    """A text as a model of transformers reads it, and what an encoder-decoder writes then.

    Args:
        model, tokenizer: a model and its tokenizer.
        inputs: what the tokenizer makes of the text, each (1, n).
        spans: the words that are read, with the indices of their ids.
        target: the ids that are written; None for a model that reads alone.
        own: whether the model itself wrote them.
    """

    model: Any
    tokenizer: Any
    inputs: dict[str, torch.Tensor]
    spans: list[Span]
    target: list[int] | None = None
    own: bool = False

    @classmethod
    def of(cls, model: Any, tokenizer: Any, text: str) -> PretrainedText:
        """A text, before anything is written.

        Raises:
            ArgumentError: no tokenizer, no text in Unicode, one without ids, or one that is too long for the model.
        """
        if not callable(tokenizer) or not hasattr(tokenizer, "decode"):
            raise ArgumentError(
                f"tokenizer is {kind_of(tokenizer)}; give the model's own, AutoTokenizer.from_pretrained(…)"
            )
        inputs = dict(tokenizer(in_unicode("text", text), return_tensors="pt").to(model.device))
        ids = inputs["input_ids"][0].tolist()
        if not ids:
            raise ArgumentError(
                f"the text {text[:40]!r} has no ids of this tokenizer; give another"
            )
        _check_length(model, len(ids))
        return cls(model, tokenizer, inputs, spans_of(tokenizer, ids))

    @cached_property
    def ids(self) -> list[int]:
        """What is read."""
        return self.inputs["input_ids"][0].tolist()

    @cached_property
    def words(self) -> list[int]:
        """Indices of the words that may change: all except those that the tokenizer adds, and masked ones."""
        stay = signs(self.tokenizer)
        return [
            place for place, (_, span) in enumerate(self.spans) if self.ids[span.start] not in stay
        ]

    @cached_property
    def masked(self) -> list[int]:
        """Indices of the ids of masked words."""
        mask = getattr(self.tokenizer, "mask_token_id", None)
        return [index for index, identifier in enumerate(self.ids) if identifier == mask]

    @cached_property
    def fills_in(self) -> bool:
        """Whether the model has a head for masked words."""
        if self.target is not None or getattr(self.tokenizer, "mask_token_id", None) is None:
            return False
        return self.model.get_output_embeddings() is not None and not self.model.can_generate()

    @cached_property
    def follows(self) -> Follows:
        """What is followed while words change."""
        if self.target is not None or (self.model.can_generate() and self._reads_forward()):
            return "words"
        return "masked" if self.masked and self.fills_in else "vectors"

    def _reads_forward(self) -> bool:
        """Whether no word looks at a later one in the first layer; BERT with a head that writes may look at all."""
        model = self.model
        with (
            attached(model),
            in_eval_mode(model),
            torch.no_grad(),
            observe(model, "weights", layers=0) as observed,
        ):
            model(**self.inputs)
        return not any(bool(call.weights.triu(1).any()) for call in observed.calls)

    def writing(self, written: str | None) -> PretrainedText:
        """The text with what is written; by default what the model writes by greedy search.

        Raises:
            ArgumentError: nothing is written, or the model has no head that writes.
        """
        if written is not None:
            ids = self.tokenizer(text_target=in_unicode("written", written))["input_ids"]
        elif hasattr(self.model, "generate") and self.model.can_generate():
            ids = generated(self.model, MOST_WRITTEN, **self.inputs)[0, 1:].tolist()
        else:
            raise ArgumentError(
                f"{type(self.model).__name__} has no head that writes; give a model that has one, such as "
                f"AutoModelForSeq2SeqLM.from_pretrained(…)"
            )
        if not ids:
            raise ArgumentError(
                "the model wrote nothing, so there is nothing to show; give written="
            )
        return replace(self, target=ids, own=written is None)

    def with_ids(self, place: int, ids: list[int]) -> PretrainedText:
        """The text with other ids in the place of a word."""
        word, span = self.spans[place]
        added = len(ids) - len(span)
        _check_length(self.model, len(self.ids) + added)

        inputs = {}
        for name, values in self.inputs.items():
            # Other inputs than ids, such as the mask of padding, are alike inside of a word.
            replacement = values[:, span.start : span.start + 1].expand(1, len(ids))
            if name == "input_ids":
                replacement = torch.tensor([ids], device=values.device)
            parts = [values[:, : span.start], replacement, values[:, span.stop :]]
            inputs[name] = torch.cat(parts, 1)

        spans = [*self.spans[:place], (word, range(span.start, span.stop + added))]
        for later_word, later in self.spans[place + 1 :]:
            spans.append((later_word, range(later.start + added, later.stop + added)))
        return replace(self, inputs=inputs, spans=spans)


def generated(model: Any, most: int, **inputs: Any) -> torch.Tensor:
    """The ids of greedy search, at most `most` and 200 of them."""
    most = min(most, MOST_WRITTEN)
    return model.generate(**inputs, max_new_tokens=most, do_sample=False, num_beams=1)


def _check_length(model: PreTrainedModel, length: int) -> None:
    longest = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if isinstance(longest, int) and length > longest > 0:
        raise ArgumentError(
            f"the text has {length:,} ids, and {type(model).__name__} reads at most {longest:,}; shorten it"
        )


def ids_of_word(tokenizer: Any, before: Sequence[int], old: Sequence[int], word: str) -> list[int]:
    """The ids of another word in the place of one: as the tokenizer splits the text up to it, or else the word alone.

    Raises:
        ArgumentError: not one word, one that is too long, or one that the tokenizer cannot read as a word.
    """
    before = _after_special(tokenizer, before)
    start = _decoded(tokenizer, before)
    replaced = _decoded(tokenizer, [*before, *old])[len(start) :]
    if len(word.split()) != 1:
        raise ArgumentError(
            f"{shown(word)} is not one word; give one word in the place of {replaced.strip()!r}"
        )
    if len(word) > LONGEST_WORD:
        raise ArgumentError(
            f"the word has {len(word):,} characters; give one of at most {LONGEST_WORD}"
        )

    spaced = f" {word.strip()}" if replaced.startswith(" ") else word.strip()
    ids = tokenizer(f"{start}{spaced}", add_special_tokens=False)["input_ids"]
    if ids[: len(before)] == before:
        ids = ids[len(before) :]
    else:
        ids = tokenizer(spaced, add_special_tokens=False)["input_ids"]
    if not ids:
        raise ArgumentError(
            f"the tokenizer has no ids for {shown(word)}; give another in the place of {replaced.strip()!r}"
        )
    read_as_signs = set(ids) & signs(tokenizer)
    if read_as_signs:
        sign = tokenizer.convert_ids_to_tokens(min(read_as_signs))
        raise ArgumentError(
            f"{shown(word)} is read as {sign}, a sign of the tokenizer; give a word"
        )
    return ids


def signs(tokenizer: Any) -> set[int]:
    """The ids that stand for no part of a text, such as its beginning, or a masked word; an unknown word is a word."""
    names = ("bos", "eos", "sep", "cls", "pad", "mask")
    named = {getattr(tokenizer, f"{name}_token_id", None) for name in names}
    unknown = {getattr(tokenizer, "unk_token_id", None)} - named
    return set(tokenizer.all_special_ids) - unknown


def spans_of(tokenizer: Any, ids: list[int]) -> list[Span]:
    """Words with the indices of their ids; pieces belong to one word if letters meet where they touch."""
    special = set(tokenizer.all_special_ids)
    words: list[range] = []
    for index, identifier in enumerate(ids):
        run = _after_special(tokenizer, ids[max(0, index - CONTEXT) : index])
        before = _decoded(tokenizer, run)
        after = _completed(tokenizer, run, ids[index : index + MOST_BYTES])
        if run and identifier not in special and _belongs(before, after):
            words[-1] = range(words[-1].start, index + 1)
        else:
            words.append(range(index, index + 1))

    spans = []
    for span in words:
        word = _decoded(tokenizer, ids[span.start : span.stop]).strip()
        word = word or str(tokenizer.convert_ids_to_tokens(ids[span.start]))
        spans.append((word, span))
    return spans


def _after_special(tokenizer: Any, ids: Sequence[int]) -> list[int]:
    """The ids after the last special one."""
    special = set(tokenizer.all_special_ids)
    first = 0
    for index, identifier in enumerate(ids):
        if identifier in special:
            first = index + 1
    return list(ids[first:])


def continued(tokenizer: Any, before: Sequence[int], number: int) -> str:
    """A sub-word as it would continue some ids: with "…" before it if it would continue their last word."""
    run = _after_special(tokenizer, before[-CONTEXT:])
    start = _decoded(tokenizer, run)
    text = _decoded(tokenizer, [*run, number])
    if text.startswith(start):
        word = text[len(start) :].strip()
    else:
        word = _decoded(tokenizer, [number]).strip()
    word = word or str(tokenizer.convert_ids_to_tokens(number))
    if run and number not in tokenizer.all_special_ids and _belongs(start, text):
        return f"…{word}"
    return word


def _decoded(tokenizer: Any, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def _completed(tokenizer: Any, run: list[int], following: list[int]) -> str:
    """The text of some ids and the next one, with those after it that complete its last character."""
    text = _decoded(tokenizer, [*run, *following[:1]])
    for count in range(2, len(following) + 1):
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):
            break
        text = _decoded(tokenizer, [*run, *following[:count]])
    return text


def _belongs(before: str, after: str) -> bool:
    """Whether what follows `before` in `after` continues its last word."""
    if not after.startswith(before):
        return True  # the ids before are a part of a character
    added = after[len(before) :]
    if not before or not added:  # pieces that are a space at the beginning, or that write nothing
        return True
    if before.endswith(("\N{REPLACEMENT CHARACTER}", " ")):
        return True  # a space that is a piece of its own belongs to the word after it
    if added[0] in "'’" and added[1:2].isalpha():
        added = added[1:]
    return _joins(before[-1]) and _joins(added[0])


def _joins(letter: str) -> bool:
    """Letters, digits and marks of scripts that write spaces between words."""
    if unicodedata.east_asian_width(letter) in "WF":
        return False
    return unicodedata.category(letter)[0] in "LNM"


def in_unicode(name: str, text: str) -> str:
    """The text, if it is a string that tokenizers can read: they refuse halves of pairs of UTF-16."""
    try:
        a_string(name, text).encode()
    except UnicodeEncodeError as error:
        raise ArgumentError(
            f"{name} has U+{ord(text[error.start]):04X}, half of a character of UTF-16, at index {error.start}; leave "
            f"it out"
        ) from None
    return text
