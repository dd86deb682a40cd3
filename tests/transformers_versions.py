"""What differs between the supported versions of transformers."""

import inspect

import pytest
import transformers
from packaging.version import Version
from transformers.masking_utils import create_chunked_causal_mask

# The keyword of a model, and of `generate`, for a cache; the outputs of a model name it alike.
_KEYWORDS = inspect.signature(transformers.LlamaForCausalLM.forward).parameters
CACHE = "cache" if "cache" in _KEYWORDS else "past_key_values"

# Whether `generate` makes the mask of chunks for a static cache; with transformers 5.17 it raises a TypeError.
_MASK_KEYWORDS = inspect.signature(create_chunked_causal_mask).parameters
STATIC_CHUNKS = "block_sequence_ids" in _MASK_KEYWORDS


def needs_t5() -> None:
    """Skip the test if the attention of T5 cannot be replaced in the installed version."""
    if Version(transformers.__version__) < Version("5.20"):
        pytest.skip("the attention of T5 can be replaced from transformers 5.20 on")
