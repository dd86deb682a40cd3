"""One interface to PyTorch's private fused attention operations; no other module calls them.

They differ by device, return a wrong log-sum-exp for empty rows, need equal head sizes, and fail on sizes of zero; this
file corrects that. `forward` and `backward` do not use autograd; `attend` is differentiable.

In this file: q (batch, heads, q_len, head_dim), k (batch, kv_heads, k_len, head_dim), v (batch, kv_heads, k_len,
v_dim), all sizes at least 1; mask: None or scores to add, (batch or 1, heads or 1, q_len, k_len), -inf = masked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from regard.backends.far import any_far
from regard.backends.limits import on_dot_products, where
from regard.backends.second_order import Piece, by_pieces, direct_apply, gradients
from regard.core.backend import Operands
from regard.core.problem import Problem

_aten: Any = torch.ops.aten
_ONE = torch.ones((), device="cpu")  # the 1 of 1 / x in `forward`
_NO_SUMS = torch.empty(0, device="cpu")  # in the place of a log-sum-exp that is not used
_PIECE = 1 << 20  # scores computed at once for second derivatives
LARGEST = 256  # numbers of a vector that FlashAttention takes
# Whether this CPU multiplies bfloat16 natively. If not, float32 is as fast and more exact.
_BFLOAT16 = bool(getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)())


class FusedCall(NamedTuple):
    """The options of a fused call. `causal` allows key j for query i if j <= i, both counted from 0.

    `sums` is False if the log-sum-exp is not used; an empty tensor may then be returned in its place.
    """

    mask: torch.Tensor | None
    causal: bool
    scale: float
    sums: bool = True


class OutputAndSums(NamedTuple):
    """Output (batch, heads, q_len, v_dim), log-sum-exp (batch, heads, q_len), and what a backend keeps of the rows.

    A log-sum-exp is rounded, and if it is large this changes the weights exp(score - log_sum_exp) and their sum.
    """

    output: torch.Tensor
    log_sum_exp: torch.Tensor
    row_sums: torch.Tensor | None = None


class BackwardInputs(NamedTuple):
    """What a backward pass needs: inputs, results, and their gradients; that of an unused log-sum-exp is None.

    `row_sums` is None where the results are merged from those of several calls.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    output: torch.Tensor
    log_sum_exp: torch.Tensor
    grad: torch.Tensor
    grad_log_sum_exp: torch.Tensor | None
    row_sums: torch.Tensor | None = None


def refusal(dtype: torch.dtype, device: str) -> str | None:
    """Why no fused operation takes this dtype on this device, or None."""
    if device == "cpu":
        return None
    if device != "cuda":
        return f"no fused operation is known on {device}"
    if dtype == torch.float64:
        return f"the fused operation on cuda does not take {dtype}"
    return None


def takes_dtype(problem: Problem) -> str | None:
    """A limit: the dtypes that a fused operation takes on the device of a problem."""
    return refusal(problem.dtype, problem.device)


# Of backends that compute softmax by these operations alone.
LIMITS = (
    on_dot_products,
    where(
        "empty",
        "there is nothing to compute, and the fused operations fail on sizes of 0",
    ),
    where("softcap", "the fused operations have no softcap"),
    where(
        "dropout",
        "the fused operations drop weights by another random number generator than dropout_seed's",
    ),
    where("bias_learns", "the fused operations give a bias no gradient"),
    takes_dtype,
)


def operation_dtype(dtype: torch.dtype, device: str) -> torch.dtype:
    """The dtype in which the operation computes tensors of `dtype`: their own if this machine is faster in it."""
    if device != "cpu" or dtype in (torch.float32, torch.float64):
        return dtype
    return dtype if dtype == torch.bfloat16 and _BFLOAT16 else torch.float32


def rounds_bias(operands: Operands) -> bool:
    """Whether an operation in the dtype of q would round the numbers of a bias tensor, which it takes in that dtype."""
    bias = operands.bias
    return isinstance(bias, torch.Tensor) and bias.dtype.itemsize > operands.q.dtype.itemsize == 2


def has_flash_attention(dtype: torch.dtype, size: int, device: str) -> bool:
    """Whether FlashAttention computes calls without a mask; the other operation on cuda computes the rest.

    It is faster, reads the keys of a group once, and divides long keys among the multiprocessors if queries are few.

    Args:
        dtype: of q, k and v; FlashAttention takes half precision alone.
        size: the larger one of head_dim and v_dim.
        device: "cpu" or "cuda".
    """
    return device == "cuda" and dtype.itemsize == 2 and size <= LARGEST and _is_recent()


