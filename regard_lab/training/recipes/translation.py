"""`regard train translation` from Python: settings, data, one tokeniser, a translator, and its task.

TranslationTraining.of("run", {"data": ("pairs.tsv",)}).train("run")
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress, islice
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F

from regard.arguments import count_of, one_of
from regard.errors import ArgumentError, UnsupportedError
from regard.reprs import Described, brief
from regard_lab.decoding import Translation, Translator
from regard_lab.decoding.lines import share_of_work
from regard_lab.decoding.loading import WORDS_FILE
from regard_lab.decoding.protecting import FRAGILE_KINDS
from regard_lab.models import RecurrentTranslator, TranslationTransformer
from regard_lab.models.ctranslate import reason_against
from regard_lab.models.kinds import TranslationModel, translation_model
from regard_lab.models.recurrent import RecurrentConfig
from regard_lab.models.translation_transformer import TranslationConfig
from regard_lab.seeing import draw_maps, look
from regard_lab.text import BEGIN, END, PAD, Pair, Tokeniser
from regard_lab.text.batches import (
    EncodedPair,
    TokenBatches,
    TranslationBatch,
    batches_in_order,
    encode_pairs,
    make_batch,
    parts_of_rows,
)
from regard_lab.text.cleaning import tidy, tidy_target
from regard_lab.text.placeholders import find_placeholders
from regard_lab.text.pronouns import PRONOUNS as GERMAN_PRONOUNS
from regard_lab.text.remarks import Tell, silent
from regard_lab.text.translation_data import PRONOUNS, TranslationData, load_translation_data
from regard_lab.text.vocabularies import SPECIALS
from regard_lab.training.config import CHOSEN, TrainingConfig, setting
from regard_lab.training.identity import hash_of
from regard_lab.training.loop import TrainingResult
from regard_lab.training.recipes.choosing import (
    FEW_PASSES,
    RECURRENT_TRANSLATOR,
    TRANSFORMER,
    Amount,
    ChosenSettings,
    choose,
    passes,
)
from regard_lab.training.recipes.preparation import Preparation
from regard_lab.training.recipes.recipe import SOME_PIECES, Recipe, Requested, Training
from regard_lab.training.recipes.run_config import RunConfig
from regard_lab.training.recipes.run_folder import Samples, reason_of

RECURRENT: dict[str, Any] = {
    "dim": RecurrentConfig.dim,
    "layers": RecurrentConfig.encoder_layers,
    "learning_rate": 2e-3,
    "warmup_steps": RunConfig.warmup_steps,
}
# A dot product has no matrix that could learn to compare, so the state must see what was attended to.
WITH_FEEDING: dict[str, Any] = {**RECURRENT, "learning_rate": 4e-3, "input_feeding": True}

# The models by name, with the defaults that differ from the Transformer's. What is chosen for a new run comes first.
MODELS: dict[str, dict[str, Any]] = {
    "transformer": {},
    "bahdanau": RECURRENT,
    "luong-dot": WITH_FEEDING,
    "luong-general": RECURRENT,
    "luong-concat": RECURRENT,
    "none": RECURRENT,
}
OF_THE_TRANSFORMER = (
    "attention",
    "mechanism",
    "decoder_attention",
    "cross_attention",
    "kv_heads",
    "heads",
    "norm",
    "positions",
    "gradient_checkpointing",
)
OF_THE_RECURRENT = ("cell", "reach", "window", "input_feeding")
SERVERS = ("ctranslate2",)
# Validation pairs that samples show, and the characters of a source at most.
SHOWN_PAIRS = 4
LONGEST_SHOWN = 120
LONGEST_PAIR = 256  # ids on a side of a pair that is learned from
# Placeholders are looked for in so many sources, and named where this share of them has some.
SOURCES_LOOKED_AT = 2_000
WORTH_PROTECTING = 0.05


class TranslationTraining(Recipe):
    """Train a translator on pairs of sentences, by default a Transformer.

    Args:
        config: the settings.
        tell: is handed remarks.
        data: pairs that are read already; by default those that the settings name.

    >>> config = TranslationTraining.new_config({"data": ["pronouns"], "model": "bahdanau"})
    >>> config.layers, config.learning_rate
    (1, 0.002)
    """

    COMMAND = "translation"
    DATA = f"a file of sentence pairs, or '{PRONOUNS}' for the embedded corpus"

    @brief
    @dataclass(frozen=True, kw_only=True)
    class Config(RunConfig):  # ty: ignore[incompatible-attribute-override]
        """Everything that decides the training of a translator; `new_config` has each model's own defaults.

        Args:
            data: a .tsv, .csv, .jsonl, .mo, .po, .tmx or .xliff of pairs; or given twice, two parallel files; or
                pronouns, the embedded corpus.
            valid: validation pairs; without them they are split off by a hash of the source.
            model: the model to train: transformer, bahdanau, luong-dot, luong-general, luong-concat or none.
            attention: pattern of the encoder.
            mechanism: mechanism of the encoder: softmax, linear, 'performer(features=64)', ...
            decoder_attention: pattern of the decoder, ANDed with causal.
            cross_attention: pattern from decoder to encoder.
            layers: number of layers in the encoder and in the decoder.
            norm: whether norms come before (pre) or after (post) each sub-layer.
            positions: encoding of positions.
            hidden: size inside the feed-forward, or of the recurrent states.
            cell: cell of the recurrent models.
            reach: words that Luong's attention reads: all (global), or those in a window around the same position
                (local-m) or around a predicted one (local-p).
            window: words on each side in Luong's local attention.
            input_feeding: feed Luong's attentional vector to the next step.
            label_smoothing: share of the probability that is spread over all ids.
            from_run: go on from the model of this run with other data; it decides the model and its vocabulary.
            new_pieces: with --from, pieces of the new data that are added to the vocabulary, at most; 0 for none.
            trim_vocabulary: drop sub-words that occur in the training pairs only inside longer ones, since they would
                never be learned.
            keep_placeholders: write the placeholders of a .tmx as text, such as {0}; without it they are left out.
            keep_tags: write the formatting of a .tmx as text too, such as <b>.
            all_translations: learn from each translation in a unit of a .tmx, instead of the first.
            protect: give placeholders such as {0} and %s, tags, numbers, addresses and emoji pieces of their own, and
                put them into translations as they stand.
            made_for: ctranslate2: refuse settings that CTranslate2 has no counterpart for, so that `regard export RUN
                --to ctranslate2` can write the model; the defaults suit it.
            twins: with the embedded corpus: put two sentences that differ in one adjective, and therefore in the
                pronoun, into one batch.
        """

        from_run: str | None = setting(None, option="--from", metavar="RUN")
        new_pieces: int | None = setting(None, least=0)
        model: str = setting("transformer")
        attention: str = setting(TranslationConfig.encoder_pattern, metavar="PATTERN")
        mechanism: str = setting(TranslationConfig.encoder_mechanism, metavar="NAME")
        decoder_attention: str = setting(TranslationConfig.decoder_pattern, metavar="PATTERN")
        cross_attention: str = setting(TranslationConfig.cross_pattern, metavar="PATTERN")
        layers: int = setting(3, least=1, shown=CHOSEN)
        norm: str = setting(TranslationConfig.norm, metavar="pre|post")
        positions: str = setting(
            TranslationConfig.positions, metavar="sinusoidal|learned|rotary", shown=CHOSEN
        )
        hidden: int | None = setting(None, least=2, shown="4, or 2, times dim")
        cell: str = setting(RecurrentConfig.cell, metavar="gru|lstm")
        reach: str = setting(RecurrentConfig.reach, metavar="global|local-m|local-p")
        window: int = setting(RecurrentConfig.window, least=1)
        input_feeding: bool = setting(
            RecurrentConfig.input_feeding, option="--input-feeding/--no-input-feeding"
        )
        batch_tokens: int = setting(2_048, least=16, shown=CHOSEN)
        steps: int | None = setting(10_000, least=1, shown=CHOSEN)
        warmup_steps: int = setting(TrainingConfig.warmup_steps, least=0, shown=CHOSEN)
        schedule: str = setting(TrainingConfig.schedule, shown=CHOSEN)
        weight_decay: float = setting(TrainingConfig.weight_decay, least=0)
        label_smoothing: float = setting(0.1, shown=CHOSEN)
        trim_vocabulary: bool = setting(True, option="--trim-vocabulary/--no-trim-vocabulary")
        keep_placeholders: bool = setting(False)
        keep_tags: bool = setting(False)
        all_translations: bool = setting(False)
        protect: bool = setting(False)
        made_for: str | None = setting(None, option="--for", metavar="ctranslate2")
        twins: bool = setting(False)

        def __post_init__(self) -> None:
            super().__post_init__()
            check_model(self.model)
            if self.made_for is not None:
                one_of("--for", self.made_for, SERVERS)

        def model_config(self, vocab_size: int) -> TranslationConfig | RecurrentConfig:
            sizes: dict[str, Any] = {
                "vocab_size": vocab_size,
                "dim": self.dim,
                "dropout": self.dropout,
                "encoder_layers": self.layers,
                "decoder_layers": self.layers,
            }
            if self.model != "transformer":
                return RecurrentConfig(
                    **sizes,
                    hidden=self.hidden or 2 * self.dim,
                    cell=self.cell,
                    attention=self.model,
                    reach=self.reach,
                    window=self.window,
                    input_feeding=self.input_feeding,
                )
            return TranslationConfig(
                **sizes,
                hidden_dim=self.hidden or 4 * self.dim,
                heads=self.heads,
                norm=self.norm,
                positions=self.positions,
                gradient_checkpointing=self.gradient_checkpointing,
                encoder_kv_heads=self.kv_heads,
                decoder_kv_heads=self.kv_heads,
                cross_kv_heads=self.kv_heads,
                encoder_pattern=self.attention,
                encoder_mechanism=self.mechanism,
                decoder_pattern=self.decoder_attention,
                cross_pattern=self.cross_attention,
            )

        def new_model(self, vocab_size: int) -> TranslationModel:
            """The model, its weights drawn from torch's generator."""
            config = self.model_config(vocab_size)
            if isinstance(config, RecurrentConfig):
                return RecurrentTranslator(config)
            return TranslationTransformer(config)

        def new_tokeniser(
            self, sources: list[str], targets: list[str], preparation: Preparation
        ) -> Tokeniser:
            """The vocabulary of both sides."""
            return Tokeniser.train(
                sources,
                self.vocab_size,
                self.tokeniser,
                targets=targets,
                trim=self.trim_vocabulary,
                keep_invisible=preparation.keep_invisible,
                protect=self.protect,
            )

    OF_THE_SOURCE = (
        "model",
        *OF_THE_TRANSFORMER[:-1],
        *OF_THE_RECURRENT,
        "layers",
        "dim",
        "hidden",
        "tokeniser",
        "vocab_size",
        "trim_vocabulary",
        "protect",
    )
    # Defaults that differ from those of the Config, by the words for which models.
    VARIANTS: ClassVar[dict[str, dict[str, Any]]] = {
        "for luong-dot": {"input_feeding": WITH_FEEDING["input_feeding"]},
    }

    def __init__(
        self, config: Config, tell: Tell = silent, *, data: TranslationData | None = None
    ) -> None:
        super().__init__(config, tell)
        self._data = data

    @classmethod
    def settings_from(cls, source: str) -> dict[str, Any]:
        settings = super().settings_from(source)
        foreign = _foreign_settings(settings["model"])
        return {name: value for name, value in settings.items() if name not in foreign}

    @classmethod
    def new_config(cls, given: Mapping[str, Any]) -> Config:
        """The settings of a new run, with a model's own defaults for what was not given.

        Raises:
            ArgumentError: a model that does not exist, or a setting that it does not have.
        """
        model = given.get("model", cls.Config.model)
        check_model(model)
        foreign = [name for name in _foreign_settings(model) if name in given]
        if foreign:
            named = [f"--{name.replace('_', '-')}" for name in foreign]
            whose = "recurrent models" if model == "transformer" else "the Transformer"
            raise ArgumentError(
                f"{', '.join(named)} belongs to {whose}, and --model is {model}; leave it out"
            )
        return cls.Config(**{**MODELS[model], **given})

    def choose(self, amount: Amount, requested: Requested) -> ChosenSettings:
        budget = requested.budget
        is_transformer = self.config.model == "transformer"
        is_read_often = passes(amount, budget.completed(amount)) >= FEW_PASSES

        more: dict[str, Any] = {"label_smoothing": 0.0}
        if is_read_often:
            more["label_smoothing"] = self.Config.label_smoothing
        if is_transformer:
            more["positions"] = "rotary"
        more |= self.rate()
        sizes = TRANSFORMER if is_transformer else RECURRENT_TRANSLATOR
        return choose(sizes, amount, budget, requested.given, size=requested.size, more=more)

    def check_early(self, requested: Requested) -> None:
        super().check_early(requested)
        self._check_servable(self.config.model_config(SOME_PIECES))

    def _check_servable(self, config: TranslationConfig | RecurrentConfig) -> None:
        """Raise an UnsupportedError if what the model is made for cannot hold it."""
        made_for = self.config.made_for
        if made_for is None:
            return
        if isinstance(config, RecurrentConfig):
            reason = f"it holds Transformers, and --model is {self.config.model}"
        else:
            reason = reason_against(config)
        if reason is not None:
            raise UnsupportedError(
                f"--for {made_for} cannot have this model: {reason}; leave out --for, or that setting"
            )

    def prepare(self, begun: Path | None = None) -> Training:
        data = self._read_data()
        sources = [pair.source for pair in data.train]
        targets = [pair.target for pair in data.train]
        self.settle(Amount.of([*sources, *targets], "pairs", sides=2))
        config = self.config

        preparation = Preparation.of(begun)
        start = self.starting_model(begun, sources, targets)
        if start is None:
            self.remark_on_scripts([*sources, *targets], config.tokeniser)
            if begun is None and not config.protect:
                self._tell_of_placeholders(sources)
            tokeniser = config.new_tokeniser(sources, targets, preparation)
            model = config.new_model(tokeniser.vocab_size)
        else:
            tokeniser = start.tokeniser
            model = translation_model(start.saved, start.folder)
        self._check_servable(model.config)
        _check_lengths(model, data, tokeniser)

        task = TranslationTask(
            data.train,
            data.valid,
            tokeniser,
            batch_tokens=config.batch_tokens,
            label_smoothing=config.label_smoothing,
            seed=config.seed,
            together=data.together,
            skills=_skills(config, tokeniser),
            **share_of_work(),
        )
        self._tell_of_long_pairs(task, is_new=begun is None)

        learned = (pair.source for pair in task.learned)
        words_before = None if start is None else start.words
        words = preparation.words(learned, tokeniser, words_before)
        training = self.ready(
            config.model,
            model=model,
            task=task,
            tokeniser=tokeniser,
            test=tuple(data.test),
            learned=task.learned,
            samples=translation_samples(tokeniser, data.valid),
            judge=_judge,
            files={WORDS_FILE: words},
        )
        if config.label_smoothing:
            self.tell(
                f"the loss of a step includes label smoothing ({config.label_smoothing:g}), so it stays above that of "
                f"validation, which does not"
            )
        return training

    def _read_data(self) -> TranslationData:
        if self._data is not None:
            return self._data
        config = self.config
        if config.protect and list(config.data) == [PRONOUNS]:
            raise ArgumentError(f"{PRONOUNS} has no placeholders; leave --protect out")
        data = load_translation_data(
            config.data,
            config.valid,
            config.seed,
            config.twins,
            keep_placeholders=config.keep_placeholders,
            keep_tags=config.keep_tags,
            all_translations=config.all_translations,
        )
        for note in data.notes:
            self.tell(note)
        return data

    def _tell_of_placeholders(self, sources: Sequence[str]) -> None:
        remark = remark_on_placeholders(sources)
        if remark is not None:
            self.tell(remark)

    def _tell_of_long_pairs(self, task: TranslationTask, is_new: bool) -> None:
        """Tell how many pairs are left out; a new run whose batches are too small for some is refused."""
        batch_tokens = self.config.batch_tokens
        if is_new and batch_tokens < task.needed:
            pairs = len(task.learned) + task.left_out
            raise ArgumentError(
                f"--batch-tokens is {batch_tokens}: {task.left_out:,} of {count_of(pairs, 'pairs', ',')} have more "
                f"ids on a side and would be left out of training; {_enough(task.needed)}"
            )
        if task.left_out:
            self.tell(
                f"{count_of(task.left_out, 'pairs', ',')} with more sub-words than a batch or {LONGEST_PAIR} hold were "
                f"left out of training"
            )


