"""Lesson: five cheaper attentions, what each estimates, and its error against its cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.nn import functional

from regard.arguments import count_of
from regard.mechanisms import LSH, LinearTransformer, Linformer, Mechanism, Performer, RandomFeature
from regard.patterns import Full
from regard_lab.lessons.figures import (
    FAINT,
    LINES,
    Axes,
    Figure,
    begin,
    draw_line,
    draw_map,
    label_axes,
    legend_below,
)
from regard_lab.lessons.taught import Claim, Lecture, Settings, Table
from regard_lab.lessons.words import ROUNDING, normal, rounded
from regard_lab.seeing.quality.candidates import AttentionCall, Candidate, Exact, exact_of, exact_results

WORDS, DIM, TOPICS = 256, 16, 16  # words, size of a head, groups of similar words
SPREAD = 0.1  # standard deviation of a word's numbers around its topic's, which has length 1
NOISE = 0.5  # the same for values, whose topics have numbers of deviation 1
FLAT, SHARP = 0.5, 4.0  # the factor of the cosines in the scores
FEATURES = (16, 64, 256, 1024)
ROUNDS = (1, 2, 4, 8)
RANKS = (4, 16, 64, 256)
CHUNK = 32
DRAWS, MANY = 8, 64  # seeds for an error, draws whose mean is taken
EXACT = 1e-12
SLOPE = 0.15  # tolerance of a slope of -1/2
DRAWN = 48  # words in the drawn maps
LONG = 8192  # words of a longer text, whose costs are printed
LEAST = 1e-3  # smaller errors are drawn here
ENDS = ("flat", "sharp")
NAMED = {"Performer": "Performer", "RandomFeature": "RFA"}  # the two mechanisms with random features
Parameters = Mapping[str, torch.Tensor] | None

CODE = """\
import torch
import regard as rg
from regard.mechanisms import Performer
from regard_lab.seeing import approximation

q, k, v = torch.randn(3, 1, 1, 256, 16).mul(0.5).unbind(0)  # (batch, heads, length, head_dim)
exact = rg.attention(q, k, v)
for features in (16, 64, 256, 1024):
    estimate = rg.attention(q, k, v, mechanism=Performer(features))
    print(features, ((estimate - exact).norm() / exact.norm()).item())
print(approximation(q, k, v, mechanisms=["causal_window(64)", Performer(64)]))  # with times"""


def teach(settings: Settings) -> Lecture:
    """Measure every mechanism's error against softmax attention, by its parameter, over several seeds."""
    seed = settings.seed
    flat, sharp = (words(sharpness, seed, TOPICS, WORDS) for sharpness in (FLAT, SHARP))
    estimating = {
        "Performer": Performer(64), "RandomFeature": RandomFeature(64, sigma=FLAT**-0.5),
        "LinearTransformer": LinearTransformer(),
    }  # fmt: skip
    numbers: dict[str, Any] = {
        "words": WORDS, "dim": DIM, "features": list(FEATURES), "rounds": list(ROUNDS), "ranks": list(RANKS),
        "errors": {**_features_errors(flat, sharp, seed), **_hashed_errors(sharp, seed), **_mixed_errors(sharp, seed),
                   "mean of all values, flat": [error(flat, *pooled(1, WORDS), seed=seed)]},
        "one_chunk": error(sharp, LSH(WORDS, 2, 1), seed=seed) < EXACT,
        "off_target": {name: off_target(flat, mechanism, seed) for name, mechanism in estimating.items()},
        "maps": _maps(seed),
    }  # fmt: skip
    return numbers, (
        "Softmax attention of n words computes n² weights. Five mechanisms avoid them, and each gives up something "
        "else. Performer and random feature attention (RFA) estimate the weights by random features: with more "
        "features the estimate approaches softmax. The linear transformer replaces the exponential by "
        "(elu(q) + 1) · (elu(k) + 1), which is another function, so no setting brings it closer.",
        "LSH attention (Reformer) computes exact weights for the pairs that share a hash, and none for the "
        "others: it works well if few weights are large. Its queries are its keys, so it is compared with exact "
        "attention of that form. Linformer mixes n keys and values into r by a matrix: it works well if r "
        "mixtures can represent the keys.",
        f"The texts have {WORDS} words in {TOPICS} topics; words of a topic have similar vectors. Scores are cosines "
        f"times {FLAT:g} (flat weights) or {SHARP:g} (sharp weights). The projections of Linformer are learned in a "
        "model; here they average neighbouring words. Errors are relative to the norm of the exact output, over "
        f"{DRAWS} seeds. The matrices in the picture are of {DRAWN} words in {DRAWN // 8} topics. Source: Choromanski "
        "et al. 2021; Peng et al. 2021; Kitaev et al. 2020; Wang et al. 2020; Katharopoulos et al. 2020.",
    )


