"""What all functions of PyTorch's tensors have in common: dtypes, layouts, gradients and transforms of a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from regard.reprs import brief
from regard.testing.cases import in_layout
from regard.testing.conformance.call import Array, NeutralCall, Results

TRANSFORMS = ("vmap", "jvp", "second derivatives", "functional gradient", "compile")
WORDS = ("mask", "bias", "causal", "scale", "gradients", "layout", *TRANSFORMS)
# What `Torch` does for every function of tensors.
OF_TENSORS = ("k_dtype", "bias_dtype", "mask_layout", "changed inputs")
Tensors = Mapping[str, torch.Tensor | None]  # q, k, v, mask, bias, sink


@brief
@dataclass(frozen=True)
class Torch:
    """A function of tensors as a library.

    Args:
        function: of the call and its tensors by name (q, k, v, mask, bias, sink); it returns the output, or results by
            name.
        words: the options of a NeutralCall that it takes.

    >>> from regard.testing.conformance import CLAUSES, judge
    >>> def attend(call, tensors):
    ...     scores = tensors["q"] @ tensors["k"].mT * call.used_scale
    ...     return torch.softmax(scores, -1) @ tensors["v"]
    >>> mine = Torch(attend, words=("scale", "gradients", "layout"))
    >>> judge(CLAUSES["scale-given"], mine).status, judge(CLAUSES["no-keys"], mine).status
    ('agrees', 'agrees')
    >>> judge(CLAUSES["causal-square"], mine).detail  # it has no word for that
    'causal'
    """

    function: Callable[[NeutralCall, Tensors], torch.Tensor | dict[str, torch.Tensor]]
    words: tuple[str, ...] = WORDS

    def __call__(self, call: NeutralCall) -> Results:
        call.refuse_words(*self.words, *OF_TENSORS)
        tensors = tensors_of(call)
        learning: list[Any] = [tensors[name] for name in call.gradients]
        for x in learning:
            x.requires_grad_()
        torch.manual_seed(call.seed)
        if call.transform not in (None, "compile", "second derivatives"):
            return _numbers(self._transformed(call, tensors))
        function = self._compiled() if call.transform == "compile" else self.function
        with torch.set_grad_enabled(bool(learning)):
            results = _by_name(function(call, tensors))
        if learning:
            assert call.grad_output is not None
            grad = torch.from_numpy(call.grad_output).to(results["output"].dtype)
            again = call.transform == "second derivatives"
            gradients = torch.autograd.grad(results["output"], learning, grad, create_graph=again)
            prefix = "d"
            if again:
                assert call.directions is not None
                along = torch.from_numpy(call.directions[0]).to(gradients[0].dtype)
                gradients = torch.autograd.grad((gradients[0] * along).sum(), learning)
                prefix = "dd"
            named = zip(call.gradients, gradients, strict=True)
            results |= {f"{prefix}{name}": x for name, x in named}
        if "changed inputs" in call.wants:
            results["changed inputs"] = _count_changes(tensors, tensors_of(call))
        return _numbers(results)

    def _compiled(self) -> Callable[[NeutralCall, Tensors], Any]:
        """The function as one graph; the compiler of PyTorch traces it, and no code is generated from the graph."""
        torch.compiler.reset()  # it would give up at the eighth call with other options
        return torch.compile(self.function, fullgraph=True, backend="aot_eager")

    def _transformed(self, call: NeutralCall, tensors: Tensors) -> dict[str, torch.Tensor]:
        """The results by a transform of `torch.func`."""
        inputs: list[Any] = [tensors[name] for name in "qkv"]

        def attend(*qkv: torch.Tensor) -> torch.Tensor:
            changed = dict(zip("qkv", qkv, strict=True))
            return _by_name(self.function(call, {**tensors, **changed}))["output"]

        if call.transform == "jvp":
            assert call.directions is not None
            along = [torch.from_numpy(x).to(inputs[0].dtype) for x in call.directions]
            forward: Any = torch.func.jvp
            output, tangent = forward(attend, tuple(inputs), tuple(along))
            return {"output": output, "tangent": tangent}

        def loss(*qkv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            assert call.grad_output is not None
            output = attend(*qkv)
            return (output * torch.from_numpy(call.grad_output).to(output.dtype)).sum(), output

        function: Any = attend
        if call.gradients:
            function = torch.func.grad(loss, argnums=(0, 1, 2), has_aux=True)
        if call.transform == "vmap":
            function = torch.func.vmap(function)
            inputs = [torch.stack([x, 2 * x]) for x in inputs]
        if not call.gradients:
            return {"output": function(*inputs)}
        (dq, dk, dv), output = function(*inputs)
        return {"output": output, "dq": dq, "dk": dk, "dv": dv}


def _count_changes(used: Tensors, fresh: Tensors) -> torch.Tensor:
    count = 0
    for name in ("q", "k", "v", "mask"):
        after = used[name]
        before = fresh[name]
        if after is not None and before is not None:
            count += int((after != before).sum())
    return torch.tensor([float(count)])


def _by_name(results: torch.Tensor | dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return results if isinstance(results, dict) else {"output": results}


def _numbers(results: Mapping[str, torch.Tensor]) -> Results:
    return {name: x.detach().double().numpy() for name, x in results.items()}


def tensors_of(call: NeutralCall) -> dict[str, torch.Tensor | None]:
    """The tensors of a call in its dtypes and layout."""
    dtype = getattr(torch, call.dtype)
    k_dtype = getattr(torch, call.changed("k_dtype") or call.dtype)
    bias_dtype = getattr(torch, call.changed("bias_dtype") or call.dtype)
    mask = None
    if call.mask is not None:
        mask = torch.from_numpy(call.mask.copy())
        mask = mask.to(getattr(torch, call.changed("mask_dtype") or "bool"))
        if call.changed("mask_layout") == "expanded":
            mask = mask[:1, :1].expand(mask.shape)
    return {
        "q": _in_layout(_tensor(call.q, dtype), call.layout),
        "k": _in_layout(_tensor(call.k, k_dtype), call.layout),
        "v": _in_layout(_tensor(call.v, dtype), call.layout),
        "mask": mask,
        "bias": None if call.bias is None else _tensor(call.bias, bias_dtype),
        "sink": None if call.sink is None else _tensor(call.sink, dtype),
    }


def _tensor(x: Array, dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(np.array(x)).to(dtype)


def _in_layout(x: torch.Tensor, layout: str) -> torch.Tensor:
    return torch._neg_view(-x) if layout == "negated" else in_layout(x, layout)
