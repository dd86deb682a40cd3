"""Models of transformers as lenses, `ablate` and What if read them: next and masked words, classes, translations."""

import re
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from regard.arguments import shown, suggest
from regard.errors import ArgumentError, UnsupportedError
from regard.integrations.transformers.attaching import attach, attached
from regard.integrations.transformers.modules import attention_modules
from regard.integrations.transformers.watching import intervene, observe
from regard_lab.seeing.lenses import Contrast, Relevance, explain_contrasts
from regard_lab.seeing.lenses.contrast import (
    IDS_AT_ONCE,
    Asked,
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
    named_likeliest,
    next_words,
    with_written,
    without,
)
from regard_lab.seeing.lenses.explaining import DEFAULT, Lens, check_options
from regard_lab.seeing.transformers.texts import (
    PretrainedText,
    continued,
    generated,
    ids_of_word,
    signs,
    spans_of,
)
from regard_lab.seeing.watching import in_eval_mode

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
        self.model, self.tokenizer = attach(model), tokenizer
        self.special = (*sorted(signs(tokenizer)),)
        self.translates = bool(getattr(model.config, "is_encoder_decoder", False))
        counted: dict[str, int] = {}
        self.layers: dict[str, tuple[str, int]] = {}
        for name in attention_modules(model):
            kind = kind_of(name) if self.translates else "self"
            self.layers[name] = kind, counted.setdefault(kind, 0)
            counted[kind] += 1

    def read(self, text: str) -> PretrainedText:
        """A text as the model reads it."""
        return PretrainedText.of(self.model, self.tokenizer, text)

    @property
    def writes(self) -> bool:
        """Whether a word is chosen after the words before it."""
        return self.model.can_generate() and not self.translates

    def tables(self) -> Sides:
        embedding = self.model.get_input_embeddings()
        table = embedding.weight.detach()
        if type(embedding) is not torch.nn.Embedding:  # such as one that scales
            table = embedding(torch.arange(len(table), device=table.device)).detach()
        sides = (
            ("source", "written")
            if self.translates
            else ("written",)
            if self.writes
            else ("source",)
        )
        return dict.fromkeys(sides, table)

    @property
    def ids_at_once(self) -> int:
        head = self.model.get_output_embeddings()
        return (
            IDS_AT_ONCE
            if head is None
            else min(IDS_AT_ONCE, max(1, NUMBERS_AT_ONCE // len(head.weight)))
        )

    def forward(self, ids: Sides, vectors: Sides | None = None) -> torch.Tensor:
        return self._logits(self.output(ids, vectors))

    def output(self, ids: Sides, vectors: Sides | None = None, **options: Any) -> Any:
        vectors = {} if vectors is None else vectors
        if not self.translates:
            (side,) = ids
            with self._reading(self.model, vectors.get(side)):
                return self.model(
                    input_ids=ids[side], attention_mask=torch.ones_like(ids[side]), **options
                )
        encoded = self.encoded(ids, vectors)
        with self._reading(self.model.get_decoder(), vectors.get("written")):
            return self.model(**encoded, decoder_input_ids=ids["written"], **options)

    def encoded(self, ids: Sides, vectors: Sides) -> dict[str, Any]:
        """What a decoder reads of the source: the states of the encoder, and a mask without padding."""
        mask = torch.ones_like(ids["source"])
        encoder = self.model.get_encoder()
        with self._reading(encoder, vectors.get("source")):
            return {
                "encoder_outputs": encoder(input_ids=ids["source"], attention_mask=mask),
                "attention_mask": mask,
            }

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
        calls: list[torch.Size] = []

        def other(
            _: torch.nn.Module, given: tuple[torch.Tensor], output: torch.Tensor
        ) -> torch.Tensor:
            calls.append(output.shape)
            return vectors.to(output) if output.shape == vectors.shape else output

        handle = part.get_input_embeddings().register_forward_hook(other)
        try:
            yield
        finally:
            handle.remove()
        if vectors.shape not in calls:
            embeds = (
                f"embeds {tuple(calls[0][:-1])} ids where it gets {tuple(vectors.shape[:-1])}"
                if calls
                else ""
            )
            raise UnsupportedError(
                f"{type(self.model).__name__} {embeds or 'does not call its input embeddings'}"
            )

    def weights(self, ids: Sides) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        check_weights(self.model)
        with observe(self.model, "weights") as observed:
            self.output(ids)
        found: dict[str, list[torch.Tensor]] = {}
        for call in observed.calls:
            found.setdefault(self.layers[call.layer][0], []).append(call.weights.float().cpu())
        none = torch.zeros(0, len(next(iter(ids.values()))), 0, 0, 0)
        if not self.translates:
            own = torch.stack(found["self"])
            return (none, own, none) if self.writes else (own, none, none)
        encoder, decoder, cross = (
            torch.stack(found[kind]) for kind in ("encoder", "decoder", "cross")
        )
        return encoder, decoder, cross

    @contextmanager
    def changing(
        self, change: Callable[[tuple[str, int], torch.Tensor], torch.Tensor]
    ) -> Generator[None]:
        if not self.layers:
            raise UnsupportedError(
                f"no layer of {type(self.model).__name__} has heads of attention, so none can be replaced"
            )

        def swapped(name: str, output: torch.Tensor) -> torch.Tensor:
            if name not in self.layers:  # a recurrent layer
                return output
            return change(self.layers[name], output.transpose(1, 2)).transpose(1, 2)

        with intervene(self.model, swapped):
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
        names = {str(name).lower(): at for at, name in self.model.config.id2label.items()}
        if str(label).lower() not in names and label not in names.values():
            raise ArgumentError(
                f"there is no class {shown(label)}; {suggest(str(label).lower(), names)}"
            )
        return names.get(str(label).lower(), label)


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
    read = subject.read(text)
    writes = subject.translates or subject.writes
    with in_eval_mode(subject):
        if not writes and of is not None and read.fills_in and not read.masked:
            at = place_of([word for word, _ in read.spans], of, place)
            of = read.spans[at][0]
            read = read.with_ids(at, [subject.mask])
            read = replace(read, spans=spans_of(subject.tokenizer, read.ids))
        ids, spans = read.ids, read.spans
        sides = {"written" if writes else "source": ids}
        if subject.translates:
            read = read.writing(written)
            ids = [*(read.target or [])]
            spans = spans_of(subject.tokenizer, ids)
            sides = {"source": read.ids, "written": [subject.start, *ids[:-1]]}
        device = subject.model.device
        rows = subject({side: torch.tensor([one], device=device) for side, one in sides.items()})[0]
    if rows.dim() == 1:
        return {0: _of_class(subject, read, rows, of, instead_of)}
    if writes:
        chosen = (
            range(len(spans)) if of is None else [place_of([word for word, _ in spans], of, place)]
        )
        rows = rows if subject.translates else rows.roll(1, 0)  # the row that chose each id
    elif not (chosen := [at for at, (_, one) in enumerate(spans) if one.start in read.masked]):
        raise ArgumentError(
            f"no word of the text is masked; write {subject.tokenizer.mask_token} for one, or name one of its words"
        )
    begin = [("<begin>", range(1))] if subject.translates else []
    shift = len(begin)
    found = {}
    for at in chosen:
        word, span = spans[at]
        before = ids[: span.start]
        if writes and not before and not begin:
            continue  # nothing was read before it
        id_of = partial(
            _first_id, subject.tokenizer, before, ids[span.start : span.stop], not writes
        )
        right = ids[span.start]
        if not writes:
            right = int(rows[span.start].argmax()) if of is None else id_of(of)
            word = continued(subject.tokenizer, before, right)
        others = tuple(map(id_of, instead_of)) or most_probable(subject, rows[span.start], right)
        if right in others or len({*others}) < len(others):
            raise ArgumentError(
                f"{word!r} and {', '.join(instead_of)} begin with the same sub-word; name other words"
            )
        past = [(one, range(ids.start + shift, ids.stop + shift)) for one, ids in spans[:at]]
        found[at] = Contrast(
            word=word,
            others=tuple(instead_of)
            or tuple(continued(subject.tokenizer, before, one) for one in others),
            of=right,
            instead_of=others,
            source=tuple(sides.get("source", ())),
            written=tuple(sides["written"][: span.start + shift]) if writes else (),
            source_words=tuple(read.spans) if "source" in sides else (),
            written_words=(*begin, *past) if writes else (),
            place=at,
            at=None if writes else span.start,
        )
    return found


def _first_id(
    tokenizer: Any, before: Sequence[int], old: Sequence[int], masked: bool, word: str
) -> int:
    """The first id of a word in the place of an old one; for a masked word, which is one id, its only one."""
    ids = ids_of_word(tokenizer, before, old, word)
    if masked and len(ids) > 1:
        raise ArgumentError(
            f"{word!r} has {len(ids)} sub-words, and a mask stands for one; name another word"
        )
    return ids[0]


def _of_class(
    subject: Pretrained,
    read: PretrainedText,
    logits: torch.Tensor,
    of: str | None,
    instead_of: Sequence[str],
) -> Contrast:
    names = subject.model.config.id2label
    right = int(logits.argmax()) if of is None else subject.class_of(of)
    others = [subject.class_of(one) for one in instead_of] or [
        one for one in range(len(logits)) if one != right
    ]
    return Contrast(
        word=str(names[right]),
        others=tuple(str(names[one]) for one in others),
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
        return explain_contrasts(
            subject, tokenizer, [contrasts[max(contrasts)]], lens, head=head, steps=steps
        )[0]


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
    spell = partial(continued, text.tokenizer)
    found = []
    named = {}
    with in_eval_mode(subject):
        if text.target is None and text.follows == "words":
            logits = lambda erased: subject(*_rows(subject, text, erased))  # noqa: E731
            return dict(
                zip(
                    places,
                    next_words(ReadText(text.ids, text.spans, logits, spell), places),
                    strict=True,
                )
            )
        own = _followed(subject, text, torch.zeros(1, len(text.ids), dtype=torch.bool))[0]
        for _, erased in without(text.spans, places, own.shape[-1] * max(len(text.ids), len(own))):
            rows = _followed(subject, text, erased)
            if text.follows == "vectors":
                similar = F.cosine_similarity(rows, own, dim=-1).clamp(-1, 1)
                found += [Changed((), (), similarities=tuple(row)) for row in similar.tolist()]
            elif text.target is None:
                chances = (
                    rows.gather(2, own.argmax(-1).expand(len(rows), -1)[..., None])[..., 0]
                    .exp()
                    .tolist()
                )
                for row, chance in zip(rows, chances, strict=True):
                    best = zip(row, text.masked, strict=True)
                    likeliest = tuple(
                        named_likeliest(one, text.ids[:at], spell, named) for one, at in best
                    )
                    found.append(Changed(tuple(chance), likeliest))
            else:
                spans = spans_of(text.tokenizer, text.target)
                written = _rewritten(subject, text, erased) if text.own else [()] * len(rows)
                found += [
                    with_written(row, text.target, spans, spell, words, named)
                    for row, words in zip(rows, written, strict=True)
                ]
    return dict(zip(places, found, strict=True))


def _rows(subject: Pretrained, read: PretrainedText, erased: torch.Tensor) -> tuple[Sides, Sides]:
    """Ids and vectors of rows, in each of which some ids are erased, bool (rows, n)."""
    side = "written" if subject.writes else "source"
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
        return (
            (logits if read.target is not None else logits[:, read.masked])
            .float()
            .log_softmax(-1)
            .cpu()
        )
    output = subject.output(ids, vectors, output_hidden_states=True)
    states = output.get("last_hidden_state")
    states = output.hidden_states[-1] if states is None else states
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
    rows = generated(subject.model, most, **subject.encoded(*_rows(subject, read, erased)))[
        :, 1:
    ].tolist()
    special = {*read.tokenizer.all_special_ids}
    kept = [[one for one in ids if one not in special] for ids in rows]
    return [tuple(word for word, _ in spans_of(read.tokenizer, ids)) for ids in kept]
