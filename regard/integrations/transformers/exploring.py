"""The attention of a model of transformers as the explorer shows it: loaded, recorded by `observe`, between words."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel

from regard.arguments import a_list, a_path, a_string, count_of, kind_of, of_kind, whole
from regard.errors import ArgumentError, CheckpointError, NotFoundError, UnsupportedError
from regard.inspection.explorer import Attention, Exploration
from regard.inspection.watching import Span, in_eval_mode, merge
from regard.integrations.transformers.attaching import NAME, attach, detach, models_inside
from regard.integrations.transformers.attending import attention_modules
from regard.integrations.transformers.watching import Observed, ObservedCall, layer_names, observe

__all__ = ["explore_observed", "explore_pretrained", "load_folder"]

MOST_WEIGHTS = 2**28  # of all layers and heads; 1 GiB as float32
MOST_WRITTEN = 200  # ids that an encoder-decoder writes
CROSS = re.compile(r"cross|encdec|encoder_(decoder_)?att", re.IGNORECASE)
CONTEXT = 8  # ids before one, which decide how it is written


def explore_observed(
    observed: Observed,
    words: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    *,
    batch_row: int = 0,
    title: str = "",
) -> Exploration:
    """Weights that `observe` collected as an exploration, which `regard.inspection.show` makes a page of.

    Calls of modules whose names differ in numbers alone, with weights of one shape, are the layers of one kind of
    attention. Works for every model that can be observed; `explore_pretrained` also finds the words of a text.

    Args:
        observed: what `observe(model, "weights")` collected in one forward pass.
        words: a word for each query, where the number fits; positions elsewhere.
        keys: a word for each key of attention between two sequences.
        batch_row: the row of the batch that is shown.
        title: a line above the page.

    Raises:
        RegardError: weights were not among what was collected.
        ArgumentError: no such batch row, or words that fit no attention.

    >>> import transformers
    >>> from regard.inspection import show
    >>> config = transformers.GPT2Config(vocab_size=9, n_embd=8, n_layer=2, n_head=2, n_positions=16)
    >>> model = attach(transformers.GPT2Model(config))
    >>> with observe(model, "weights") as observed:
    ...     output = model(torch.tensor([[1, 2, 3]]))
    >>> exploration = explore_observed(observed, ["a", "b", "c"])
    >>> exploration.attentions[0].weights.shape, exploration.texts
    (torch.Size([2, 2, 3, 3]), {'text': ('a', 'b', 'c')})
    >>> page = show(exploration)
    """
    groups = _stacked(of_kind("observed", observed, Observed, "what observe(model, 'weights') collected"), batch_row)
    listed = [tuple(a_list(n, w, str, "a list of words")) if w is not None else None
              for n, w in (("words", words), ("keys", keys))]  # fmt: skip
    texts: dict[str, tuple[str, ...]] = {}
    attentions = []
    for name, weights in groups:
        q_len, k_len = weights.shape[2:]
        rows = _text(texts, "text", listed[0], q_len)
        columns = rows if q_len == k_len and not CROSS.search(name) else _text(texts, "keys", listed[1], k_len)
        attentions.append(_attention(name if len(groups) > 1 else "Attention", rows, columns, weights))
    for name, given in zip(("words", "keys"), listed, strict=True):
        if given is not None and given not in texts.values():
            sizes = ", ".join(f"{q} x {k}" for q, k in sorted({tuple(w.shape[2:]) for _, w in groups}))
            raise ArgumentError(f"{name} has {len(given)} words, which fits no attention that was observed: {sizes}")
    return Exploration(title or f"Attention of {observed.model}", texts, tuple(attentions), {})


def explore_pretrained(
    model: PreTrainedModel,
    tokenizer: Any,
    text: str,
    written: str | None = None,
    *,
    layers: Iterable[str | int] | str | int | None = None,
    title: str = "",
) -> Exploration:
    """Record all attention weights of a model of transformers on a text, between words.

    An encoder-decoder reads `text` and writes; others read `text`. A model that is not attached is attached for this
    call alone. Sub-words are merged: the sum over those that are read, the mean over those that read.

    Args:
        model: a model of transformers; it is left unchanged.
        tokenizer: its tokenizer.
        text: the text that is read.
        written: what an encoder-decoder writes; by default, what it generates by greedy search.
        layers: numbers or names of attention modules, as for `observe`; all by default.
        title: a line above the page.

    Returns:
        The exploration, which `regard.inspection.show` makes a page of.

    Raises:
        UnsupportedError: a model that cannot be attached.
        ArgumentError: `written` for a model that reads alone, an empty text, one that is too long for the model, or
            more weights than 2^28.
    """
    models = models_inside(model)  # refuses everything else
    text = a_string("text", text)
    if not callable(tokenizer) or not hasattr(tokenizer, "decode"):
        raise ArgumentError(
            f"tokenizer is {kind_of(tokenizer)}; give the model's own, AutoTokenizer.from_pretrained(…)"
        )
    translates = bool(getattr(model.config, "is_encoder_decoder", False))
    if written is not None and not translates:
        raise ArgumentError(f"{type(model).__name__} reads one text and writes none; leave out written=")
    inputs = dict(tokenizer(text, return_tensors="pt").to(model.device))
    source = inputs["input_ids"][0].tolist()
    if not source:
        raise ArgumentError(f"the text {text[:40]!r} has no ids of this tokenizer; give another")
    _check_size(model, layers, len(source))
    with in_eval_mode(model), _attached(model, models), torch.no_grad():
        target = _written_ids(model, tokenizer, inputs, written) if translates else None
        if target is not None:
            inputs["labels"] = torch.tensor([target], device=model.device)
            _check_size(model, layers, max(len(source), len(target)))
        with observe(model, "weights", layers=layers) as observed:
            model(**inputs)
    if target is None:
        return _of_text(observed, tokenizer, source, title or text)
    return _of_translation(observed, tokenizer, source, target, title or text)


def _of_text(observed: Observed, tokenizer: Any, ids: list[int], title: str) -> Exploration:
    spans = _spans(tokenizer, ids)
    texts = {"text": tuple(word for word, _ in spans)}
    groups = _stacked(observed, 0)
    attentions = []
    for name, weights in groups:
        name = "Self-attention" if len(groups) == 1 else name
        if weights.shape[2:] == (len(ids), len(ids)):
            attentions.append(_attention(name, "text", "text", merge(weights, spans, spans)))
        else:  # such as patches of a picture
            rows, columns = (_text(texts, "positions", None, count) for count in weights.shape[2:])
            attentions.append(_attention(name, rows, columns, weights))
    return Exploration(title, texts, tuple(attentions), {})


def _of_translation(
    observed: Observed, tokenizer: Any, source_ids: list[int], target_ids: list[int], title: str
) -> Exploration:
    source, target = _spans(tokenizer, source_ids), _spans(tokenizer, target_ids)
    read: list[Span] = [("<begin>", range(1))]  # the target one place later, without its last id
    for word, places in target:
        if kept := range(places.start + 1, min(places.stop + 1, len(target_ids))):
            read.append((word, kept))
    sides = {"source": source, "target": target, "read": read}
    texts = {name: tuple(word for word, _ in spans) for name, spans in sides.items()}
    attentions: list[Attention] = []
    groups = _stacked(observed, 0)
    for name, weights in groups:
        if "decoder" not in name:
            rows, columns, kind = "source", "source", "Encoder self-attention"
        elif CROSS.search(name):
            rows, columns, kind = "target", "source", "Cross-attention"
        else:
            rows, columns, kind = "target", "read", "Decoder self-attention"
        merged = merge(weights, sides[rows], sides[columns])
        kind = kind if kind not in {one.name for one in attentions} else f"{kind}: {name}"
        reads = {"source": "source words read", "read": "written words read"}[columns]
        does = "word written" if rows == "target" else "word reading"
        attentions.append(Attention(kind, rows, columns, merged, does, reads, unwritten=columns == "read"))
    attentions.sort(key=lambda one: not one.name.startswith("Cross"))
    return Exploration(title, texts, tuple(attentions), {})


def _written_ids(model: Any, tokenizer: Any, inputs: dict[str, Any], written: str | None) -> list[int]:
    if written is not None:
        ids = tokenizer(text_target=a_string("written", written))["input_ids"]
    elif not hasattr(model, "generate") or not model.can_generate():
        raise ArgumentError(
            f"{type(model).__name__} has no head that writes; give a model that has one, such as "
            f"AutoModelForSeq2SeqLM.from_pretrained(…)"
        )
    else:
        ids = model.generate(**inputs, max_new_tokens=MOST_WRITTEN, do_sample=False, num_beams=1)[0, 1:].tolist()
    if not ids:
        raise ArgumentError("the model wrote nothing, so there is nothing to show; give written=")
    return ids


def _stacked(observed: Observed, batch_row: int) -> list[tuple[str, torch.Tensor]]:
    """The name of each kind of attention, with its weights: (layers, heads, queries, keys), float32 on the CPU."""
    groups: dict[Any, tuple[str, list[torch.Tensor]]] = {}
    for call in observed.calls:
        weights = _row(call, whole("batch_row", batch_row, 0))
        alike = re.sub(r"\d+", "#", call.layer)
        groups.setdefault((alike, weights.shape), (alike, []))[1].append(weights)
    return [(name, torch.stack(layers)) for name, layers in groups.values()]


def _row(call: ObservedCall, batch_row: int) -> torch.Tensor:
    weights: torch.Tensor = call.weights
    if batch_row >= len(weights):
        raise ArgumentError(f"batch_row is {batch_row}; {call.layer} was called with {count_of(len(weights), 'rows')}")
    return weights[batch_row].detach().float().cpu()


def _text(texts: dict[str, tuple[str, ...]], name: str, words: tuple[str, ...] | None, count: int) -> str:
    """The name of a text of so many words, or positions if the words are not as many; it is added if it is new."""
    wanted = words if words is not None and len(words) == count else tuple(map(str, range(count)))
    label = name
    while texts.setdefault(label, wanted) != wanted:
        label = f"{label}, {count}" if "," not in label else f"{label}'"
    return label


def _attention(name: str, rows: str, columns: str, weights: torch.Tensor) -> Attention:
    causal = rows == columns and not bool(weights.triu(1).any())
    titles = ("word reading", "words read") if rows == columns else ("query", "key")
    return Attention(name, rows, columns, weights, *titles, unwritten=causal)


def _spans(tokenizer: Any, ids: list[int]) -> list[Span]:
    """Words with the indices of their ids; pieces belong to one word if letters meet where they touch.

    Only `decode` is used, so that tokenizers of every kind are read alike.
    """
    special = {*tokenizer.all_special_ids}
    spans: list[tuple[int, int]] = []  # first index, index after the last
    for place, number in enumerate(ids):
        run = ids[max(0, place - CONTEXT) : place]
        run = run[max((at + 1 for at, one in enumerate(run) if one in special), default=0) :]
        before, after = _decoded(tokenizer, run), _decoded(tokenizer, [*run, number])
        if run and number not in special and _belongs(before, after):
            spans[-1] = (spans[-1][0], place + 1)
        else:
            spans.append((place, place + 1))
    words = []
    for start, stop in spans:
        word = _decoded(tokenizer, ids[start:stop]).strip() or str(tokenizer.convert_ids_to_tokens(ids[start]))
        words.append((word, range(start, stop)))
    return words


def _decoded(tokenizer: Any, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


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


def _check_size(model: PreTrainedModel, layers: Any, length: int) -> None:
    config = model.config.get_text_config()
    longest = getattr(config, "max_position_embeddings", None)
    if isinstance(longest, int) and length > longest > 0:
        raise ArgumentError(
            f"the text has {length:,} ids, and {type(model).__name__} reads at most {longest:,}; shorten it"
        )
    heads = getattr(config, "num_attention_heads", 1) or 1
    count = len(layer_names(model, layers) if layers is not None else attention_modules(model))
    count = max(count, 0 if layers is not None else getattr(config, "num_hidden_layers", 0))
    if (total := count * heads * length**2) > MOST_WEIGHTS:
        raise ArgumentError(
            f"{count_of(count, 'layers')} of {heads} heads over {length} ids have {total:,} weights, and a page is "
            f"made of at most {MOST_WEIGHTS:,}; choose layers=, give a shorter text, or see regard.inspection.explorer."
            f"stream_head for one head of a long text"
        )


@contextmanager
def _attached(model: PreTrainedModel, models: list[PreTrainedModel]) -> Generator[None]:
    """The model attached, and given back its own attention afterwards if it was not."""
    if any(part.config._attn_implementation == NAME for part in models):
        yield
        return
    attach(model)
    try:
        yield
    finally:
        detach(model)


def load_folder(folder: str | Path) -> tuple[PreTrainedModel, Any]:
    """Load a model in eval mode, and its tokenizer, from a folder in the format of Hugging Face.

    Only files of the folder are read: no network, no code of the folder, and weights as safetensors alone.

    Raises:
        NotFoundError: no folder, or one without a tokenizer.
        UnsupportedError: a class that this version of transformers does not have.
        CheckpointError: the weights cannot be read.

    >>> load_folder("nowhere")
    Traceback (most recent call last):
    regard.errors.NotFoundError: nowhere is not a folder; give one with config.json, weights and a tokenizer
    """
    folder = a_path("folder", folder)
    if not folder.is_dir():
        raise NotFoundError(f"{folder} is not a folder; give one with config.json, weights and a tokenizer")
    own: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        config = AutoConfig.from_pretrained(folder, **own)
    except (OSError, ValueError, KeyError) as error:
        raise UnsupportedError(f"{folder} has no config that transformers can read: {_first(error)}") from error
    named = (config.architectures or [None])[0]
    kind = getattr(transformers, named, None) if named else transformers.AutoModel
    if kind is None:
        raise UnsupportedError(f"{folder} holds a {named}, which transformers {transformers.__version__} does not have")
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, **own)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise NotFoundError(f"{folder} has no tokenizer that transformers can read: {_first(error)}") from error
    try:
        model = kind.from_pretrained(folder, use_safetensors=True, **own)
    except (OSError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"the weights in {folder} cannot be read: {_first(error)}") from error
    return model.eval(), tokenizer


def _first(error: Exception) -> str:
    """The first line of a message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