@cache
def _is_recent() -> bool:
    """Whether this GPU has FlashAttention; True where calls for cuda are only planned."""
    if not torch.cuda.is_available():
        return True
    return torch.version.hip is None and torch.cuda.get_device_capability() >= (8, 0)


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, call: FusedCall
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output (batch, heads, q_len, v_dim) and log-sum-exp (batch, heads, q_len), both differentiable."""
    if not (torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)):
        return forward(q, k, v, call)
    transformed = torch._C._are_functorch_transforms_active()
    if q.is_cuda and call.mask is None and not call.sums and not transformed:
        return _ByTorch.apply(q, k, v, call), _NO_SUMS
    apply = _Attend.apply if transformed else _apply
    result = apply(q, k, v, call)
    return result if call.sums else (result, _NO_SUMS)


def forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, call: FusedCall
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum-exp, with -inf for empty rows and NaN for rows whose query or keys are not finite."""
    v_dim = v.shape[-1]
    if call.scale <= 0:
        # The operation multiplies masked scores too, and -inf · scale would not be -inf.
        q = q * _sign_of_scale(call)
        call = call._replace(scale=abs(call.scale) or 1.0)
    on_cpu = q.is_cpu
    if not on_cpu and call.mask is None and not call.sums and _lies_ready(q, k, v):
        return _by_torch(q, k, v, call), _NO_SUMS  # nothing has to be corrected
    if not (on_cpu and q.shape[-1] == v_dim and q.stride(-1) == k.stride(-1) == v.stride(-1) == 1):
        q, k, v = _equal_head_sizes(q, k, v)
    if not on_cpu:
        output, log_sum_exp = _forward_cuda(q, k, v, call)
        return _repaired(q, k, output[..., :v_dim], log_sum_exp, call)
    # Faster to call than by `torch.ops.aten`.
    output, log_sum_exp = torch._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, call.causal, attn_mask=call.mask, scale=call.scale
    )
    output = output if output.shape[-1] == v_dim else output[..., :v_dim]
    if call.mask is None:
        # Then only rows whose scores are all NaN are wrong, and their log-sum-exp is 0.
        if log_sum_exp.all():
            return output, log_sum_exp
    elif math.isfinite(torch.addcdiv(log_sum_exp, _ONE, log_sum_exp).sum().item()):
        # The sum of x + 1/x is finite: no log-sum-exp is 0, inf or NaN.
        return output, log_sum_exp
    return _repaired(q, k, output, log_sum_exp, call)