def words(sharpness: float, seed: int, topics: int, count: int) -> AttentionCall:
    """Attention among words of several topics, sorted by topic: q = k of length sqrt(sharpness), scale 1.

    Words of a topic have similar values too.
    """
    centres = functional.normalize(normal(seed, topics, DIM), dim=-1).repeat_interleave(count // topics, 0)
    x = functional.normalize(centres + SPREAD * normal(seed + 1, count, DIM), dim=-1) * math.sqrt(sharpness)
    values = normal(seed + 2, topics, DIM).repeat_interleave(count // topics, 0) + NOISE * normal(seed + 3, count, DIM)
    return AttentionCall(x[None, None], x[None, None], values[None, None], Full(), {"scale": 1.0})


def _features_errors(flat: AttentionCall, sharp: AttentionCall, seed: int) -> dict[str, list[float]]:
    """The errors of the mechanisms with features, of flat and of sharp weights."""
    errors = {}
    for end, call, sharpness in (("flat", flat, FLAT), ("sharp", sharp, SHARP)):
        waves = [RandomFeature(m, sigma=sharpness**-0.5) for m in FEATURES]
        errors[f"Performer, {end}"] = [error(call, Performer(m), seed=seed) for m in FEATURES]
        errors[f"RandomFeature, {end}"] = [error(call, one, seed=seed) for one in waves]
        errors[f"LinearTransformer, {end}"] = [error(call, LinearTransformer(), seed=seed)]
    return errors


def _hashed_errors(sharp: AttentionCall, seed: int) -> dict[str, list[float]]:
    """The errors of LSH, of words in topics and of words without: each its own topic."""
    loose = words(SHARP, seed, WORDS, WORDS)
    calls = {"LSH, topics": sharp, "LSH, no topics": loose}
    return {name: [error(call, hashed(rounds), seed=seed) for rounds in ROUNDS] for name, call in calls.items()}


def _mixed_errors(sharp: AttentionCall, seed: int) -> dict[str, list[float]]:
    """The errors of Linformer, of words sorted by topic and of the same words in another order."""
    mixed = torch.randperm(WORDS, generator=torch.Generator().manual_seed(seed))
    shuffled = sharp.but(**{name: getattr(sharp, name)[:, :, mixed] for name in ("q", "k", "v")})
    calls = {"Linformer, sorted": sharp, "Linformer, shuffled": shuffled}
    errors = {name: [error(call, *pooled(rank, WORDS), seed=seed) for rank in RANKS] for name, call in calls.items()}
    return errors | {"mean of all values, sharp": [error(sharp, *pooled(1, WORDS), seed=seed)]}


def error(call: AttentionCall, mechanism: Mechanism, parameters: Parameters = None, *, seed: int) -> float:
    """The root mean square of the relative errors over seeds, against the softmax that the mechanism estimates."""
    candidate = Candidate("", "", "", mechanism, parameters)
    call, exact = _compared(call, mechanism)
    draws = range(seed, seed + DRAWS) if candidate.random else (seed,)
    errors = [exact.errors(candidate.call(call, draw).output())[0] for draw in draws]
    return math.sqrt(sum(one**2 for one in errors) / len(errors))


def _compared(call: AttentionCall, mechanism: Mechanism) -> tuple[AttentionCall, Exact]:
    """The call of a mechanism and its exact result; LSH brings keys to length 1, so its scale is the queries' length.

    With sigma = 1 / sqrt(sharpness), RandomFeature has the scores of the call.
    """
    if not mechanism.shares_keys:
        return call, exact_of(call)
    call = call.but(options={"scale": float(call.q[0, 0, 0].norm())})
    return call, exact_results(call, mechanism, {})["keys that are the queries"]


def hashed(rounds: int) -> LSH:
    """LSH with two buckets for each chunk, as in the paper."""
    return LSH(CHUNK, 2 * WORDS // CHUNK, rounds)


def pooled(rank: int, count: int) -> tuple[Linformer, Mapping[str, torch.Tensor]]:
    """A Linformer whose mixtures are the means of neighbouring words, with its parameters."""
    means = torch.eye(rank, dtype=torch.float64).repeat_interleave(count // rank, 1) * rank / count
    return Linformer(count, rank, "keys_and_values"), {"projection": means[None]}


def off_target(call: AttentionCall, mechanism: Any, seed: int) -> list[float]:
    """How far estimated exponentials of scores are from the true ones: of one draw, and of the mean of many draws.

    Relative to the norm of the true ones, after division by the best factor, which cancels in the weights.
    """
    true = (call.q @ call.k.mT).exp()
    draws = [mechanism.redrawn(seed + n) for n in range(MANY)] if hasattr(mechanism, "redrawn") else [mechanism]
    estimates = [_exponentials(one, call) for one in draws]
    singles = [_relative(estimate, true) for estimate in estimates]
    mean = torch.stack(estimates).mean(0)
    return [math.sqrt(sum(one**2 for one in singles) / len(singles)), _relative(mean, true)]


def _exponentials(mechanism: Any, call: AttentionCall) -> torch.Tensor:
    """φ(q) · φ(k) for each pair, (1, 1, words, words)."""
    features = mechanism.lift(call.q, call.k, 1.0, {})
    logs = torch.zeros(())
    for of_vectors, axis in ((features.q_log, -1), (features.k_log, -2)):
        logs = logs if of_vectors is None else logs + of_vectors.unsqueeze(axis)
    return features.q @ features.k.mT * logs.exp()


def _relative(estimate: torch.Tensor, true: torch.Tensor) -> float:
    factor = (estimate * true).sum() / estimate.square().sum()
    return float((factor * estimate - true).norm() / true.norm())


def costs(count: int) -> dict[str, list[float]]:
    """Multiplications relative to exact attention's 2 n² d, counted from the formulas: features, sums and scores."""
    buckets = 2 * WORDS // CHUNK
    return {
        "Performer": [2 * m / count for m in FEATURES],
        "RandomFeature": [3 * m / count for m in FEATURES],  # a sine and a cosine of each direction
        "LSH": [rounds * (2 * CHUNK + buckets / 4) / count for rounds in ROUNDS],
        "Linformer": [2 * rank / count for rank in RANKS],
        "LinearTransformer": [DIM / count],
    }


def _maps(seed: int) -> dict[str, Any]:
    """The weights of each mechanism for one text, from values that are the unit vectors; (words, words) each."""
    call = words(SHARP, seed, DRAWN // 8, DRAWN)
    call = call.but(v=torch.eye(DRAWN, dtype=torch.float64)[None, None])
    tried: dict[str, tuple[Any, ...]] = {
        "Performer, 256 features": (Performer(256, seed),),
        "RFA, 256 features": (RandomFeature(256, seed=seed, sigma=SHARP**-0.5),),
        "linear transformer": (LinearTransformer(),),
        "LSH, 2 rounds": (LSH(8, DRAWN // 4, 2, seed),),
        "Linformer, rank 12": pooled(12, DRAWN),
    }
    maps = {"softmax: exact": call.output()}
    for name, (mechanism, *parameters) in tried.items():
        own, _ = _compared(call, mechanism)
        maps[name] = Candidate("", "", "", mechanism, *parameters).call(own).output()
    return {name: rounded(weights[0, 0], 3) for name, weights in maps.items()}


def slope(errors: list[float], of: tuple[int, ...]) -> float:
    """The slope of a straight line through the logarithms, by least squares."""
    x, y = (torch.tensor(numbers, dtype=torch.float64).log() for numbers in (of, errors))
    x = x - x.mean()
    return float((x * y).sum() / x.square().sum())


def tables(numbers: dict[str, Any]) -> Iterator[Table]:
    errors = numbers["errors"]

    def row(name: str, ends: tuple[str, str], of: str, settings: list[int]) -> tuple[tuple[str, ...], ...]:
        both = zip(*(errors[f"{name}, {end}"] for end in ends), settings, strict=True)
        few, many = (costs(count)[name] for count in (WORDS, LONG))
        return tuple(
            (
                f"{NAMED.get(name, name)}, {count_of(setting, of)}",
                f"{one:.3f}",
                f"{two:.3f}",
                f"{few[at]:.2f}",
                f"{many[at]:.3f}",
            )
            for at, (one, two, setting) in enumerate(both)
        )

    columns = (f"cost at n = {WORDS}", f"cost at n = {LONG:,}")
    linear = [errors[f"{name}, {end}"][0] for name in ("LinearTransformer", "mean of all values") for end in ENDS]
    yield Table(
        "Relative error, and multiplications relative to exact attention: estimates of every weight",
        ("mechanism", "flat weights", "sharp weights", *columns),
        (
            *row("Performer", ENDS, "features", numbers["features"]),
            *row("RandomFeature", ENDS, "features", numbers["features"]),
            (
                "linear transformer",
                *(f"{one:.3f}" for one in linear[:2]),
                f"{DIM / WORDS:.2f}",
                f"{DIM / LONG:.3f}",
            ),
            ("mean of all values", *(f"{one:.3f}" for one in linear[2:]), "0.00", "0.000"),
        ),
    )
    yield Table(
        "The same for LSH, with sharp weights",
        ("mechanism", "words in topics", "no topics", *columns),
        row("LSH", ("topics", "no topics"), "rounds", numbers["rounds"]),
    )
    yield Table(
        "The same for Linformer that averages neighbours, with sharp weights",
        ("mechanism", "sorted by topic", "shuffled", *columns),
        row("Linformer", ("sorted", "shuffled"), "mixtures", numbers["ranks"]),
    )


def claims(numbers: dict[str, Any]) -> Iterator[Claim]:
    errors, off = numbers["errors"], numbers["off_target"]
    slopes = {name: slope(errors[f"{name}, flat"], FEATURES) for name in ("Performer", "RandomFeature")}
    harder = [sharp / flat for sharp, flat in zip(errors["Performer, sharp"], errors["Performer, flat"], strict=True)]
    topics, loose = errors["LSH, topics"], errors["LSH, no topics"]
    at = RANKS.index(TOPICS)
    tidy, mixed = errors["Linformer, sorted"], errors["Linformer, shuffled"]
    yield Claim(
        "The error of Performer and RFA falls like 1 / sqrt(features) for flat weights.",
        all(abs(one + 0.5) < SLOPE for one in slopes.values()),
        ", ".join(f"{NAMED[name]}: slope {one:.2f}" for name, one in slopes.items()) + " on logarithmic axes",
    )
    yield Claim(
        "Both estimate exp(q · k) without bias: the mean of many draws is closer than one draw.",
        all(off[name][1] < off[name][0] / 4 for name in slopes),
        ", ".join(f"{NAMED[name]}: one draw {off[name][0]:.3f}, {MANY} draws {off[name][1]:.3f}" for name in slopes),
    )
    yield Claim(
        "The linear transformer estimates another function: it has no parameter that brings it closer to exp(q · k).",
        off["LinearTransformer"][1] > 0.1 and off["LinearTransformer"][0] == off["LinearTransformer"][1],
        f"relative error {off['LinearTransformer'][1]:.3f} when multiplied by the best factor",
    )
    yield Claim(
        "Performer suits flat weights: sharp ones have a larger error at every number of features.",
        all(times > 1 for times in harder),
        f"{min(harder):.1f} to {max(harder):.1f} times as large",
    )
    yield Claim(
        "LSH needs similar words: in texts with topics its error is at most two thirds of that without topics, "
        "and more rounds reduce it.",
        all(one < two / 1.5 for one, two in zip(topics, loose, strict=True)) and topics[-1] < topics[0],
        f"with {ROUNDS[-1]} rounds {topics[-1]:.3f} and {loose[-1]:.3f}; with 1 round {topics[0]:.3f}",
    )
    yield Claim("A text that fits into one chunk is computed exactly by LSH.", numbers["one_chunk"], ROUNDING)
    yield Claim(
        "Linformer needs keys that its mixtures can represent: sorted words have less than half the error of "
        "shuffled ones.",
        tidy[at] < mixed[at] / 2,
        f"{tidy[at]:.3f} and {mixed[at]:.3f} with {TOPICS} mixtures for {TOPICS} topics",
    )
    yield Claim(
        "With as many mixtures as words, each of one word, Linformer is exact.",
        tidy[-1] < EXACT and mixed[-1] < EXACT,
        ROUNDING,
    )


def draw(numbers: dict[str, Any], figure: Figure) -> None:
    begin(figure, "One matrix of weights, and how five mechanisms estimate it", 14.0, 7.2)
    halves: Any = figure.subfigures(2, 1, height_ratios=[1, 1.25])
    above, below = halves
    maps = above.subplots(1, 6)
    exact = torch.tensor(numbers["maps"]["softmax: exact"])
    for axes, (name, weights) in zip(maps, numbers["maps"].items(), strict=True):
        image = draw_map(axes, torch.tensor(weights), limits=(0.0, float(exact.max())))
        axes.set_aspect("equal")
        axes.set_title(name, fontsize=10, fontweight="bold" if axes is maps[0] else "normal")
    maps[0].set_ylabel("queries, sorted by topic", fontsize=8.5)
    maps[0].set_xlabel("keys", fontsize=8.5)
    bar = above.colorbar(image, ax=maps, shrink=0.75, aspect=20, pad=0.01)
    bar.ax.tick_params(length=2, labelsize=7.5)
    bar.set_label("weight", fontsize=8, color=FAINT)
    panels = below.subplots(1, 3)
    _draw_features(panels[0], numbers)
    both = (
        (panels[1], "LSH", {"topics": "words in topics", "no topics": "no topics"}, "rounds", "rounds of hashing"),
        (panels[2], "Linformer", {"sorted": "neighbours alike", "shuffled": "shuffled"}, "ranks", "mixtures"),
    )
    for axes, name, labels, knob, label in both:
        for number, (end, text) in enumerate(labels.items()):
            shown = [max(one, LEAST) for one in numbers["errors"][f"{name}, {end}"]]
            draw_line(axes, numbers[knob], shown, number, text)
        least = min(min(numbers["errors"][f"{name}, {end}"]) for end in labels)
        label_axes(axes, f"{name}: sharp weights", label, "relative error" + " (0 drawn as 0.001)" * (least < LEAST))
        _logarithmic(axes, numbers[knob])
        legend_below(axes)


def _draw_features(axes: Axes, numbers: dict[str, Any]) -> None:
    features, errors = numbers["features"], numbers["errors"]
    for number, (name, end) in enumerate((name, end) for name in NAMED for end in ENDS):
        draw_line(axes, features, errors[f"{name}, {end}"], number, f"{NAMED[name]}, {end}")
    start = errors["RandomFeature, flat"][0] * 0.6
    axes.plot(features, [start * (features[0] / m) ** 0.5 for m in features], color=FAINT, linestyle="--", linewidth=1,
              label="1 / sqrt(features)")  # fmt: skip
    axes.axhline(errors["LinearTransformer, flat"][0], color=LINES[4], linewidth=1.4, linestyle=":",
                 label="linear transformer, flat")  # fmt: skip
    label_axes(axes, "Random features", "features", "relative error")
    _logarithmic(axes, features)
    legend_below(axes, columns=3)


def _logarithmic(axes: Axes, places: list[int]) -> None:
    from matplotlib.ticker import LogLocator

    axes.set(xscale="log", yscale="log")
    low, high = axes.get_ylim()
    axes.set_xticks(places, [f"{place:,}" for place in places])
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
    axes.yaxis.set_major_formatter(lambda number, _: f"{number:g}")
    axes.minorticks_off()
