"""Measures what fewer key/value heads save and lose, by each way to pool them, and what further training recovers.

python benchmarks/kv_heads.py heads [--seeds 0 1 2] [--quick] [--out DIR]       mean and first; bytes and parameters
python benchmarks/kv_heads.py latents [--seeds 0 1 2] [--quick] [--out DIR]
       keys and values factorised into latents, without loss, in half of the bytes and in a quarter
python benchmarks/kv_heads.py pooling [--seeds 0 1 2] [--texts documentation code] [--quick] [--out DIR]

Small character-level language models with 8 heads are trained on the documentation of Python's standard library,
converted to 4, 2 and 1 key/value heads, measured on held-out text, trained for 5 % more steps, and measured again. For
comparison the original is trained for as many more steps. `heads` has one model shaped like Llama (rotary positions,
RMS norms); `pooling` also one like GPT-2 (learned positions, layer norms, biases), and with the first seed trains on
code too. It measures `align` as well, also without a text to calibrate it on, and without grouping heads anew.

Source: GQA, Ainslie et al. 2023: mean-pooled heads (section 2.1), further training (3.1), mean, first and random (3.3);
alignment: arXiv 2412.20677.
"""

import tempfile
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks.behaviour.learning import code_texts, texts
from benchmarks.report import RESULTS, heading, options, trained, write
from regard.arguments import count_of
from regard_lab.conversion import load_converted, with_kv_heads
from regard_lab.conversion.latents import LatentSizes, load_latent
from regard_lab.conversion.own_models import turned
from regard_lab.conversion.uptraining import agreement_on_task
from regard_lab.models import LanguageConfig, LanguageModel
from regard_lab.text import Tokeniser
from regard_lab.text.writing import markdown_table
from regard_lab.training import TrainingResult
from regard_lab.training.recipes.language import LanguageTask

SHAPES: dict[str, dict[str, Any]] = {
    "Llama": {},
    "GPT-2": {"norm": "layer", "positions": "learned", "activation": "gelu-tanh", "biases": True},
}
TEXTS = {"documentation": texts, "code": code_texts}
METHODS = ("mean", "first", "random", "align", "align, no text", "align, neighbours")
# Of the numbers of a token, half of them rotated.
LATENTS = {"latents": 1, "latents, half": 2, "latents, a quarter": 4}
MOST = 0.5  # more than this share of the lost bits counts as most of them


@dataclass(frozen=True)
class HeadsRecipe:
    """The settings of a study."""

    dim: int = 64
    layers: int = 2
    steps: int = 2_000
    uptrain_steps: int = 100
    heads: int = 8
    block: int = 64
    batch_tokens: int = 1_024
    characters: int = 2_000_000
    held_out: int = 30_000
    learning_rate: float = 3e-3
    calibration_batches: int = 8
    kv_heads: tuple[int, ...] = (4, 2, 1)


RECIPES = {
    "heads": HeadsRecipe(),
    "latents": HeadsRecipe(),
    "pooling": HeadsRecipe(dim=96, steps=1_200, uptrain_steps=60),
}
QUICK = HeadsRecipe(
    characters=60_000, held_out=5_000, dim=32, layers=1, steps=30, uptrain_steps=5, kv_heads=(2,)
)


@dataclass(frozen=True)
class ConvertedRow:
    """One conversion, in bits per character on the held-out text."""

    shape: str
    text: str
    seed: int
    kv_heads: int
    method: str
    before: float
    converted: float
    uptrained: float
    control: float  # the original after as many more steps
    cpu_seconds: float
    divergence: float  # of the next character's distribution from the original's, in nats
    agreement: float  # share of positions with the same likeliest character
    kv_bytes: int = 0  # a token
    kv_bytes_before: int = 0
    parameters_removed: int = 0
    difference: float = 0.0  # from the model with its heads repeated

    @property
    def recovered(self) -> float:
        """The share of the lost bits that training recovered; 1 if none were lost."""
        lost = self.converted - self.before
        return (self.converted - self.uptrained) / lost if lost > 1e-3 else 1.0


