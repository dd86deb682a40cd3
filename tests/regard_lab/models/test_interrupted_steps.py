"""A model whose step is stopped at any line leaves a state as before or as after the step, the same in every layer."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from injections import interrupted, lines_of

from regard_lab.models import LanguageModel, RecurrentTranslator, TranslationTransformer

BATCH = 3
LENGTH = 5
VOCABULARY = 23
MOST = 100  # lines of one change
ERRORS: tuple[type[BaseException], ...] = (KeyboardInterrupt, MemoryError)
SIZES: dict[str, Any] = {"vocab_size": VOCABULARY, "dim": 12}
MODELS: dict[Any, dict[str, Any]] = {
    LanguageModel: {**SIZES, "heads": 2, "layers": 2},
    TranslationTransformer: {**SIZES, "heads": 2, "encoder_layers": 1, "decoder_layers": 2},
    RecurrentTranslator: {**SIZES, "hidden": 8},
}
ORDER = torch.tensor([2, 0, 0])
IDS = torch.arange(4 * BATCH).view(4, BATCH) % 13 + 5
CHANGES: dict[str, Callable[[Any, Any], Any]] = {
    "step": lambda model, state: model.step(IDS[0], state),
    "reorder": lambda model, state: state.reorder(ORDER),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("kind", MODELS)
def test_a_state_is_as_before_or_as_after_a_change_that_is_stopped_at_any_line(
    kind: Any, name: str
) -> None:
    torch.manual_seed(3)
    model = kind(kind.Config(**MODELS[kind])).double().eval()
    change = CHANGES[name]
    texts = torch.arange(BATCH * LENGTH).view(BATCH, LENGTH) % 17 + 5

    def state() -> Any:
        begun = model.start(texts)
        model.step(IDS[1], begun)
        return begun

    def later(begun: Any) -> torch.Tensor:
        """The scores of two more steps, which show the states of all layers."""
        return torch.stack([model.step(ids, begun) for ids in IDS[2:]])

    with torch.no_grad():
        changed = state()
        change(model, changed)
        wanted = [later(state()), later(changed)]
        begun = state()
        for number, line in enumerate(lines_of(lambda: change(model, begun), most=MOST)):  # noqa: B023
            begun = state()
            interrupted(lambda: change(model, begun), line, ERRORS[number % 2])  # noqa: B023
            logits = later(begun)
            assert any(torch.allclose(logits, answer, rtol=0, atol=1e-12) for answer in wanted), (
                line
            )