def remark_on_placeholders(sources: Sequence[str]) -> str | None:
    """A sentence about sources of which many have variables or tags; None if few have some.

    Of many sources some are looked at, the same in every call.

    >>> remark_on_placeholders(["open %s", "close"]).partition(", which")[0]
    "50 % of the sources have placeholders such as '%s'"
    >>> remark_on_placeholders(["open", "close"])
    """
    # drawn, since every n-th source may be of one kind
    looked_at = random.Random(0).sample(sources, min(len(sources), SOURCES_LOOKED_AT))
    having = 0
    example = ""
    for source in looked_at:
        fragile = [one.text for one in find_placeholders(source) if one.kind in FRAGILE_KINDS]
        if fragile:
            having += 1
            example = example or fragile[0]
    if having < max(1.0, WORTH_PROTECTING * len(looked_at)):
        return None
    percent = 100 * having / len(looked_at)
    return (
        f"{percent:.0f} % of the sources have placeholders such as {example!r}, which a model without "
        f"--protect translates like words and may lose"
    )


def _foreign_settings(model: str) -> tuple[str, ...]:
    """The settings of the other kind of model."""
    return OF_THE_RECURRENT if model == "transformer" else OF_THE_TRANSFORMER


def _skills(config: TranslationTraining.Config, tokeniser: Tokeniser) -> dict[str, list[int]]:
    """The ids by which validations see skills: the pronouns of the embedded corpus, and placeholders."""
    skills = {}
    if PRONOUNS in config.data:
        words = {f" {pronoun}".encode() for pronoun in GERMAN_PRONOUNS}
        raw_pieces = enumerate(tokeniser.vocabulary.raw_pieces)
        skills["pronouns"] = [i for i, raw in raw_pieces if raw in words]
    if tokeniser.protects:
        skills["placeholders"] = list(range(len(SPECIALS), tokeniser.vocabulary.first_ordinary))
    return {name: ids for name, ids in skills.items() if ids}


