"""Trains a small denoiser that draws what a caption says, measures whether it does, and writes the lesson's report.

python benchmarks/caption.py [--run runs/caption] [--steps 3000]

About four minutes of CPU time. A stopped training continues when the command is repeated. It writes the figures to
`regard_lab/teaching/reports/caption.json` and the weights, in float16, beside them. A second denoiser is trained in
the same way without cross-attention, for comparison.
"""

import math
from pathlib import Path
from typing import Any

import torch

from benchmarks.report import options, trained, write_lesson_report
from regard.storage.tensors import save_tensors
from regard_lab.teaching.captions import (
    SCENES,
    Caption,
    draw_scene,
    nearest_scenes,
    word_numbers,
)
from regard_lab.teaching.denoiser import Denoiser, sample
from regard_lab.teaching.report import REPORTS

BATCH = 32
SILENT = 0.1  # share of pictures whose caption is withheld in training
PICTURES = 2  # of each held-out caption
PARTS = ("colour", "shape", "relation")
HELD_OUT = [scene for scene in SCENES if scene.held_out]
TRAINED = [scene for scene in SCENES if not scene.held_out]


def draw_batch(captions: list[Caption], generator: torch.Generator) -> torch.Tensor:
    """A picture for each caption with random moves, (captions, 3, 12, 12)."""
    moves = torch.randint(2, (len(captions), 4), generator=generator).tolist()
    pictures = [
        draw_scene(caption.scene, move) for caption, move in zip(captions, moves, strict=True)
    ]
    return torch.stack(pictures)


def noisy(pictures: torch.Tensor, noise: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    """`cos(angle) · picture + sin(angle) · noise`, with angles (batch,)."""
    angle = angle[:, None, None, None]
    return angle.cos() * pictures + angle.sin() * noise


class CaptionTask:
    """The task: pictures with moves, noise and captions that are functions of the number of the batch."""

    def batch(self, index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        scenes = torch.randint(len(TRAINED), (BATCH,), generator=generator).tolist()
        turns = torch.rand(BATCH, generator=generator).tolist()
        captions = []
        for scene, turn in zip(scenes, turns, strict=True):
            captions.append(TRAINED[scene] if turn < 0.5 else TRAINED[scene].reversed)
        pictures = draw_batch(captions, generator)
        words, counts = word_numbers(captions)
        spoken = torch.rand(BATCH, generator=generator) >= SILENT
        # More often where the caption matters.
        angle = torch.rand(BATCH, generator=generator).sqrt() * math.pi / 2
        noise = torch.randn(pictures.shape, generator=generator)
        return {
            "pictures": pictures,
            "noisy": noisy(pictures, noise, angle),
            "angle": angle,
            "words": words,
            "counts": counts * spoken,
        }

    def loss(
        self, model: torch.nn.Module, batch: dict[str, torch.Tensor]
    ) -> tuple[torch.Tensor, int]:
        estimate = model(batch["noisy"], batch["angle"], batch["words"], batch["counts"])
        return (estimate - batch["pictures"]).square().sum(), estimate.numel()

    def validation_batches(self) -> list[dict[str, torch.Tensor]]:
        return []

    validation_loss = loss

    def fingerprint(self) -> dict[str, Any]:
        return {"data": "captioned pictures", "batch": BATCH, "silent": SILENT}


def new_denoiser(reads: bool, steps: int, run: Path) -> tuple[Denoiser, float]:
    """A denoiser trained in a folder, or continued there, and the CPU seconds of its training."""
    torch.manual_seed(0)
    model = Denoiser(reads=reads)
    settings = {"gradient_clip": 1.0, "betas": (0.9, 0.99), "save_every": 250, "log_every": 100}
    result = trained(model, CaptionTask(), steps, 3e-3, 0, 100, run, **settings)
    print(
        f"{run}: {result.steps} steps, loss {result.train_loss}, {result.cpu_seconds:.0f} CPU seconds",
        flush=True,
    )
    return model.eval(), result.cpu_seconds


def shares(
    model: Denoiser, captions: list[Caption], expected: list[Caption], speak: bool = True
) -> dict[str, float]:
    """How many of the pictures sampled for `captions` show what `expected` says, wholly and in parts."""
    words, counts = word_numbers(captions)
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(len(captions), 3, 12, 12, generator=generator, dtype=torch.float64)
    pictures = sample(model.double(), noise, words, counts * speak)[-1]
    model.float()

    right = {"all": 0, "relation": 0, "colours": 0, "shapes": 0}
    for shown, caption in zip(nearest_scenes(pictures), expected, strict=True):
        scene = caption.scene
        has_colours = [shown.first[0], shown.second[0]] == [scene.first[0], scene.second[0]]
        has_shapes = [shown.first[1], shown.second[1]] == [scene.first[1], scene.second[1]]
        right["all"] += shown == scene
        right["relation"] += shown.relation == scene.relation
        right["colours"] += has_colours
        right["shapes"] += has_shapes
    return {name: round(count / len(captions), 4) for name, count in right.items()}


def in_both_orders(captions: list[Caption]) -> list[Caption]:
    """Each caption, and behind it the one that names the same scene from the other side."""
    both = []
    for caption in captions:
        both += [caption, caption.reversed]
    return both


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--run", type=Path, default=Path("runs/caption"))
    parser.add_argument("--steps", type=int, default=3000)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    asked.run.mkdir(parents=True, exist_ok=True)
    model, seconds = new_denoiser(True, asked.steps, asked.run / "reads")
    size = sum(weight.numel() for weight in model.parameters())
    halves = {name: weight.half() for name, weight in model.state_dict().items()}
    seal = save_tensors(REPORTS / "caption.safetensors", halves, {"lesson": "caption"})
    # Measure what is stored.
    model.load_state_dict({name: weight.float() for name, weight in halves.items()})
    without, without_seconds = new_denoiser(False, asked.steps * 2 // 5, asked.run / "reads_not")
    held_out = in_both_orders(HELD_OUT) * PICTURES
    seen = in_both_orders(TRAINED[::3])
    others = held_out[25:] + held_out[:25]  # of another scene, half of them with the other relation
    measured = {
        "held out": shares(model, held_out, held_out),
        "seen in training": shares(model, seen, seen),
    }
    for part in PARTS:
        edited = [caption.change_word(part)[0] for caption in held_out]
        measured[f"{part} changed"] = shares(model, edited, edited)
    measured["another caption"] = shares(model, others, held_out)
    measured["no caption"] = shares(model, held_out, held_out, speak=False)
    measured["no cross-attention"] = shares(without, held_out, held_out)
    figures = {
        "steps": asked.steps,
        "batch": BATCH,
        "parameters": size,
        "weights": seal,
        "cpu_seconds": round(seconds),
        "without_steps": asked.steps * 2 // 5,
        "without_cpu_seconds": round(without_seconds),
        "trained_scenes": len(TRAINED),
        "held_out_scenes": len(HELD_OUT),
        "pictures": len(held_out),
        "seen_pictures": len(seen),
        "shares": measured,
    }
    steps = "" if asked.steps == 3000 else f" --steps {asked.steps}"
    path = write_lesson_report("caption", f"python benchmarks/caption.py{steps}", figures)
    print(path.read_text())


if __name__ == "__main__":
    main()
