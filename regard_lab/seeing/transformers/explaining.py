"""Models of transformers as lenses, `ablate` and What if read them: next and masked words, classes, translations."""

import re
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from regard.arguments import shown, suggest
from regard.errors import ArgumentError, UnsupportedError
from regard.integrations.transformers.attaching import attach, attached
from regard.integrations.transformers.modules import attention_modules
from regard.integrations.transformers.watching import intervene, observe
from regard_lab.seeing.lenses import Contrast, explain_contrasts
from regard_lab.seeing.lenses.contrast import (
    IDS_AT_ONCE,
    Asked,
    LayerName,
    Sides,
    Subject,
    baseline,
    most_probable,
    place_of,
)
from regard_lab.seeing.lenses.erasing import (
    NUMBERS_AT_ONCE,
    Changed,
    ReadText,
    Speller,
    WrittenText,
    next_words,
    without,
)
from regard_lab.seeing.lenses.explaining import DEFAULT, Lens, check_options
from regard_lab.seeing.lenses.record import Relevance
from regard_lab.seeing.transformers.texts import (
    PretrainedText,
    continued,
    generated,
    ids_of_word,
    signs,
    spans_of,
)
from regard_lab.seeing.watching import Span, in_eval_mode

CROSS = re.compile(r"cross|encdec|encoder_(decoder_)?att", re.IGNORECASE)


def kind_of(name: str) -> str:
    """The kind of attention of an encoder-decoder that a module of this name computes."""
    if "decoder" not in name:
        return "encoder"
    return "cross" if CROSS.search(name) else "decoder"


def check_weights(model: Any) -> None:
    """Refuse a model without attention weights, such as one of recurrent layers alone.

    Raises:
        UnsupportedError: no layer computes weights.
    """
    if not attention_modules(model):
        raise UnsupportedError(
            f"no layer of {type(model).__name__} computes attention weights; what a word depends on is measured "
            f"without any: lens='erase' of pretrained_relevance, or regard view FOLDER TEXT --lens erase"
        )


