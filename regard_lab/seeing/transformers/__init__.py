"""Models of transformers in the explorer and by lenses; `regard.integrations.transformers` computes them."""

from regard.packages import needed

with needed("transformers", "regard_lab.seeing.transformers", "transformers"):
    import transformers  # noqa: F401

from regard_lab.seeing.transformers.english import english_folder, english_model
from regard_lab.seeing.transformers.explaining import Pretrained, pretrained_relevance
from regard_lab.seeing.transformers.exploring import (
    explore_observed,
    explore_pretrained,
    serve_pretrained,
)

__all__ = [
    "Pretrained",
    "english_folder",
    "english_model",
    "explore_observed",
    "explore_pretrained",
    "pretrained_relevance",
    "serve_pretrained",
]
