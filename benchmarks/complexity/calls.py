"""What the rows of the table compute: one text, one head, 64 numbers for each position, forward."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from regard.functional import attention, plan_attention
from regard.layers import LatentAttention
from regard.mechanisms import Mechanism, Softmax
from regard.mechanisms.base import Sizes
from regard.mechanisms.recurrent import Recurrent
from regard.patterns import Causal, Pattern
from regard.patterns.chosen import ChosenBlocks
from regard.testing import make_qkv

DIM = 64
CHOSEN_BLOCK = 64  # positions
CHOSEN_EARLIER = 15  # blocks of keys for each block of queries, beside its own


@dataclass(frozen=True)
class TimedCall:
    """A forward pass at one length, ready to run.

    Args:
        run: computes the output.
        operations: number of floating-point operations, by a formula or by the plan.
        expected: computes the same by another backend, if there is one; it may need quadratic memory.
    """

    run: Callable[[], torch.Tensor]
    operations: float
    expected: Callable[[], torch.Tensor] | None = None


PrepareLength = Callable[[int], TimedCall]


def written_out(n: int) -> TimedCall:
    """Softmax attention written out as its formula, with all weights in memory."""
    q, k, v = _tensors(n)

    def run() -> torch.Tensor:
        return (q @ k.mT * DIM**-0.5).softmax(-1) @ v

    return TimedCall(run, 4.0 * n * n * DIM, partial(attention, q, k, v))


def attending(
    pattern: Callable[[int], Pattern],
    mechanism: Callable[[int], Mechanism] = lambda n: Softmax(),
    *,
    shares_keys: bool = False,
) -> PrepareLength:
    """regard's attention with a pattern and mechanism for each length, on the backend that the plan chooses."""

    def prepare(n: int) -> TimedCall:
        q, k, v = _tensors(n)
        if shares_keys:
            k = q
        declared = mechanism(n)
        learned = declared.new_parameters(generator=torch.Generator().manual_seed(0))
        parameters = {name: tensor.detach() for name, tensor in learned.items()}
        return _planned(
            partial(
                attention,
                q,
                k,
                v,
                pattern=pattern(n),
                mechanism=declared,
                parameters=parameters,
            )
        )

    return prepare


def remembering(mechanism: Recurrent) -> PrepareLength:
    """A recurrent mechanism with random decays and strengths, and keys of length 1."""

    def prepare(n: int) -> TimedCall:
        q, k, v = _tensors(n)
        k = nn.functional.normalize(k, dim=-1)
        generator = torch.Generator().manual_seed(0)
        parameters = {}
        for name, shape in mechanism.parameter_shapes(Sizes(1, 1, 1, n, DIM)).items():
            parameters[name] = torch.rand(shape, generator=generator)
            if name == "log_decay":
                parameters[name] = -parameters[name] / 10
        return _planned(
            partial(
                attention,
                q,
                k,
                v,
                pattern=Causal(),
                mechanism=mechanism,
                parameters=parameters,
            )
        )

    return prepare


def _planned(attend: partial[torch.Tensor]) -> TimedCall:
    """A call of regard, whose operations its plan counts, and which the reference backend computes again."""
    plan = plan_attention(*attend.args, **attend.keywords)
    expected = partial(attend, backend="reference")
    return TimedCall(torch.no_grad()(attend), plan.cost.flops, expected)


def latent(n: int) -> TimedCall:
    """Causal latent attention of 4 heads, in the form that costs less; the other form gives the expected output."""
    torch.manual_seed(0)
    layer = LatentAttention(DIM, 4, latent_dim=32, rope_dim=16, head_dim=16, pattern="causal")
    x = _text(n)
    plan = layer.plan(1, n)
    other_form = "expanded" if plan.form == "absorbed" else "absorbed"

    run = torch.no_grad()(partial(layer, x))
    expected = torch.no_grad()(partial(layer, x, form=other_form))
    return TimedCall(run, getattr(plan, plan.form).flops, expected)


def recurrent(n: int) -> TimedCall:
    """A gated recurrent unit: two products with (dim, 3 dim) per position."""
    torch.manual_seed(0)
    layer = nn.GRU(DIM, DIM, batch_first=True)
    x = _text(n)

    @torch.no_grad()
    def run() -> torch.Tensor:
        outputs, _ = layer(x)
        return outputs

    return TimedCall(run, 12.0 * n * DIM**2)


def convolution(width: int) -> PrepareLength:
    """A convolution over `width` neighbours: `width` products with (dim, dim) per position."""

    def prepare(n: int) -> TimedCall:
        torch.manual_seed(0)
        layer = nn.Conv1d(DIM, DIM, width, padding=width // 2)
        x = _text(n).mT.contiguous()  # (1, DIM, n)
        return TimedCall(torch.no_grad()(partial(layer, x)), 2.0 * width * n * DIM**2)

    return prepare


def chosen_blocks(n: int) -> Pattern:
    """Causal attention of each block of 64 queries to its own block of keys and 15 random ones up to it."""
    own_block = torch.arange(-(-n // CHOSEN_BLOCK))[:, None]
    generator = torch.Generator().manual_seed(0)
    shares = torch.rand(len(own_block), CHOSEN_EARLIER, generator=generator)
    earlier_blocks = (shares * (own_block + 1)).long()
    blocks = torch.cat([own_block, earlier_blocks], 1)[None, None]  # (1, 1, query blocks, 16)
    return Causal() & ChosenBlocks(blocks, block=CHOSEN_BLOCK, query_block=CHOSEN_BLOCK)


def root(n: int) -> int:
    """The stride of the Sparse Transformer: close to the square root of the length."""
    return max(1, math.isqrt(n))


def hash_buckets(n: int) -> tuple[int, int]:
    """Two even numbers whose product is about n / 32, so that chunks of 64 are twice the mean size of a bucket."""
    first = max(2, 2 * round(math.sqrt(n / 32) / 2))
    second = max(2, 2 * round(n / 32 / first / 2))
    return first, second


def _tensors(n: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return make_qkv(batch=1, heads=1, kv_heads=1, q_len=n, k_len=n, head_dim=DIM, v_dim=DIM)


def _text(n: int) -> torch.Tensor:
    return torch.randn(1, n, DIM, generator=torch.Generator().manual_seed(0))