class HeadsExperiment:
    """One trained model, the data it was trained on, and its control."""

    def __init__(self, shape: str, text: str, seed: int, recipe: HeadsRecipe) -> None:
        self.shape = shape
        self.text = text
        self.seed = seed
        self.recipe = recipe
        training_ids, held_out_ids = TEXTS[text]()
        training = letters_of(training_ids[: recipe.characters])
        held_out = letters_of(held_out_ids[: recipe.held_out])
        tokeniser = Tokeniser.train([training], 300, "character", verbatim=True)
        self.task = LanguageTask(
            [training],
            [held_out],
            tokeniser,
            block=recipe.block,
            batch_tokens=recipe.batch_tokens,
            seed=seed,
        )
        torch.manual_seed(seed)
        config = LanguageConfig(
            vocab_size=tokeniser.vocab_size,
            dim=recipe.dim,
            heads=recipe.heads,
            layers=recipe.layers,
            max_length=recipe.block,
            **SHAPES[shape],
        )
        self.model = LanguageModel(config)
        learned = trained(self.model, self.task, recipe.steps, recipe.learning_rate, seed)
        control = self._trained_further(deepcopy(self.model))
        self.before = self._bits(learned)
        self.control = self._bits(control)
        self.cpu_seconds = learned.cpu_seconds + control.cpu_seconds

    def row(
        self, kv_heads: int, method: str, converted: LanguageModel, **counted: Any
    ) -> ConvertedRow:
        """Measure a conversion, train it further and measure it again."""
        compared = agreement_on_task(self.model, converted, self.task)
        result = self._trained_further(converted)
        return ConvertedRow(
            shape=self.shape,
            text=self.text,
            seed=self.seed,
            kv_heads=kv_heads,
            method=method,
            before=self.before,
            converted=self.task.bits_per_character(compared.loss[1]),
            uptrained=self._bits(result),
            control=self.control,
            cpu_seconds=result.cpu_seconds,
            divergence=compared.divergence,
            agreement=compared.agreement,
            **counted,
        )

    def from_a_file(self, kv_heads: int, method: str) -> ConvertedRow:
        """A row by the conversion of a saved model, whose report counts bytes and parameters."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model"
            self.model.save(path)
            if method in LATENTS:
                size = self.recipe.dim // LATENTS[method]
                sizes = LatentSizes(size, size)
                loaded = load_latent(path, sizes, calibration=self._read_text)
                difference = loaded.report.invariance
            else:
                loaded = load_converted(path, kv_heads, method)
                difference = loaded.report.difference
        bytes_of_token = loaded.report.kv_bytes["token"]
        return self.row(
            kv_heads,
            method,
            loaded.after,
            kv_bytes=bytes_of_token.after,
            kv_bytes_before=bytes_of_token.before,
            parameters_removed=loaded.report.removed,
            difference=difference,
        )

    def pooled(self, kv_heads: int, method: str) -> ConvertedRow:
        """A row by any method."""
        calibration = None if method == "align, no text" else self._read_text
        if method == "align, neighbours":
            rotated = turned(self.model, kv_heads, calibration, regroup=False)
            return self.row(kv_heads, method, with_kv_heads(rotated.float(), kv_heads))
        if method == "random":
            return self.row(kv_heads, method, with_random_heads(self.model, kv_heads, self.seed))
        pooling, *_ = method.split(",")
        converted = with_kv_heads(self.model, kv_heads, pooling, calibration=calibration)
        return self.row(kv_heads, method, converted)

    def _read_text(self, model: LanguageModel) -> None:
        for index in range(self.recipe.calibration_batches):
            model(self.task.batch(index).ids)

    def _trained_further(self, model: LanguageModel) -> TrainingResult:
        return trained(
            model, self.task, self.recipe.uptrain_steps, self.recipe.learning_rate, self.seed + 1
        )

    def _bits(self, result: TrainingResult) -> float:
        assert result.valid_loss is not None
        return self.task.bits_per_character(result.valid_loss)


def with_random_heads(model: LanguageModel, kv_heads: int, seed: int) -> LanguageModel:
    """The model with key/value heads of random numbers, which have the mean and the deviation of the weights."""
    converted = with_kv_heads(model, kv_heads)
    state = converted.state_dict()
    generator = torch.Generator().manual_seed(seed)
    for name, before in model.state_dict().items():
        if state[name].shape != before.shape:
            drawn = torch.randn(state[name].shape, generator=generator)
            state[name].copy_(drawn * before.std(correction=0) + before.mean())
    return converted


def letters_of(ids: torch.Tensor) -> str:
    """Ids of 27 symbols as text."""
    return bytes((ids + 96).tolist()).decode().replace("`", " ")


def lost(rows: Sequence[ConvertedRow], when: str = "converted", floor: str = "before") -> float:
    """The mean of the lost bits per character."""
    return sum(getattr(row, when) - getattr(row, floor) for row in rows) / len(rows)


def verdicts_of_heads(rows: Sequence[ConvertedRow]) -> list[str]:
    """One sentence for each promise: whether it was kept, with figures."""
    is_exact = all(
        row.kv_bytes * HeadsRecipe.heads == row.kv_bytes_before * row.kv_heads for row in rows
    )
    bytes_by_heads = {row.kv_heads: row.kv_bytes for row in rows}
    counts = ", ".join(f"{count:,} with {heads}" for heads, count in bytes_by_heads.items())
    worst = max(row.difference for row in rows)
    least = min(rows, key=lambda row: row.recovered)
    return [
        f"{WORD[is_exact]}: bytes of keys and values a token, counted in a real cache, fall in proportion to the heads "
        f"({counts})",
        f"{WORD[worst <= 1e-6]}: with its heads repeated, each converted model agrees within 1e-6 ({worst:.0e})",
        f"{WORD[least.recovered > MOST]}: further training recovers most of what was lost: at least "
        f"{least.recovered:.0%} ({count_of(least.kv_heads, 'heads')}, {least.method})",
        *compared(rows, "mean", ("first",)),
    ]


def verdicts_of_latents(rows: Sequence[ConvertedRow]) -> list[str]:
    """One sentence for each promise: whether it was kept, with figures."""
    latents = [row for row in rows if row.method in LATENTS]
    full = [row for row in latents if row.kv_bytes == row.kv_bytes_before]
    half = [row for row in latents if row.kv_bytes * 2 == row.kv_bytes_before]
    by_mean = [row for row in rows if row.method == "mean"]
    of_outputs = max(row.difference for row in full)
    of_bits = max(abs(row.converted - row.before) for row in full)
    is_exact = max(of_outputs, of_bits) <= 1e-5
    return [
        f"{WORD[is_exact]}: with as many numbers as keys and values have, nothing is lost: outputs differ by "
        f"at most {of_outputs:.0e} in float64, and the bits per character by {of_bits:.0e} in float32",
        f"not promised: in half of the bytes {lost(half):.3f} bits per character are lost, where the mean of pairs of "
        f"heads loses {lost(by_mean):.3f}; after further training latents are "
        f"{lost(half, 'uptrained', 'control'):+.3f} bits from the original that was trained as long",
    ]


def compared(rows: Sequence[ConvertedRow], method: str, others: Sequence[str]) -> list[str]:
    """One sentence for each comparison of a method with another one."""
    known = {(row.shape, row.text, row.seed, row.kv_heads, row.method): row for row in rows}
    models = dict.fromkeys((row.shape, row.text) for row in rows)
    sentences = []
    for shape, text in models:
        of_model = [row for row in known.values() if (row.shape, row.text) == (shape, text)]
        by_method = [row for row in of_model if row.method == method]
        for other in others:
            by_other = [known[shape, text, row.seed, row.kv_heads, other] for row in by_method]
            before = _wins(by_method, by_other, "converted", "before")
            after = _wins(by_method, by_other, "uptrained", "control")
            sentences.append(
                f"{shape}, {text}: {method} is better than {other} before further training in "
                f"{before}, after further training in {after}"
            )
    return sentences


def _wins(
    rows: Sequence[ConvertedRow], other_rows: Sequence[ConvertedRow], when: str, floor: str
) -> str:
    """How often the first loses fewer bits than the second, and which share of their bits it loses."""
    wins = 0
    for row, other_row in zip(rows, other_rows, strict=True):
        wins += getattr(row, when) < getattr(other_row, when)
    share = lost(rows, when, floor) / lost(other_rows, when, floor)
    return f"{wins} of {len(rows)} ({share:.0%} as many bits are lost)"


def verdicts_of_pooling(rows: Sequence[ConvertedRow]) -> list[str]:
    """One sentence for each comparison of aligned heads with another way to pool."""
    return compared(rows, "align", METHODS[:3])


WORD = {True: "kept", False: "missed"}


@dataclass(frozen=True)
class Study:
    """The name of the files of a study, the title of its page, and what it says of its rows."""

    name: str
    title: str
    verdicts: Callable[[Sequence[ConvertedRow]], list[str]]


STUDIES = {
    "heads": Study("kv_heads", "Fewer key/value heads", verdicts_of_heads),
    "latents": Study("kv_latents", "Latents", verdicts_of_latents),
    "pooling": Study("kv_alignment", "How key/value heads are pooled", verdicts_of_pooling),
}
HEAD = (
    "shape",
    "text",
    "seed",
    "heads",
    "method",
    "KV bytes",
    "before",
    "converted",
    "KL",
    "agreement",
    "after training",
    "original after training",
    "recovered",
)


def cells(row: ConvertedRow) -> list[object]:
    """A row of the table."""
    return [
        row.shape,
        row.text,
        row.seed,
        row.kv_heads,
        row.method,
        f"{row.kv_bytes:,}" if row.kv_bytes else "",
        f"{row.before:.3f}",
        f"{row.converted:.3f}",
        f"{row.divergence:.3f}",
        f"{row.agreement:.0%}",
        f"{row.uptrained:.3f}",
        f"{row.control:.3f}",
        f"{row.recovered:.0%}",
    ]


def page(
    study: Study, recipe: HeadsRecipe, rows: Sequence[ConvertedRow], seconds: float
) -> list[str]:
    return [
        *heading(study.title, f", {seconds:,.0f} CPU seconds of training"),
        f"Character-level language models with {recipe.heads} heads of {recipe.dim // recipe.heads} numbers "
        f"({recipe.layers} layers, dim {recipe.dim}), {recipe.steps:,} steps of {recipe.batch_tokens:,} tokens. "
        f"Figures are bits per character on {recipe.held_out:,} held-out characters; KL is the divergence from the "
        f"original's predictions in nats, and agreement the share of equal likeliest characters. Further training is "
        f"{recipe.uptrain_steps} steps ({recipe.uptrain_steps / recipe.steps:.0%}), for the original as well. `align` "
        f"reads {recipe.calibration_batches * recipe.batch_tokens:,} tokens of the training text; 'neighbours' rotates "
        f"heads without grouping them anew.",
        "",
        *markdown_table(HEAD, map(cells, rows)),
        "",
        *(f"- {verdict}" for verdict in study.verdicts(rows)),
        "",
        "Pooling makes a model worse until it is trained further. These models are small and trained briefly on short "
        "texts. Measure your own: `regard convert kv-heads MODEL --kv-heads 2 --out DIR --text FILE`.",
    ]


def main() -> None:
    parser = options(__doc__, out=RESULTS, seeds=[0, 1, 2])
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument(
        "--texts", nargs="+", choices=TEXTS, default=[*TEXTS], help="all but the first: one seed"
    )
    asked = parser.parse_args()
    torch.set_num_threads(1)  # for such small tensors several threads are slower than one
    study = STUDIES[asked.study]
    is_pooling = asked.study == "pooling"
    recipe = QUICK if asked.quick else RECIPES[asked.study]
    first_text, *more_texts = asked.texts
    shapes = list(SHAPES) if is_pooling else ["Llama"]
    cases = list(product([first_text], asked.seeds, shapes))
    if is_pooling:
        cases += product(more_texts, asked.seeds[:1], shapes)

    rows: list[ConvertedRow] = []
    seconds = 0.0
    for text, seed, shape in cases:
        experiment = HeadsExperiment(shape, text, seed, recipe)
        seconds += experiment.cpu_seconds
        convert = experiment.pooled if is_pooling else experiment.from_a_file
        for kv_heads, method in ways_of(asked.study, recipe):
            row = convert(kv_heads, method)
            rows.append(row)
            seconds += row.cpu_seconds
            print(row, flush=True)
        content = {
            "recipe": asdict(recipe),
            "cpu_seconds": seconds,
            "verdicts": study.verdicts(rows),
            "rows": [{**asdict(row), "recovered": row.recovered} for row in rows],
        }
        lines = page(study, recipe, rows, seconds)
        path = write(asked.out / f"{study.name}_cpu", study.name, content, lines)
    print(path.read_text("utf-8"))


def ways_of(study: str, recipe: HeadsRecipe) -> list[tuple[int, str]]:
    """The conversions of a study: key/value heads and method."""
    if study == "latents":
        ways = [(recipe.heads, method) for method in LATENTS]
        return [*ways, (recipe.heads // 2, "mean")]
    ways = list(product(recipe.kv_heads, METHODS if study == "pooling" else METHODS[:2]))
    # one head has no neighbours
    return [way for way in ways if way != (1, "align, neighbours")]


if __name__ == "__main__":
    main()