class Pretrained(Subject):
    """A model of transformers with its tokenizer, which `ablate`, `patch` and `head_scores` take, and lenses.

    The model is attached to regard. Layers are counted in the order of its attention modules, in each kind.

    Args:
        model: with a head that writes, that fills in masked words, or that chooses a class.
        tokenizer: its tokenizer.

    Raises:
        RegardError: a model that regard cannot be attached to.
    """

    def __init__(self, model: Any, tokenizer: Any) -> None:
        super().__init__()
        self.model = attach(model)
        self.tokenizer = tokenizer
        self.special = tuple(sorted(signs(tokenizer)))
        self.translates = bool(getattr(model.config, "is_encoder_decoder", False))
        layers_of_kind: Counter[str] = Counter()
        self.layers: dict[str, LayerName] = {}
        for name in attention_modules(model):
            kind = kind_of(name) if self.translates else "self"
            self.layers[name] = (kind, layers_of_kind[kind])
            layers_of_kind[kind] += 1

    def read(self, text: str) -> PretrainedText:
        """A text as the model reads it."""
        return PretrainedText.of(self.model, self.tokenizer, text)

    @property
    def writes(self) -> bool:
        """Whether a word is chosen after the words before it."""
        return self.model.can_generate() and not self.translates

    @property
    def sides(self) -> tuple[str, ...]:
        """The sides that the model reads."""
        if self.translates:
            return ("source", "written")
        return ("written",) if self.writes else ("source",)

    @property
    def chooses_next(self) -> bool:
        """Whether a word is chosen after those before it, in what is read or in what is written."""
        return self.translates or self.writes

    def tables(self) -> Sides:
        embedding = self.model.get_input_embeddings()
        table = embedding.weight.detach()
        if type(embedding) is not torch.nn.Embedding:  # such as one that scales
            table = embedding(torch.arange(len(table), device=table.device)).detach()
        return dict.fromkeys(self.sides, table)

    @property
    def ids_at_once(self) -> int:
        head = self.model.get_output_embeddings()
        if head is None:
            return IDS_AT_ONCE
        return min(IDS_AT_ONCE, max(1, NUMBERS_AT_ONCE // len(head.weight)))

    def forward(self, ids: Sides, vectors: Sides | None = None) -> torch.Tensor:
        return self._logits(self.output(ids, vectors))

    def output(self, ids: Sides, vectors: Sides | None = None, **options: Any) -> Any:
        vectors = {} if vectors is None else vectors
        if self.translates:
            encoded = self.encoded(ids, vectors)
            with self._reading(self.model.get_decoder(), vectors.get("written")):
                return self.model(**encoded, decoder_input_ids=ids["written"], **options)
        (side,) = ids
        mask = torch.ones_like(ids[side])
        with self._reading(self.model, vectors.get(side)):
            return self.model(input_ids=ids[side], attention_mask=mask, **options)

    def encoded(self, ids: Sides, vectors: Sides) -> dict[str, Any]:
        """What a decoder reads of the source: the states of the encoder, and a mask without padding."""
        mask = torch.ones_like(ids["source"])
        encoder = self.model.get_encoder()
        with self._reading(encoder, vectors.get("source")):
            states = encoder(input_ids=ids["source"], attention_mask=mask)
        return {"encoder_outputs": states, "attention_mask": mask}

    def _logits(self, output: Any) -> torch.Tensor:
        if not hasattr(output, "logits"):
            raise UnsupportedError(
                f"{type(self.model).__name__} has no head, so it predicts no word and no class; load it with one, such "
                f"as AutoModelForMaskedLM"
            )
        return output.logits

    @contextmanager
    def _reading(self, part: Any, vectors: torch.Tensor | None) -> Generator[None]:
        """Other vectors in the place of those that a part of the model looks up first."""
        if vectors is None:
            yield
            return

        shapes: list[torch.Size] = []  # of what the embeddings returned

        def replace_embeddings(
            _: torch.nn.Module, arguments: tuple[torch.Tensor], output: torch.Tensor
        ) -> torch.Tensor:
            shapes.append(output.shape)
            return vectors.to(output) if output.shape == vectors.shape else output

        handle = part.get_input_embeddings().register_forward_hook(replace_embeddings)
        try:
            yield
        finally:
            handle.remove()
        if vectors.shape in shapes:
            return
        name = type(self.model).__name__
        if not shapes:
            raise UnsupportedError(f"{name} does not call its input embeddings")
        raise UnsupportedError(
            f"{name} embeds {tuple(shapes[0][:-1])} ids where it gets {tuple(vectors.shape[:-1])}"
        )

    def weights(self, ids: Sides) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        check_weights(self.model)
        with observe(self.model, "weights") as observed:
            self.output(ids)
        layers: dict[str, list[torch.Tensor]] = {}
        for call in observed.calls:
            kind, _ = self.layers[call.layer]
            layers.setdefault(kind, []).append(call.weights.float().cpu())
        stacks = {kind: torch.stack(of_kind) for kind, of_kind in layers.items()}
        if self.translates:
            return stacks["encoder"], stacks["decoder"], stacks["cross"]
        none = torch.zeros(0, len(stacks["self"][0]), 0, 0, 0)
        if self.writes:
            return none, stacks["self"], none
        return stacks["self"], none, none

    @contextmanager
    def changing(
        self, change: Callable[[tuple[str, int], torch.Tensor], torch.Tensor]
    ) -> Generator[None]:
        if not self.layers:
            raise UnsupportedError(
                f"no layer of {type(self.model).__name__} has heads of attention, so none can be replaced"
            )

        def change_heads(name: str, output: torch.Tensor) -> torch.Tensor:
            if name not in self.layers:  # a recurrent layer
                return output
            return change(self.layers[name], output.transpose(1, 2)).transpose(1, 2)

        with intervene(self.model, change_heads):
            yield

    def asked(self, text: Any) -> list[Asked]:
        read, *more = (text,) if isinstance(text, str) else text
        ids = self.read(read).ids
        if self.translates:
            target = self.tokenizer(text_target=more[0])["input_ids"]
            sides = {"source": ids, "written": [self.start, *target[:-1]]}
            return [Asked(sides, range(len(target)), target)]
        if self.writes:
            if len(ids) == 1:
                return []
            return [Asked({"written": ids[:-1]}, range(len(ids) - 1), ids[1:])]
        if more:
            return [Asked({"source": ids}, (), [self.class_of(more[0])])]

        mask = self.mask
        asked = []
        for at, identifier in enumerate(ids):
            if identifier not in self.special:
                masked = [*ids[:at], mask, *ids[at + 1 :]]
                asked.append(Asked({"source": masked}, [at], [identifier]))
        return asked

    @property
    def start(self) -> int:
        return self.model.generation_config.decoder_start_token_id

    @property
    def mask(self) -> int:
        mask = getattr(self.tokenizer, "mask_token_id", None)
        if mask is None:
            raise UnsupportedError(
                f"the tokenizer of {type(self.model).__name__} has no sign for a masked word"
            )
        return mask

    def class_of(self, label: Any) -> int:
        classes = {str(name).lower(): number for number, name in self.model.config.id2label.items()}
        name = str(label).lower()
        if name in classes:
            return classes[name]
        if label in classes.values():
            return label
        raise ArgumentError(f"there is no class {shown(label)}; {suggest(name, classes)}")


@torch.no_grad()
def contrasts_of(
    subject: Pretrained,
    text: str,
    of: str | None = None,
    instead_of: Sequence[str] = (),
    *,
    place: int | None = None,
    written: str | None = None,
) -> dict[int, Contrast]:
    """What a model chose for a text, by the index of the word: each against others.

    A causal model chooses each word after those before it, an encoder-decoder what it writes, a model of masked words
    what stands at each masked place, and a classifier a class, whose index is 0.

    Args:
        of: one of these words; a word of the text, which is masked, for a model of masked words; or a class.
        instead_of: what it is compared with; by default the three most probable words, or all other classes.
        place: index of the word among those that were read or written, if it occurs more than once.
        written: what an encoder-decoder wrote; by default what it writes.

    Raises:
        ArgumentError: a word that was not chosen, or a class that does not exist.
        UnsupportedError: a model without a head.
    """
    with in_eval_mode(subject):
        read = subject.read(text)
        if not subject.chooses_next and of is not None and read.fills_in and not read.masked:
            place = place_of([word for word, _ in read.spans], of, place)
            of = read.spans[place][0]
            read = _with_mask(subject, read, place)
        if subject.translates:
            read = read.writing(written)
        sides = _sides_of(subject, read)
        device = subject.model.device
        logits = subject({side: torch.tensor([ids], device=device) for side, ids in sides.items()})[
            0
        ]

    if logits.dim() == 1:
        return {0: _of_class(subject, read, logits, of, instead_of)}
    if not subject.chooses_next:
        return _of_masked(subject, read, logits, of, instead_of)
    return _of_written(subject, read, logits, of, instead_of, place)


def _with_mask(subject: Pretrained, read: PretrainedText, place: int) -> PretrainedText:
    """The text with a mask for a word."""
    masked = read.with_ids(place, [subject.mask])
    return replace(masked, spans=spans_of(subject.tokenizer, masked.ids))


def _sides_of(subject: Pretrained, read: PretrainedText) -> dict[str, list[int]]:
    """The ids that a model reads of a text, and of what is written."""
    if not subject.translates:
        (side,) = subject.sides
        return {side: read.ids}
    target = read.target or []
    return {"source": read.ids, "written": [subject.start, *target[:-1]]}


def _of_written(
    subject: Pretrained,
    read: PretrainedText,
    logits: torch.Tensor,
    of: str | None,
    instead_of: Sequence[str],
    place: int | None,
) -> dict[int, Contrast]:
    """Each word, or one, that was chosen after those before it.

    Args:
        logits: (ids, vocab_size). Of an encoder-decoder row i chose the id i, of a causal model the id after it.
    """
    tokenizer = subject.tokenizer
    ids, spans = read.ids, read.spans
    begin: list[Span] = []
    if subject.translates:
        ids = [*(read.target or [])]
        spans = spans_of(tokenizer, ids)
        begin = [("<begin>", range(1))]
    else:
        logits = logits.roll(1, 0)
    sides = _sides_of(subject, read)
    places = range(len(spans))
    if of is not None:
        places = [place_of([word for word, _ in spans], of, place)]

    shift = len(begin)  # ids that the decoder reads before what was written
    contrasts = {}
    for index in places:
        word, span = spans[index]
        if not span.start and not begin:
            continue  # nothing was read before it
        chosen = _Place(subject, ids, span)
        others = chosen.against(word, ids[span.start], logits[span.start], instead_of)
        past = [
            (name, range(of_word.start + shift, of_word.stop + shift))
            for name, of_word in spans[:index]
        ]
        contrasts[index] = Contrast(
            word=word,
            others=chosen.named(others, instead_of),
            of=ids[span.start],
            instead_of=others,
            source=tuple(sides.get("source", ())),
            written=tuple(sides["written"][: span.start + shift]),
            source_words=tuple(read.spans) if subject.translates else (),
            written_words=(*begin, *past),
            place=index,
        )
    return contrasts


def _of_masked(
    subject: Pretrained,
    read: PretrainedText,
    logits: torch.Tensor,
    of: str | None,
    instead_of: Sequence[str],
) -> dict[int, Contrast]:
    """What stands at each masked place: `of`, or the most probable sub-word; logits: (ids, vocab_size)."""
    contrasts = {}
    for index, (_, span) in enumerate(read.spans):
        if span.start not in read.masked:
            continue
        row = logits[span.start]
        masked = _Place(subject, read.ids, span, is_masked=True)
        right = int(row.argmax()) if of is None else masked.first_id(of)
        word = continued(subject.tokenizer, masked.before, right)
        others = masked.against(word, right, row, instead_of)
        contrasts[index] = Contrast(
            word=word,
            others=masked.named(others, instead_of),
            of=right,
            instead_of=others,
            source=tuple(read.ids),
            written=(),
            source_words=tuple(read.spans),
            written_words=(),
            place=index,
            at=span.start,
        )
    if not contrasts:
        raise ArgumentError(
            f"no word of the text is masked; write {subject.tokenizer.mask_token} for one, or name one of its words"
        )
    return contrasts


@dataclass(frozen=True, eq=False)
class _Place:
    """The place of a word, and the ids that others have there.

    Args:
        ids: of the text that the word is in.
        span: the indices of its own.
        is_masked: whether it is a masked word, which is one id.
    """

    subject: Pretrained
    ids: Sequence[int]
    span: range
    is_masked: bool = False

    @property
    def before(self) -> Sequence[int]:
        return self.ids[: self.span.start]

    def first_id(self, word: str) -> int:
        """The first id of another word; of a masked one its only id."""
        old = self.ids[self.span.start : self.span.stop]
        ids = ids_of_word(self.subject.tokenizer, self.before, old, word)
        if self.is_masked and len(ids) > 1:
            raise ArgumentError(
                f"{word!r} has {len(ids)} sub-words, and a mask stands for one; name another word"
            )
        return ids[0]

    def against(
        self, word: str, right: int, logits: torch.Tensor, instead_of: Sequence[str]
    ) -> tuple[int, ...]:
        """The first ids of the other words; by default those of the most probable ones."""
        others = tuple(map(self.first_id, instead_of))
        others = others or most_probable(self.subject, logits, right)
        if right in others or len(set(others)) < len(others):
            raise ArgumentError(
                f"{word!r} and {', '.join(instead_of)} begin with the same sub-word; name other words"
            )
        return others

    def named(self, others: Sequence[int], instead_of: Sequence[str]) -> tuple[str, ...]:
        """The other words."""
        if instead_of:
            return tuple(instead_of)
        return tuple(continued(self.subject.tokenizer, self.before, other) for other in others)


def _of_class(
    subject: Pretrained,
    read: PretrainedText,
    logits: torch.Tensor,
    of: str | None,
    instead_of: Sequence[str],
) -> Contrast:
    names = subject.model.config.id2label
    right = int(logits.argmax()) if of is None else subject.class_of(of)
    others = [subject.class_of(name) for name in instead_of]
    if not others:
        others = [number for number in range(len(logits)) if number != right]
    return Contrast(
        word=str(names[right]),
        others=tuple(str(names[other]) for other in others),
        of=right,
        instead_of=tuple(others),
        source=tuple(read.ids),
        written=(),
        source_words=tuple(read.spans),
        written_words=(),
        place=0,
    )


def pretrained_relevance(
    model: Any,
    tokenizer: Any,
    text: str,
    of: str | None = None,
    instead_of: Sequence[str] = (),
    lens: Lens = DEFAULT,
    *,
    place: int | None = None,
    written: str | None = None,
    head: tuple[int, int] | None = None,
    steps: int | None = None,
) -> Relevance:
    """`relevance` for a model of transformers: what a chosen word, or a class, depends on.

    Args:
        model, tokenizer: a model with a head, and its tokenizer; it is attached for this call if it is not.
        text, of, instead_of, place, written: as for `contrasts_of`; by default the last word that the model chose.
        lens, head, steps: as for `relevance`.

    Raises:
        ArgumentError, UnsupportedError: as `contrasts_of` and `relevance`.
    """
    check_options(lens, head, steps)
    with attached(model):
        subject = Pretrained(model, tokenizer)
        contrasts = contrasts_of(subject, text, of, instead_of, place=place, written=written)
        if not contrasts:
            raise ArgumentError(
                "the text has one word, before which nothing was read; give a longer text"
            )
        last = contrasts[max(contrasts)]
        return explain_contrasts(subject, tokenizer, [last], lens, head=head, steps=steps)[0]


@torch.no_grad()
def pretrained_without_each(
    subject: Pretrained, text: PretrainedText, most: int
) -> dict[int | None, Changed]:
    """What the model does with a text as it is (None), and without each of its first words, by their index.

    An erased word keeps its place and has the mean embedding of the text's words.

    Raises:
        UnsupportedError: a model whose embeddings or vectors are not those of the ids.
    """
    places = [None, *text.words[:most]]
    speller = Speller(partial(continued, text.tokenizer))
    with in_eval_mode(subject):
        if text.target is None and text.follows == "words":
            read = ReadText(
                text.ids, text.spans, lambda erased: subject(*_rows(subject, text, erased)), speller
            )
            return dict(zip(places, next_words(read, places), strict=True))

        nothing = torch.zeros(1, len(text.ids), dtype=torch.bool)
        unchanged = _followed(subject, text, nothing)[0]
        numbers = unchanged.shape[-1] * max(len(text.ids), len(unchanged))
        changes: list[Changed] = []
        for _, is_erased in without(text.spans, places, numbers):
            rows = _followed(subject, text, is_erased)
            if text.follows == "vectors":
                changes += _moved_vectors(rows, unchanged)
            elif text.target is None:
                changes += _changed_masks(text, rows, unchanged, speller)
            else:
                spans = spans_of(text.tokenizer, text.target)
                written = WrittenText(text.target, spans, speller)
                translations = [()] * len(rows)
                if text.own:
                    translations = _rewritten(subject, text, is_erased)
                changes += map(written.changed, rows, translations)
    return dict(zip(places, changes, strict=True))


def _moved_vectors(rows: torch.Tensor, unchanged: torch.Tensor) -> list[Changed]:
    """How the vectors of words move: (rows, words, dim), and those of the text as it is (words, dim)."""
    similar = F.cosine_similarity(rows, unchanged, dim=-1).clamp(-1, 1)
    return [Changed((), (), similarities=tuple(row)) for row in similar.tolist()]


def _changed_masks(
    text: PretrainedText, rows: torch.Tensor, unchanged: torch.Tensor, speller: Speller
) -> list[Changed]:
    """What stands at masked places now; `rows` and `unchanged` as `_followed` returns them."""
    best = unchanged.argmax(-1).expand(len(rows), -1)[..., None]
    probabilities = rows.gather(2, best)[..., 0].exp().tolist()
    changes = []
    for row, of_row in zip(rows, probabilities, strict=True):
        likeliest = []
        for log_probs, at in zip(row, text.masked, strict=True):
            likeliest.append(speller.likeliest(log_probs, text.ids[:at]))
        changes.append(Changed(tuple(of_row), tuple(likeliest)))
    return changes


def _rows(subject: Pretrained, read: PretrainedText, erased: torch.Tensor) -> tuple[Sides, Sides]:
    """Ids and vectors of rows, in each of which some ids are erased, bool (rows, n)."""
    (side, *_) = subject.sides
    device = subject.model.device
    ids = torch.tensor([read.ids], device=device)
    table = subject.tables()[side]
    mean = baseline(ids, table, subject.special)
    vectors = {side: torch.where(erased.to(device)[..., None], mean, table[ids])}
    sides = {side: ids.expand(len(erased), -1)}
    if read.target is not None:
        target = torch.tensor([[subject.start, *read.target[:-1]]], device=device)
        sides["written"] = target.expand(len(erased), -1)
    return sides, vectors


def _followed(subject: Pretrained, read: PretrainedText, erased: torch.Tensor) -> torch.Tensor:
    """What is followed, float32 on the CPU, for each row of erased ids (rows, n).

    Vectors of words (rows, words, dim), which are means over their ids; or log-probabilities (rows, places, vocab_size)
    of masked words, or of the ids that were written.
    """
    ids, vectors = _rows(subject, read, erased)
    if read.follows != "vectors":
        logits = subject(ids, vectors)
        if read.target is None:
            logits = logits[:, read.masked]
        return logits.float().log_softmax(-1).cpu()

    output = subject.output(ids, vectors, output_hidden_states=True)
    states = output.get("last_hidden_state")
    if states is None:
        states = output.hidden_states[-1]
    if states.shape[:2] != erased.shape:
        raise UnsupportedError(
            f"{type(subject.model).__name__} makes vectors {tuple(states.shape)} of {tuple(erased.shape)} ids, so they "
            f"are not those of the words"
        )
    states = states.float().cpu()
    return torch.stack([states[:, span.start : span.stop].mean(1) for _, span in read.spans], 1)


def _rewritten(
    subject: Pretrained, read: PretrainedText, erased: torch.Tensor
) -> list[tuple[str, ...]]:
    """The words that an encoder-decoder writes by greedy search; at most twice as many ids as before, and 16."""
    most = 2 * len(read.target or []) + 16
    encoded = subject.encoded(*_rows(subject, read, erased))
    special = set(read.tokenizer.all_special_ids)
    translations = []
    for ids in generated(subject.model, most, **encoded)[:, 1:].tolist():
        written = [identifier for identifier in ids if identifier not in special]
        translations.append(tuple(word for word, _ in spans_of(read.tokenizer, written)))
    return translations