def check_model(model: object) -> None:
    """Raise an ArgumentError unless there is such a model."""
    if model not in MODELS:
        raise ArgumentError(f"model {model!r} does not exist; there are {', '.join(MODELS)}")


def _check_lengths(model: TranslationModel, data: TranslationData, tokeniser: Tokeniser) -> None:
    """Raise an UnsupportedError if the encoder's mechanism cannot read some source that training would learn from."""
    if isinstance(model, RecurrentTranslator) or model.config.encoder_refusal(LONGEST_PAIR) is None:
        return  # the mechanism reads sources of any length

    longest = 0
    for pair in (*data.train, *data.valid, *data.test):
        length = len(tokeniser.encode(pair.source)) + 1
        if length <= LONGEST_PAIR:
            longest = max(longest, length)
    reason = model.config.encoder_refusal(longest) if longest else None
    if reason:
        raise UnsupportedError(
            f"the longest source has {count_of(longest, 'ids')} with its end, and {reason}"
        )


def _enough(batch_tokens: int) -> str:
    return (
        f"give {batch_tokens} or more, which holds every pair of up to {LONGEST_PAIR} ids on a side"
    )


def _judge(folder: Path, result: TrainingResult) -> str | None:
    return None if result.valid_loss is None else f"best validation {result.valid_loss:.4f}"


