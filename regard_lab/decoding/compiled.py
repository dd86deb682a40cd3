"""Steps of decoding as one compiled graph, over static caches."""

import re
import time
from functools import partial
from typing import Any

import torch

from regard.errors import UnsupportedError
from regard.positions import Learned
from regard_lab.text.vocabularies import BEGIN

LARGEST_WIDTH = 2**20  # of a product of one row; PyTorch's 2,048 leaves out most vocabularies


def one_row_options() -> dict[str, Any]:
    """Options of `torch.compile` that compute products of a single row as sums on the CPU, which is faster.

    A step that decodes one text is then limited by the bandwidth of memory; PyTorch's own product for one row reads
    weights at half of it. Use them for steps only: a batched product whose batch is 1 becomes a sum too, which is slow
    for many rows.

    Returns:
        The argument `options` of `torch.compile`.

    Example:
        >>> from regard_lab.decoding import one_row_options
        >>> step = torch.compile(torch.nn.Linear(16, 4099), options=one_row_options())
    """
    from torch._inductor.fx_passes import decompose_mem_bound_mm  # it takes seconds to import

    largest = {"cpu_max_other_dimension_decomposition": LARGEST_WIDTH}
    vars(decompose_mem_bound_mm).update(largest)  # the module reads its options only when imported
    return {"post_grad_fusion_options": {"decompose_mm_pass": largest}}


def check_compilable(model: Any) -> None:
    """Refuse a model with a memory that no static cache holds.

    Raises:
        UnsupportedError: a layer with a recurrent state.
    """
    blocks = getattr(model, "blocks", ())  # a translator has none, and its decoder has softmax
    for layer, block in enumerate(blocks):
        mechanism = block.attention.mechanism
        if mechanism.reason_against_caches is not None:
            raise UnsupportedError(
                f"layer {layer} of this {type(model).__name__} has {mechanism.declared}, whose memory is a recurrent "
                f"state, and compiled steps read static caches of keys and values; do not compile them (leave out "
                f"--compile)"
            )


def compile_steps(model: Any) -> float:
    """Compile the steps of a language model or a translator, in place, by `torch.compile`; searches then need
    `cache="static"`.

    One graph serves the steps of a text, whatever its length and the room of its caches. The first step of several
    texts at once compiles one more.

    Returns:
        The seconds that it took.

    Raises:
        UnsupportedError: a model whose steps are no graph over caches of keys and values, or no C++ compiler.
    """
    from torch._dynamo.exc import TorchDynamoException  # it takes seconds to import

    layers = getattr(model, "_through_layers", None)
    if layers is None:
        raise UnsupportedError(
            f"{type(model).__name__} keeps no keys and values in caches, so no step is compiled"
        )
    check_compilable(model)
    began = time.perf_counter()
    options = {"fullgraph": True, "dynamic": True, "options": one_row_options()}
    compiled: Any = partial(torch.compile, **options)
    score = model._score
    compiled_layers = compiled(layers)
    compiled_score = compiled(score)

    def through_layers(ids: torch.Tensor, places: torch.Tensor, *given: Any) -> torch.Tensor:
        if isinstance(model.positions, Learned):  # a graph does not check them
            model.positions.check(places)
        if ids.shape[1] == 1:
            return compiled_layers(ids, places, *given)
        return layers(ids, places, *given)  # of a prompt

    def score_of(x: torch.Tensor) -> torch.Tensor:
        if x.ndim != 2:
            return score(x)
        return compiled_score(x.clone())  # one with a storage offset would need a graph of its own

    model._through_layers = through_layers
    model._score = score_of
    try:
        with torch.inference_mode():  # as in a search: a graph is for tensors of this mode
            text = torch.full((1, 3), BEGIN, device=next(model.parameters()).device)
            model.step(text[0, :1], model.start(text, "static", capacity=5))
    except TorchDynamoException as error:
        model._through_layers = layers
        model._score = score
        raised_while_tracing = re.search(r"raised exception \w+\(['\"](.*)['\"]", str(error))
        because = str(error).strip().partition("\n")[0]
        if raised_while_tracing:
            because = raised_while_tracing[1]
        raise UnsupportedError(
            f"the steps of this {type(model).__name__} cannot be compiled ({because}); do not compile them, or install "
            f"a C++ compiler such as g++ if there is none"
        ) from error
    return time.perf_counter() - began
