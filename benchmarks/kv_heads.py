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
        self.shape, self.text, self.seed, self.recipe = shape, text, seed, recipe
        letters = [
            letters_of(ids[:count])
            for ids, count in zip(TEXTS[text](), (recipe.characters, recipe.held_out), strict=True)
        ]
        tokeniser = Tokeniser.train(letters[:1], 300, "character", verbatim=True)
        self.task = LanguageTask(
            *([one] for one in letters),
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
        self.before, self.control = self._bits(learned), self._bits(control)
        self.cpu_seconds = learned.cpu_seconds + control.cpu_seconds

    def row(
        self, kv_heads: int, method: str, converted: LanguageModel, **counted: Any
    ) -> ConvertedRow:
        """Measure a conversion, train it further and measure it again."""
        found = agreement_on_task(self.model, converted, self.task)
        at_once = self.task.bits_per_character(found.loss[1])
        result = self._trained_further(converted)
        return ConvertedRow(
            self.shape,
            self.text,
            self.seed,
            kv_heads,
            method,
            self.before,
            at_once,
            self._bits(result),
            self.control,
            result.cpu_seconds,
            found.divergence,
            found.agreement,
            **counted,
        )

    def from_a_file(self, kv_heads: int, method: str) -> ConvertedRow:
        """A row by the conversion of a saved model, whose report counts bytes and parameters."""
        with tempfile.TemporaryDirectory() as folder:
            self.model.save(Path(folder) / "model")
            if by := LATENTS.get(method):
                sizes = LatentSizes(self.recipe.dim // by, self.recipe.dim // by)
                loaded = load_latent(Path(folder) / "model", sizes, calibration=self._read_text)
            else:
                loaded = load_converted(Path(folder) / "model", kv_heads, method)
        report, cached = loaded.report, loaded.report.kv_bytes["token"]
        counted = {
            "kv_bytes": cached.after,
            "kv_bytes_before": cached.before,
            "parameters_removed": report.removed,
        }
        exact = report.invariance if by else report.difference
        return self.row(kv_heads, method, loaded.after, **counted, difference=exact)

    def pooled(self, kv_heads: int, method: str) -> ConvertedRow:
        """A row by any method."""
        calibration = None if method == "align, no text" else self._read_text
        if method == "align, neighbours":
            rotated = turned(self.model, kv_heads, calibration, regroup=False)
            return self.row(kv_heads, method, with_kv_heads(rotated.float(), kv_heads))
        converted = with_kv_heads(
            self.model, kv_heads, method.split(",")[0], calibration=calibration
        )
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


def letters_of(ids: torch.Tensor) -> str:
    """Ids of 27 symbols as text."""
    return bytes((ids + 96).tolist()).decode().replace("`", " ")


def lost(rows: Sequence[ConvertedRow], when: str = "converted", floor: str = "before") -> float:
    """The mean of the lost bits per character."""
    return sum(getattr(row, when) - getattr(row, floor) for row in rows) / len(rows)


def verdicts_of_heads(rows: Sequence[ConvertedRow]) -> list[str]:
    """One sentence for each promise: whether it was kept, with figures."""
    exact = all(
        row.kv_bytes * HeadsRecipe.heads == row.kv_bytes_before * row.kv_heads for row in rows
    )
    counted = {row.kv_heads: row.kv_bytes for row in rows}
    worst = max(row.difference for row in rows)
    least = min(rows, key=lambda row: row.recovered)
    return [
        f"{WORD[exact]}: bytes of keys and values a token, counted in a real cache, fall in proportion to the heads "
        f"({', '.join(f'{count:,} with {heads}' for heads, count in counted.items())})",
        f"{WORD[worst <= 1e-6]}: with its heads repeated, each converted model agrees within 1e-6 ({worst:.0e})",
        f"{WORD[least.recovered > MOST]}: further training recovers most of what was lost: at least "
        f"{least.recovered:.0%} ({count_of(least.kv_heads, 'heads')}, {least.method})",
        *compared(rows, "mean", ("first",)),
    ]


def verdicts_of_latents(rows: Sequence[ConvertedRow]) -> list[str]:
    """One sentence for each promise: whether it was kept, with figures."""
    full, half = (
        [row for row in rows if row.method in LATENTS and row.kv_bytes * by == row.kv_bytes_before]
        for by in (1, 2)
    )
    exact = (
        max(row.difference for row in full),
        max(abs(row.converted - row.before) for row in full),
    )
    return [
        f"{WORD[max(exact) <= 1e-5]}: with as many numbers as keys and values have, nothing is lost: outputs differ by "
        f"at most {exact[0]:.0e} in float64, and the bits per character by {exact[1]:.0e} in float32",
        f"not promised: in half of the bytes {lost(half):.3f} bits per character are lost, where the mean of pairs of "
        f"heads loses {lost([row for row in rows if row.method == 'mean']):.3f}; after further training latents are "
        f"{lost(half, 'uptrained', 'control'):+.3f} bits from the original that was trained as long",
    ]


def compared(rows: Sequence[ConvertedRow], method: str, others: Sequence[str]) -> list[str]:
    """One sentence for each comparison of a method with another one."""
    known = {(row.shape, row.text, row.seed, row.kv_heads, row.method): row for row in rows}
    sentences = []
    for shape, text in dict.fromkeys((row.shape, row.text) for row in rows):
        for other in others:
            mine = [
                row for key, row in known.items() if key[:2] == (shape, text) and key[4] == method
            ]
            theirs = [known[shape, text, row.seed, row.kv_heads, other] for row in mine]
            phrases = []
            for when, floor, words in (
                ("converted", "before", "before"),
                ("uptrained", "control", "after"),
            ):
                wins = sum(
                    getattr(a, when) < getattr(b, when) for a, b in zip(mine, theirs, strict=True)
                )
                share = lost(mine, when, floor) / lost(theirs, when, floor)
                phrases.append(
                    f"{words} further training in {wins} of {len(mine)} ({share:.0%} as many bits are lost)"
                )
            sentences.append(
                f"{shape}, {text}: {method} is better than {other} {', '.join(phrases)}"
            )
    return sentences


WORD = {True: "kept", False: "missed"}
STUDIES: dict[str, tuple[str, str, Callable[[Sequence[ConvertedRow]], list[str]]]] = {
    "heads": ("kv_heads", "Fewer key/value heads", verdicts_of_heads),
    "latents": ("kv_latents", "Latents", verdicts_of_latents),
    "pooling": (
        "kv_alignment",
        "How key/value heads are pooled",
        lambda rows: compared(rows, "align", METHODS[:3]),
    ),
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


def page(
    study: str, recipe: HeadsRecipe, rows: Sequence[ConvertedRow], seconds: float
) -> list[str]:
    return [
        *heading(STUDIES[study][1], f", {seconds:,.0f} CPU seconds of training"),
        f"Character-level language models with {recipe.heads} heads of {recipe.dim // recipe.heads} numbers "
        f"({recipe.layers} layers, dim {recipe.dim}), {recipe.steps:,} steps of {recipe.batch_tokens:,} tokens. "
        f"Figures are bits per character on {recipe.held_out:,} held-out characters; KL is the divergence from the "
        f"original's predictions in nats, and agreement the share of equal likeliest characters. Further training is "
        f"{recipe.uptrain_steps} steps ({recipe.uptrain_steps / recipe.steps:.0%}), for the original as well. `align` "
        f"reads {recipe.calibration_batches * recipe.batch_tokens:,} tokens of the training text; 'neighbours' rotates "
        f"heads without grouping them anew.",
        "",
        *markdown_table(
            HEAD,
            [
                (
                    row.shape,
                    row.text,
                    row.seed,
                    row.kv_heads,
                    row.method,
                    f"{row.kv_bytes:,}" if row.kv_bytes else "",
                    *(f"{x:.3f}" for x in (row.before, row.converted, row.divergence)),
                    f"{row.agreement:.0%}",
                    f"{row.uptrained:.3f}",
                    f"{row.control:.3f}",
                    f"{row.recovered:.0%}",
                )
                for row in rows
            ],
        ),
        "",
        *(f"- {verdict}" for verdict in STUDIES[study][2](rows)),
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
    pooling = asked.study == "pooling"
    recipe = QUICK if asked.quick else RECIPES[asked.study]
    cases = [
        (asked.texts[0], seed, shape)
        for seed in asked.seeds
        for shape in (SHAPES if pooling else ["Llama"])
    ]
    cases += [
        (text, asked.seeds[0], shape) for text in asked.texts[1:] if pooling for shape in SHAPES
    ]
    ways = [
        (heads, method)
        for heads in recipe.kv_heads
        for method in (METHODS if pooling else METHODS[:2])
        if (heads, method) != (1, "align, neighbours")
    ]
    if asked.study == "latents":
        ways = [*((recipe.heads, method) for method in LATENTS), (recipe.heads // 2, "mean")]
    (name, _, verdicts), rows, seconds = STUDIES[asked.study], [], 0.0
    for text, seed, shape in cases:
        experiment = HeadsExperiment(shape, text, seed, recipe)
        seconds += experiment.cpu_seconds
        for kv_heads, method in ways:
            rows.append(
                (experiment.pooled if pooling else experiment.from_a_file)(kv_heads, method)
            )
            seconds += rows[-1].cpu_seconds
            print(rows[-1], flush=True)
        content = {
            "recipe": asdict(recipe),
            "cpu_seconds": seconds,
            "verdicts": verdicts(rows),
            "rows": [{**asdict(row), "recovered": row.recovered} for row in rows],
        }
        path = write(
            asked.out / f"{name}_cpu", name, content, page(asked.study, recipe, rows, seconds)
        )
    print(path.read_text("utf-8"))


if __name__ == "__main__":
    main()