# What a process reads in a step whose sentences the others have: a place that no loss counts, so that gradients meet.
NOTHING = TranslationBatch(torch.tensor([[END]]), torch.tensor([[BEGIN]]), torch.tensor([[PAD]]))


class TranslationTask(Described):
    """What `train` needs of pairs of sentences.

    Args:
        train: pairs to learn from.
        valid: pairs to validate on, in their order.
        tokeniser: of both sides.
        batch_tokens, seed, world, rank: as for `TokenBatches`.
        label_smoothing: share of the probability that is spread over all ids.
        longest: pairs with more ids on a side are left out of training; `left_out` counts them, and `learned` has the
            others, and `needed` is the smallest `batch_tokens` that leaves out no other pair.
        together: how many pairs in a row share a batch, in their order; by default each is on its own.

    Source of the smoothing: Szegedy et al. 2016, section 7.

    Raises:
        ArgumentError: nothing to learn from, or smoothing outside 0 to 1.
    """

    def __init__(
        self,
        train: Sequence[Pair],
        valid: Sequence[Pair],
        tokeniser: Tokeniser,
        *,
        batch_tokens: int = TranslationTraining.Config.batch_tokens,
        label_smoothing: float = TranslationTraining.Config.label_smoothing,
        seed: int = TranslationTraining.Config.seed,
        world: int = 1,
        rank: int = 0,
        longest: int = LONGEST_PAIR,
        together: Sequence[int] = (),
        skills: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        if not 0 <= label_smoothing < 1:
            raise ArgumentError(
                f"label_smoothing is {label_smoothing}; it is a share from 0 to below 1"
            )
        pairs = encode_pairs(train, tokeniser)
        sizes = [_size(pair) for pair in pairs]
        self.needed = max((size for size in sizes if size <= longest), default=0)
        longest = min(longest, batch_tokens)
        fits = [size <= longest for size in sizes]
        self._train = list(compress(pairs, fits))
        self.learned = list(compress(train, fits))
        self.left_out = len(pairs) - len(self._train)
        if not self._train:
            way = ""
            if self.needed:
                way = f"; batch_tokens is {batch_tokens}, {_enough(self.needed)}"
            raise ArgumentError(
                f"none of {count_of(len(pairs), 'pairs')} has fewer than {count_of(longest, 'ids')} "
                f"on both sides: there is nothing to learn from{way}"
            )
        self._valid = [pair for pair in encode_pairs(valid, tokeniser) if _size(pair) <= longest]
        self.label_smoothing = label_smoothing
        self._batch_tokens = batch_tokens
        self._skills = {name: torch.tensor(ids) for name, ids in (skills or {}).items()}
        self._counted = dict.fromkeys(self._skills, (0, 0))
        self._groups = _groups(pairs, together, longest)
        costs = [_cost(group) for group in self._groups]
        self.batches = TokenBatches(costs, batch_tokens, seed, world, rank)
        self._settings = {
            "batch_tokens": batch_tokens,
            "label_smoothing": label_smoothing,
            "order": seed,
        }
        if together:
            self._settings["groups"] = len(self._groups)

    def batch(self, index: int) -> TranslationBatch:
        """The micro-batch number `index`, a function of it and of the seed."""
        pairs: list[EncodedPair] = []
        for row in self.batches.at(index):
            pairs += self._groups[row]
        return make_batch(pairs) if pairs else NOTHING

    def parts(self, batch: TranslationBatch, count: int) -> list[TranslationBatch]:
        """The batch divided by its rows."""
        return [TranslationBatch(*part) for part in parts_of_rows(count, *batch)]

    def loss(self, model: torch.nn.Module, batch: TranslationBatch) -> tuple[torch.Tensor, int]:
        """Sum of the smoothed cross entropies over the target ids, and their number."""
        return self._cross_entropy(model, batch, self.label_smoothing)

    def validation_batches(self) -> Sequence[TranslationBatch]:
        return self._validation

    def validation_loss(
        self, model: torch.nn.Module, batch: TranslationBatch
    ) -> tuple[torch.Tensor, int]:
        """Sum of the plain cross entropies in nats, and the number of target ids."""
        scores = model(batch.source, batch.target)
        self._count_skills(scores, batch.next)
        return self._summed(scores, batch.next, 0.0)

    def counted_skills(self) -> dict[str, tuple[int, int]]:
        """For each skill its right ids, and all that the references have, since the last call.

        An id is right if it is the most likely one after those of the reference before it.
        """
        counted = self._counted
        self._counted = dict.fromkeys(self._skills, (0, 0))
        return counted

    def _count_skills(self, scores: torch.Tensor, next_ids: torch.Tensor) -> None:
        for name, ids in self._skills.items():
            is_counted = torch.isin(next_ids, ids.to(next_ids.device))
            right = scores[is_counted].argmax(-1) == next_ids[is_counted]
            before = self._counted[name]
            self._counted[name] = (before[0] + int(right.sum()), before[1] + len(right))

    def fingerprint(self) -> dict[str, Any]:
        """What differs between these data, in this order, and others."""
        digest = hash_of(self._train, self._valid)
        return {"pairs": len(self._train), "ids": digest, **self._settings}

    @cached_property
    def _validation(self) -> list[TranslationBatch]:
        return [batch for _, batch in batches_in_order(self._valid, self._batch_tokens)]

    @staticmethod
    def _cross_entropy(
        model: torch.nn.Module, batch: TranslationBatch, smoothing: float
    ) -> tuple[torch.Tensor, int]:
        scores = model(batch.source, batch.target)  # (batch, target_length, vocab_size)
        return TranslationTask._summed(scores, batch.next, smoothing)

    @staticmethod
    def _summed(
        scores: torch.Tensor, next_ids: torch.Tensor, smoothing: float
    ) -> tuple[torch.Tensor, int]:
        loss = F.cross_entropy(
            scores.flatten(0, 1).float(),
            next_ids.flatten(),
            ignore_index=PAD,
            label_smoothing=smoothing,
            reduction="sum",
        )
        return loss, int((next_ids != PAD).sum())


def _size(pair: EncodedPair) -> int:
    """The ids that the longer side of a pair fills, with its BEGIN or END."""
    return 1 + max(map(len, pair))


def _cost(group: Sequence[EncodedPair]) -> int:
    """The ids that pairs of one batch fill, padding included."""
    return len(group) * max(map(_size, group))


def _groups(
    pairs: Sequence[EncodedPair], together: Sequence[int], longest: int
) -> list[list[EncodedPair]]:
    """The pairs that share a batch, `together` of them in a row; without those that are too long for a batch."""
    if together and sum(together) != len(pairs):
        raise ArgumentError(
            f"together counts {count_of(sum(together), 'pairs')}, and there are {len(pairs)} to learn from"
        )
    groups: list[list[EncodedPair]] = []
    rest = iter(pairs)
    for count in together or [1] * len(pairs):
        group = [pair for pair in islice(rest, count) if _size(pair) <= longest]
        if group and _cost(group) <= longest:
            groups.append(group)
        else:
            groups += [[pair] for pair in group]
    return groups


def translation_samples(tokeniser: Tokeniser, pairs: Sequence[Pair]) -> Samples:
    """The first few short pairs: source, reference, translation; and the attention of the first as a picture."""
    short = [pair for pair in pairs if len(pair.source) <= LONGEST_SHOWN]
    shown = short[:SHOWN_PAIRS]

    def samples(model: torch.nn.Module, picture: Path) -> list[str]:
        assert isinstance(model, TranslationTransformer | RecurrentTranslator)
        translator = Translator(model, tokeniser)
        translations = translator.translate([pair.source for pair in shown])
        lines = []
        for pair, translation in zip(shown, translations, strict=True):
            lines += [
                f"source     {pair.source}",
                f"should be  {pair.target}",
                f"is         {tidy_target(translation.text)}",
                "",
            ]
        if translations:
            lines += _draw(translator, translations[0], picture)
        return lines

    return samples


def _draw(translator: Translator, translation: Translation, picture: Path) -> list[str]:
    """Draw the attention of a translation, or return why not."""
    title = f"{tidy(translation.source)} → {tidy_target(translation.text)}"
    try:
        maps = look(translator.model, translator.tokeniser, translation.source, translation.ids)
        draw_maps(maps, picture, title=title)
    except Exception as error:  # whatever a drawing library raises: a picture stops no training
        return [f"no picture: {reason_of(error)}"]
    return []
