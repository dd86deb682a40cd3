"""What a model of transformers does with a text of which one word is erased or replaced, for the explorer's What if.

An erased word keeps its place and has the mean embedding of the text's words. Vectors are replaced where the model
looks up its embeddings, so that it gets ids as always. Of a tokenizer only `decode` and the call with a text are used,
so that all kinds are read alike.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedModel

from regard.arguments import a_string, count_of, kind_of, shown, whole
from regard.errors import ArgumentError, UnsupportedError
from regard.integrations.transformers.attaching import attached
from regard.integrations.transformers.watching import observe
from regard_lab.seeing.explorer.records import Follows
from regard_lab.seeing.lenses.erasing import LONGEST_WORD, Changed, ReadText, named_likeliest, next_words, without
from regard_lab.seeing.watching import Span, in_eval_mode

MOST_WRITTEN = 200  # ids that an encoder-decoder writes
IDS_AT_ONCE = 4096  # rows of the table of embeddings whose mean is taken
CONTEXT = 8  # ids before one, which decide how it is written
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
            raise ArgumentError(f"the text {text[:40]!r} has no ids of this tokenizer; give another")
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
        return [at for at, (_, span) in enumerate(self.spans) if self.ids[span.start] not in stay]

    @cached_property
    def masked(self) -> list[int]:
        """Indices of the ids of masked words."""
        mask = getattr(self.tokenizer, "mask_token_id", None)
        return [at for at, one in enumerate(self.ids) if one == mask]

    @cached_property
    def fills_in(self) -> bool:
        """Whether the model has a head for masked words."""
        mask = getattr(self.tokenizer, "mask_token_id", None)
        heads = self.model.get_output_embeddings() is not None and not self.model.can_generate()
        return self.target is None and mask is not None and heads

    @cached_property
    def follows(self) -> Follows:
        """What is followed while words change."""
        if self.target is not None or (self.model.can_generate() and self._reads_forward()):
            return "words"
        return "masked" if self.masked and self.fills_in else "vectors"

    def _reads_forward(self) -> bool:
        """Whether no word looks at a later one in the first layer; BERT with a head that writes may look at all."""
        model = self.model
        with attached(model), in_eval_mode(model), torch.no_grad(), observe(model, "weights", layers=0) as observed:
            model(**self.inputs)
        return not any(bool(call.weights.triu(1).any()) for call in observed.calls)

    def writing(self, written: str | None) -> PretrainedText:
        """The text with what is written; by default what the model writes by greedy search.

        Raises:
            ArgumentError: nothing is written, or the model has no head that writes.
        """
        if written is not None:
            ids = self.tokenizer(text_target=in_unicode("written", written))["input_ids"]
        elif not hasattr(self.model, "generate") or not self.model.can_generate():
            raise ArgumentError(
                f"{type(self.model).__name__} has no head that writes; give a model that has one, such as "
                f"AutoModelForSeq2SeqLM.from_pretrained(…)"
            )
        else:
            ids = _generated(self.model, MOST_WRITTEN, **self.inputs)[0, 1:].tolist()
        if not ids:
            raise ArgumentError("the model wrote nothing, so there is nothing to show; give written=")
        return replace(self, target=ids, own=written is None)

    def with_ids(self, place: int, ids: list[int]) -> PretrainedText:
        """The text with other ids in the place of a word."""
        (_, span), by = self.spans[place], len(ids) - len(self.spans[place][1])
        _check_length(self.model, len(self.ids) + by)
        inputs = {}
        for name, values in self.inputs.items():  # such as the mask of padding, which is alike inside of a word
            other = values[:, span.start : span.start + 1].expand(1, len(ids))
            if name == "input_ids":
                other = torch.tensor([ids], device=values.device)
            inputs[name] = torch.cat([values[:, : span.start], other, values[:, span.stop :]], 1)
        moved = [(word, range(one.start + by, one.stop + by)) for word, one in self.spans[place + 1 :]]
        changed = (self.spans[place][0], range(span.start, span.stop + by))
        return replace(self, inputs=inputs, spans=[*self.spans[:place], changed, *moved])


def pretrained_without_each(text: PretrainedText, most: int) -> dict[int | None, Changed]:
    """What the model does with a text as it is (None), and without each of its first words, by their index.

    Raises:
        UnsupportedError: a model whose embeddings or vectors are not those of the ids.
    """
    places = [None, *text.words[:most]]
    return dict(zip(places, _changed(text, text, places), strict=True))


def pretrained_with_word(text: PretrainedText, place: int, word: str = "") -> Changed:
    """What the model does with a text in which one word is erased, or replaced by another word.

    Raises:
        ArgumentError: a place without a word that may change, or not one word.
    """
    if whole("place", place) not in text.words:
        raise ArgumentError(
            f"word {place} cannot be changed; the text has {count_of(len(text.spans), 'words')}, from 0, and those "
            f"that the tokenizer adds stay"
        )
    if not in_unicode("word", word):
        return _changed(text, text, [place])[0]
    span = text.spans[place][1]
    ids = ids_of_word(text.tokenizer, text.ids[: span.start], text.ids[span.start : span.stop], word)
    other = text.with_ids(place, ids)
    return replace(_changed(text, other, [None], place)[0], word=word.strip())


@torch.no_grad()
def _changed(
    text: PretrainedText, read: PretrainedText, places: Sequence[int | None], other: int | None = None
) -> list[Changed]:
    """What the model does with `read` without each of some words; `other` is the word that differs from `text`."""
    with in_eval_mode(text.model):
        if text.target is None and text.follows == "words":
            return _next_words(text, read, places, other)
        plain = torch.zeros(1, len(text.ids), dtype=torch.bool)
        own = _followed(text, plain, text.follows)[0]
        found, named = [], {}
        for _, erased in without(read.spans, places, own.shape[-1] * max(len(read.ids), len(own))):
            rows = _followed(read, erased, text.follows)
            if text.follows == "vectors":
                similar = F.cosine_similarity(rows, own, dim=-1).clamp(-1, 1)
                found += [Changed("", (), (), similarities=tuple(row)) for row in similar.tolist()]
            elif text.follows == "masked":
                found += [_filled_in(text, row, own, named) for row in rows]
            else:
                written = _rewritten(read, erased) if text.own else [()] * len(rows)
                found += [_written(text, *one, named) for one in zip(rows, written, strict=True)]
    return found


def _followed(read: PretrainedText, erased: torch.Tensor, follows: Follows) -> torch.Tensor:
    """What is followed, float32 on the CPU, for each row of erased ids (rows, n).

    Vectors of words (rows, words, dim), which are means over their ids; or log-probabilities (rows, places, vocab_size)
    of masked words, or of the ids that were written.
    """
    if read.target is not None:
        states = _encoded(read, erased)
        labels = torch.tensor([read.target], device=read.model.device).repeat(len(erased), 1)
        return read.model(**states, labels=labels).logits.float().log_softmax(-1).cpu()
    if follows == "masked":
        return _run(read.model, read, erased).logits[:, read.masked].float().log_softmax(-1).cpu()
    output = _run(read.model, read, erased, output_hidden_states=True)
    vectors = output.get("last_hidden_state")
    vectors = output.hidden_states[-1] if vectors is None else vectors
    if vectors.shape[:2] != erased.shape:
        raise UnsupportedError(
            f"{type(read.model).__name__} makes vectors {tuple(vectors.shape)} of {tuple(erased.shape)} ids, so they "
            f"are not those of the words"
        )
    vectors = vectors.float().cpu()
    return torch.stack([vectors[:, span.start : span.stop].mean(1) for _, span in read.spans], 1)


def _next_words(
    text: PretrainedText, read: PretrainedText, places: Sequence[int | None], other: int | None
) -> list[Changed]:
    def score(ids: list[int], erased: torch.Tensor) -> torch.Tensor:
        return _run(text.model, text if ids == text.ids else read, erased).logits

    as_it_is = ReadText(text.ids, text.spans, score, partial(continued, text.tokenizer))
    changed = None if other is None else (other, read.ids[: read.spans[other][1].stop])
    return next_words(as_it_is, places, changed)


def _filled_in(
    text: PretrainedText, logits: torch.Tensor, own: torch.Tensor, named: dict[tuple[int, int], str]
) -> Changed:
    """The probability, at each masked place, of what is most probable there in the text as it is."""
    spell = partial(continued, text.tokenizer)
    likeliest = [named_likeliest(row, text.ids[:at], spell, named) for row, at in zip(logits, text.masked, strict=True)]
    chances = logits.gather(1, own.argmax(-1)[:, None])[:, 0].exp()
    return Changed("", tuple(chances.tolist()), tuple(likeliest))


def _written(
    text: PretrainedText, logits: torch.Tensor, rewritten: tuple[str, ...], named: dict[tuple[int, int], str]
) -> Changed:
    """The probability of each word that was written, and what is written now."""
    ids = text.target or []
    spell = partial(continued, text.tokenizer)
    chosen = logits.gather(1, torch.tensor(ids)[:, None])[:, 0].double()
    probabilities, likeliest = [], []
    for _, span in spans_of(text.tokenizer, ids):
        probabilities.append(float(chosen[list(span)].sum().exp()))
        likeliest.append(named_likeliest(logits[span.start], ids[: span.start], spell, named))
    return Changed("", tuple(probabilities), tuple(likeliest), rewritten)


def _rewritten(read: PretrainedText, erased: torch.Tensor) -> list[tuple[str, ...]]:
    """The words that an encoder-decoder writes by greedy search; at most twice as many ids as before, and 16."""
    most = min(MOST_WRITTEN, 2 * len(read.target or []) + 16)
    rows = _generated(read.model, most, **_encoded(read, erased))[:, 1:].tolist()
    special = {*read.tokenizer.all_special_ids}
    kept = [[one for one in ids if one not in special] for ids in rows]
    return [tuple(word for word, _ in spans_of(read.tokenizer, ids)) for ids in kept]


def _generated(model: Any, most: int, **inputs: Any) -> torch.Tensor:
    return model.generate(**inputs, max_new_tokens=most, do_sample=False, num_beams=1)


def _encoded(read: PretrainedText, erased: torch.Tensor) -> dict[str, Any]:
    """What a decoder reads of each row: the states of the encoder, and the mask of padding if there is one."""
    states = {"encoder_outputs": _run(read.model.get_encoder(), read, erased)}
    if (mask := read.inputs.get("attention_mask")) is not None:
        states["attention_mask"] = mask.repeat(len(erased), 1)
    return states


def _run(model: nn.Module, read: PretrainedText, erased: torch.Tensor, **options: Any) -> Any:
    """The output for each row of erased ids (rows, n): a pass in which their embeddings are the mean of the words."""
    rows = {name: values.repeat(len(erased), 1) for name, values in read.inputs.items()}
    if not erased.any():
        return model(**rows, **options)
    with _erasing(model, read, erased):
        return model(**rows, **options)


@contextmanager
def _erasing(model: Any, read: PretrainedText, erased: torch.Tensor) -> Generator[None]:
    """The embeddings of erased ids replaced by the mean of the words', or of one word alone by that of the table."""
    table = model.get_input_embeddings()
    kept = [place for at in read.words for place in read.spans[at][1]]
    if len(kept) > 1:
        mean = table(read.inputs["input_ids"][0, kept]).float().mean(0)
    else:
        parts = torch.arange(len(table.weight), device=table.weight.device).split(IDS_AT_ONCE)
        mean = sum((table(part).float().sum(0) for part in parts), torch.zeros(())) / len(table.weight)
    calls = 0

    def replaced(module: nn.Module, given: Any, vectors: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if vectors.shape[:-1] != erased.shape:
            raise UnsupportedError(
                f"{type(model).__name__} embeds {tuple(vectors.shape[:-1])} ids where it was given "
                f"{tuple(erased.shape)}, so none can be erased"
            )
        return torch.where(erased.to(vectors.device)[..., None], mean.to(vectors), vectors)

    handle = table.register_forward_hook(replaced)
    try:
        yield
    finally:
        handle.remove()
    if not calls:
        raise UnsupportedError(f"{type(model).__name__} does not call its input embeddings, so no word can be erased")


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
        raise ArgumentError(f"{shown(word)} is not one word; give one word in the place of {replaced.strip()!r}")
    if len(word) > LONGEST_WORD:
        raise ArgumentError(f"the word has {len(word):,} characters; give one of at most {LONGEST_WORD}")
    put = f" {word.strip()}" if replaced.startswith(" ") else word.strip()
    ids = tokenizer(f"{start}{put}", add_special_tokens=False)["input_ids"]
    ids = ids[len(before) :] if ids[: len(before)] == before else tokenizer(put, add_special_tokens=False)["input_ids"]
    if not ids:
        raise ArgumentError(
            f"the tokenizer has no ids for {shown(word)}; give another in the place of {replaced.strip()!r}"
        )
    if found := {*ids} & signs(tokenizer):
        sign = tokenizer.convert_ids_to_tokens(min(found))
        raise ArgumentError(f"{shown(word)} is read as {sign}, a sign of the tokenizer; give a word")
    return ids


def signs(tokenizer: Any) -> set[int]:
    """The ids that stand for no part of a text, such as its beginning, or a masked word; an unknown word is a word."""
    names = ("bos", "eos", "sep", "cls", "pad", "mask")
    own = {getattr(tokenizer, f"{name}_token_id", None) for name in names}
    unknown = {getattr(tokenizer, "unk_token_id", None)} - own
    return {*tokenizer.all_special_ids} - unknown


def spans_of(tokenizer: Any, ids: list[int]) -> list[Span]:
    """Words with the indices of their ids; pieces belong to one word if letters meet where they touch."""
    special = {*tokenizer.all_special_ids}
    spans: list[tuple[int, int]] = []  # first index, index after the last
    for place, number in enumerate(ids):
        run = _after_special(tokenizer, ids[max(0, place - CONTEXT) : place])
        before, after = _decoded(tokenizer, run), _completed(tokenizer, run, ids[place : place + MOST_BYTES])
        if run and number not in special and _belongs(before, after):
            spans[-1] = (spans[-1][0], place + 1)
        else:
            spans.append((place, place + 1))
    words = []
    for start, stop in spans:
        word = _decoded(tokenizer, ids[start:stop]).strip() or str(tokenizer.convert_ids_to_tokens(ids[start]))
        words.append((word, range(start, stop)))
    return words


def _after_special(tokenizer: Any, ids: Sequence[int]) -> list[int]:
    """The ids after the last special one."""
    special = {*tokenizer.all_special_ids}
    return [*ids][max((at + 1 for at, one in enumerate(ids) if one in special), default=0) :]


def continued(tokenizer: Any, before: Sequence[int], number: int) -> str:
    """A sub-word as it would continue some ids: with "…" before it if it would continue their last word."""
    run = _after_special(tokenizer, before[-CONTEXT:])
    start, text = _decoded(tokenizer, run), _decoded(tokenizer, [*run, number])
    word = text[len(start) :].strip() if text.startswith(start) else _decoded(tokenizer, [number]).strip()
    word = word or str(tokenizer.convert_ids_to_tokens(number))
    return f"…{word}" if run and number not in tokenizer.all_special_ids and _belongs(start, text) else word


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
    return unicodedata.category(letter)[0] in "LNM" and unicodedata.east_asian_width(letter) not in "WF"


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