def backward(
    saved: BackwardInputs, call: FusedCall
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of q, k and v, given those of the output and, if it was used, of the log-sum-exp.

    With weights P, dS = P (dP - rowsum(grad · output) + grad_log_sum_exp). The operation computes the first two
    terms. One more column adds the third: there grad is 1, v is 0 and output is -grad_log_sum_exp.

    The operation computes P as exp(score - log_sum_exp). With a far row plain operations compute the gradients.
    """
    if any_far(saved.log_sum_exp):
        inputs = saved.q, saved.k, saved.v
        grads = saved.grad, saved.grad_log_sum_exp
        dq, dk, dv = by_pieces(_pieces(*inputs, call), inputs, grads)
        return dq, dk, dv
    q, k, v, output, log_sum_exp = saved.q, saved.k, saved.v, saved.output, saved.log_sum_exp
    grad = saved.grad
    grad_log_sum_exp = saved.grad_log_sum_exp
    head_dim = q.shape[-1]
    v_dim = v.shape[-1]
    if call.scale <= 0:
        positive = call._replace(scale=abs(call.scale) or 1.0)
        dq, dk, dv = backward(saved._replace(q=q * _sign_of_scale(call)), positive)
        return dq * _sign_of_scale(call), dk, dv
    if call.mask is not None or (log_sum_exp.is_cpu and (log_sum_exp == -math.inf).any()):
        empty_rows = log_sum_exp == -math.inf
        # Every weight is exp(score - inf) = 0 then, of masked pairs and of pairs whose scores overflowed.
        log_sum_exp = log_sum_exp.masked_fill(empty_rows, math.inf)
        q = q.masked_fill(empty_rows[..., None], 0)
        grad = grad.masked_fill(empty_rows[..., None], 0)
        if grad_log_sum_exp is not None:
            grad_log_sum_exp = grad_log_sum_exp.masked_fill(empty_rows, 0)
    if grad_log_sum_exp is not None:
        column = grad_log_sum_exp.to(grad.dtype)[..., None]
        grad = torch.cat([grad, torch.ones_like(column)], -1)
        output = torch.cat([output, -column], -1)
        v = F.pad(v, (0, 1))
    q, k, v = _equal_head_sizes(q, k, v)
    wide = v.shape[-1]
    padded = BackwardInputs(
        q, k, v, _widened(output, wide), log_sum_exp, _widened(grad, wide), None
    )
    run = _backward_cpu if q.device.type == "cpu" else _backward_cuda
    dq, dk, dv = run(padded, call)
    return dq[..., :head_dim], dk[..., :head_dim], dv[..., :v_dim]


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, call: FusedCall
    ) -> Any:
        output, log_sum_exp = forward(q, k, v, call._replace(sums=True))
        ctx.save_for_backward(q, k, v, output, log_sum_exp)
        ctx.call = call
        ctx.set_materialize_grads(False)
        return (output, log_sum_exp) if call.sums else output

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        *inputs, output, log_sum_exp = ctx.saved_tensors
        call = ctx.call
        grads = (*grads, None)[:2]  # a call without log-sum-exp has one output, so one gradient

        def first_order(grads: Any) -> Any:
            grad, grad_log_sum_exp = grads
            if grad is None:
                grad = torch.zeros_like(output)
            saved = BackwardInputs(*inputs, output, log_sum_exp, grad, grad_log_sum_exp)
            return backward(saved, call)

        return *gradients(first_order, lambda: _pieces(*inputs, call), inputs, grads), None


_apply = direct_apply(_Attend)


class _ByTorch(torch.autograd.Function):
    """Calls without a log-sum-exp: PyTorch chooses the kernels of both passes, such as those of cuDNN."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, call: FusedCall
    ) -> Any:
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        with torch.enable_grad():
            output, _ = forward(*leaves, call)
        ctx.save_for_backward(q, k, v)
        ctx.call = call
        ctx.computed = output, leaves
        return output.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        inputs = ctx.saved_tensors
        output, leaves = ctx.computed

        def first_order(grads: Any) -> Any:
            return torch.autograd.grad(output, leaves, grads[0], retain_graph=True)

        def pieces() -> Iterator[Piece]:
            return _pieces(*inputs, ctx.call)

        return *gradients(first_order, pieces, inputs, (*grads, None)), None


