"""Integrated gradients: how much the embedding of each word adds to the log odds between a baseline and the input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from regard_lab.seeing.lenses.contrast import Contrast
from regard_lab.seeing.lenses.passes import SIDES, Batch, Explained, Vectors, in_batches, run
from regard_lab.seeing.lenses.record import WordScores, by_word

STEPS = 20
FINER, MOST_STEPS = 3, 540  # the steps are tripled, up to this number
ENOUGH = 0.05  # the completeness error at which they stay: of the change of the log odds, if that is above 1


@dataclass(frozen=True)
class Integrated:
    """Integrated gradients of one side.

    Args:
        scores: (batch, length) of each id, float32 or wider; 0 for padding, BEGIN and END.
        change: (batch,) the log odds minus those with every word of the side replaced by the baseline.
    """

    scores: torch.Tensor
    change: torch.Tensor

    @property
    def error(self) -> torch.Tensor:
        """The completeness error (batch,): `|sum of scores - change|`."""
        return (self.scores.sum(1) - self.change).abs()


def integrate(model: Explained, batch: Batch, side: str, steps: int) -> Integrated:
    """Integrate the gradient of the log odds f along the line from the baseline b to the embeddings x of one side.

        score_i = (x_i - b) . mean over s of grad_i f(b + (s + 1/2) / steps (x - b))

    The other side stays as it is. One run of the model holds all steps of all batch rows.

    Source: Axiomatic Attribution for Deep Networks, Sundararajan et al. 2017, section 3.
    """
    vectors, without = Vectors.of_batch(model, batch), Vectors.without_words(model, batch)
    x, start = vectors.side(side), without.side(side)
    kept = x.dtype
    wide = torch.promote_types(kept, torch.float32)
    x, start = x.to(wide), start.to(wide)
    index = torch.arange(len(x), device=x.device).repeat_interleave(steps)
    along = ((torch.arange(steps, device=x.device, dtype=wide) + 0.5) / steps).repeat(len(x))[:, None, None]
    path = (start[index] + along * (x - start)[index]).requires_grad_()
    with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):  # cuDNN has no backward pass in eval mode
        odds = run(model, batch.rows(index), vectors.rows(index).with_side(side, path.to(kept)))
        (gradient,) = torch.autograd.grad(odds.sum(), path)
    mean = gradient.unflatten(0, (len(x), steps)).mean(1)  # (batch, length, dim)
    with torch.no_grad():
        change = run(model, batch) - run(model, batch, vectors.with_side(side, without.side(side)))
    return Integrated(((x - start) * mean).sum(-1), change)


def gradient_scores(
    model: Explained, contrasts: Sequence[Contrast], *, steps: int | None = None, sides: Sequence[str] = SIDES
) -> list[WordScores]:
    """Integrated gradients of each word of the source, and apart from them of each written word.

    Args:
        model: in eval mode.
        contrasts: what is explained.
        steps: of the integral. None takes 20, and for texts whose completeness error is then above 5 % of the change of
            the log odds 60, 180 and at last 540.
        sides: "source", "written" or both; a side that is left out has no scores.
    """
    results = [WordScores(passes=1) for _ in contrasts]
    for side in sides:
        pending = [index for index, contrast in enumerate(contrasts) if getattr(contrast, side)]
        number = STEPS if steps is None else steps
        while pending:
            again = []
            for group in in_batches([contrasts[index] for index in pending], number):
                chosen = [pending[place] for place in group]
                batch = Batch.of_contrasts([contrasts[index] for index in chosen], model.embedding.weight.device)
                integrated = integrate(model, batch, side, number)
                for row, index in enumerate(chosen):
                    results[index] = _with_side(results[index], contrasts[index], side, integrated, row, number)
                    error, change = (float(part[row]) for part in (integrated.error, integrated.change))
                    if steps is None and number < MOST_STEPS and error > ENOUGH * max(1.0, abs(change)):
                        again.append(index)
            pending, number = again, FINER * number
    return results


def _with_side(
    before: WordScores, contrast: Contrast, side: str, integrated: Integrated, row: int, steps: int
) -> WordScores:
    """The scores with those of one side, and the passes that they took."""
    spans = contrast.source_words if side == "source" else contrast.written_words
    first_time = not getattr(before, side)
    return before.changed(
        **{side: by_word(integrated.scores[row], spans)},
        passes=before.passes + steps + first_time,
        backward_passes=before.backward_passes + steps,
        errors={**before.errors, side: float(integrated.error[row])},
        changes={**before.changes, side: float(integrated.change[row])},
    )