def weigh(scores: torch.Tensor, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Softmax weights (..., keys) of the scores that are not masked, and their log-sum-exp (...), by plain operations.

    Empty rows get weights of 0 and a log-sum-exp of -inf.
    """
    empty = hidden.all(-1, keepdim=True)
    scores = scores.masked_fill(hidden, -math.inf).masked_fill(empty, 0)
    highest = scores.detach().amax(-1, keepdim=True)
    shares = (scores - highest).exp()
    total = shares.sum(-1, keepdim=True)
    log_sum_exp = (highest + total.log()).squeeze(-1).masked_fill(empty[..., 0], -math.inf)
    return (shares / total).masked_fill(empty, 0), log_sum_exp


def _pieces(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, call: FusedCall) -> Iterator[Piece]:
    """The same call by plain differentiable operations, in blocks of rows, for second derivatives."""
    step = max(1, _PIECE // (q.shape[0] * q.shape[1] * k.shape[2]))
    for first_row in range(0, q.shape[2], step):
        rows = slice(first_row, min(first_row + step, q.shape[2]))
        keys = slice(0, min(rows.stop, k.shape[2]) if call.causal else k.shape[2])

        # The rows are a default, so that a piece may be computed after the loop has gone on.
        def compute(
            q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rows: slice = rows
        ) -> tuple[torch.Tensor, ...]:
            wide = torch.promote_types(q.dtype, torch.float32)
            k = k.to(wide)
            v = v.to(wide)
            # (batch, kv_heads, group, rows, head_dim)
            q = q.to(wide).unflatten(1, (k.shape[1], -1))
            products = q @ k[:, :, None].mT
            scores = products.flatten(1, 2) * call.scale  # (batch, heads, rows, keys)
            if call.mask is not None:
                mask = call.mask[:, :, rows].to(wide)
                hidden = (mask == -math.inf).expand(scores.shape)
                scores = scores + mask
            else:
                # The first row may look at the keys up to this one, the next row at one more.
                last_key = rows.start if call.causal else scores.shape[3]
                hidden = torch.ones_like(scores, dtype=torch.bool).triu_(last_key + 1)
            weights, log_sum_exp = weigh(scores, hidden | (scores == -math.inf))
            weights = weights.unflatten(1, (v.shape[1], -1))
            return (weights @ v[:, :, None]).flatten(1, 2), log_sum_exp

        of_rows = (slice(None), slice(None), rows)
        of_keys = (slice(None), slice(None), keys)
        yield Piece(compute, (of_rows, of_keys, of_keys), (of_rows, of_rows))


def _backward_cpu(
    saved: BackwardInputs, call: FusedCall
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return _aten._scaled_dot_product_flash_attention_for_cpu_backward(
        saved.grad,
        saved.q,
        saved.k,
        saved.v,
        saved.output,
        saved.log_sum_exp,
        0.0,
        call.causal,
        attn_mask=call.mask,
        scale=call.scale,
    )


def _by_torch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, call: FusedCall) -> torch.Tensor:
    """The output alone, by the fastest of PyTorch's kernels, which PyTorch chooses."""
    grouped = k.shape[1] < q.shape[1]
    return F.scaled_dot_product_attention(
        q, k, v, is_causal=call.causal, scale=call.scale, enable_gqa=grouped
    )


def _lies_ready(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
    """Whether FlashAttention reads q, k and v where they lie: neither padded nor copied, in rows of whole 16 bytes."""
    size = q.shape[-1]
    if size != v.shape[-1] or size % 8:
        return False
    if not (q.is_contiguous() and k.is_contiguous() and v.is_contiguous()):
        return False
    if (q.data_ptr() | k.data_ptr() | v.data_ptr()) % 16:
        return False
    return has_flash_attention(q.dtype, size, "cuda")


def _forward_cuda(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, call: FusedCall
) -> tuple[torch.Tensor, torch.Tensor]:
    flashes = call.mask is None and has_flash_attention(q.dtype, q.shape[-1], "cuda")
    if not flashes:
        k = _repeated(q, k)
        v = _repeated(q, v)
    q = _aligned(q)
    k = _aligned(k)
    v = _aligned(v)
    if call.mask is None and not call.sums:
        return _by_torch(q, k, v, call), _NO_SUMS
    if flashes:
        output, log_sum_exp, *_ = torch._scaled_dot_product_flash_attention(
            q, k, v, 0.0, call.causal, scale=call.scale
        )
        # for rows with NaN the operation returns a log-sum-exp of inf
        return output, log_sum_exp.nan_to_num_(nan=math.nan, posinf=math.nan, neginf=-math.inf)
    mask = _aligned_mask(call.mask, q, k)
    output, log_sum_exp, _, _ = torch._scaled_dot_product_efficient_attention(
        q, k, v, mask, True, 0.0, call.causal, scale=call.scale
    )
    return output, log_sum_exp[..., : q.shape[2]]  # the operation pads the rows


def _backward_cuda(
    saved: BackwardInputs, call: FusedCall
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    q = _aligned(saved.q)
    kv_heads = saved.k.shape[1]
    if call.mask is None and has_flash_attention(q.dtype, q.shape[-1], "cuda"):
        return _flash_backward(saved, call)
    k = _aligned(_repeated(q, saved.k))
    v = _aligned(_repeated(q, saved.v))
    # In half precision the operation reads the output as (batch, q_len, heads, v_dim), whatever its strides are.
    output = saved.output.transpose(1, 2).contiguous().transpose(1, 2)
    rows = -(-q.shape[2] // 32) * 32
    state = torch.zeros((), dtype=torch.int64, device="cpu")
    dq, dk, dv, _ = _aten._scaled_dot_product_efficient_attention_backward(
        _aligned(saved.grad),
        q,
        k,
        v,
        _aligned_mask(call.mask, q, k),
        output,
        F.pad(saved.log_sum_exp, (0, rows - q.shape[2]), value=math.inf),
        state,
        state,
        0.0,
        (True, True, True, False),
        call.causal,
        scale=call.scale,
    )
    return dq, dk.unflatten(1, (kv_heads, -1)).sum(2), dv.unflatten(1, (kv_heads, -1)).sum(2)


def _flash_backward(
    saved: BackwardInputs, call: FusedCall
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    q = _aligned(saved.q)
    k = _aligned(saved.k)
    state = torch.zeros(2, dtype=torch.uint64, device=q.device)  # of dropout, which is not used
    return _aten._scaled_dot_product_flash_attention_backward.default(
        _aligned(saved.grad),
        q,
        k,
        _aligned(saved.v),
        _aligned(saved.output),
        saved.log_sum_exp.contiguous(),
        None,
        None,
        q.shape[2],
        k.shape[2],
        0.0,
        call.causal,
        state,
        state[0],
        scale=call.scale,
    )


def _repeated(q: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return x if x.shape[1] == q.shape[1] else x.repeat_interleave(q.shape[1] // x.shape[1], dim=1)


def _aligned(x: torch.Tensor) -> torch.Tensor:
    """x in memory whose rows begin at multiples of 16 bytes, as the operation on cuda requires."""
    step = 16 // x.element_size()
    batch, head, row, _ = x.stride()
    fits = not (x.data_ptr() % 16 or batch % step or head % step or row % step)
    return x if fits else x.clone(memory_format=torch.contiguous_format)


def _aligned_mask(
    mask: torch.Tensor | None, q: torch.Tensor, k: torch.Tensor
) -> torch.Tensor | None:
    """The mask in memory whose rows are aligned to 16 numbers, as the operation on cuda requires."""
    if mask is None:
        return None
    k_len = k.shape[2]
    padded = F.pad(mask, (0, -k_len % 16))[..., :k_len]
    return padded.expand(q.shape[0], q.shape[1], q.shape[2], k_len)


def _sign_of_scale(call: FusedCall) -> int:
    """The factor that goes to q where the scale is not above 0, so that the operation gets one that is."""
    return 0 if call.scale == 0 else -1


def _equal_head_sizes(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k and v padded with zeros to one head size. Zeros add nothing to a score; extra output columns are removed."""
    size = max(q.shape[-1], v.shape[-1])
    if q.is_cuda:
        size = -(-size // 8) * 8
    elif q.shape[-1] == v.shape[-1] and q.stride(-1) == k.stride(-1) == v.stride(-1) == 1:
        return q, k, v
    return _widened(q, size), _widened(k, size), _widened(v, size)


def _widened(x: torch.Tensor, size: int) -> torch.Tensor:
    if x.shape[-1] < size:
        return F.pad(x, (0, size - x.shape[-1]))
    return x if x.stride(-1) == 1 else x.contiguous()


def _repaired(
    q: torch.Tensor,
    k: torch.Tensor,
    output: torch.Tensor,
    log_sum_exp: torch.Tensor,
    call: FusedCall,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Correct the result of empty rows and of rows with NaN.

    Empty rows get a log-sum-exp of -inf and zeros. On the CPU, rows whose scores all overflow to -inf get the same, and
    rows whose query or keys are not finite get NaN, where the operation may return zeros. All have a log-sum-exp of 0,
    inf or NaN, which is rare for other rows.
    """
    empty_rows = None
    if call.mask is not None:
        empty_rows = (call.mask == -math.inf).all(-1).expand(log_sum_exp.shape)
        output = output.masked_fill(empty_rows[..., None], 0)
        log_sum_exp = log_sum_exp.masked_fill(empty_rows, -math.inf)
    if not q.is_cpu:
        # The operation on cuda passes NaN on by itself, and each check would cost a launch.
        return output, log_sum_exp
    suspects = (log_sum_exp == 0) | ~log_sum_exp.isfinite()
    if empty_rows is not None:
        suspects = suspects & ~empty_rows
        if not suspects.any():
            return output, log_sum_exp
    finite_keys = k.isfinite().flatten(2).all(-1)  # (batch, kv_heads)
    finite_keys = finite_keys.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    broken = suspects & ~(q.isfinite().all(-1) & finite_keys[..., None])
    overflown = (log_sum_exp == 0) & ~broken & (output == 0).all(-1) & _may_overflow(q, k, call)
    log_sum_exp = log_sum_exp.masked_fill(overflown, -math.inf).masked_fill(broken, math.nan)
    return output.masked_fill(broken[..., None], math.nan), log_sum_exp


def _may_overflow(q: torch.Tensor, k: torch.Tensor, call: FusedCall) -> torch.Tensor:
    """Whether scores of a row may be too large for the dtype in which they are computed, (batch, heads, q_len)."""
    wide = torch.promote_types(q.dtype, torch.float32)
    largest = q.abs().sum(-1, dtype=torch.float64) * k.abs().amax().double() * abs(call.scale)
    if call.mask is not None:
        finite_mask = call.mask.masked_fill(call.mask == -math.inf, 0)
        largest = largest + finite_mask.abs().amax().double()
    return ~(largest.abs() < torch.finfo(wide).max)
