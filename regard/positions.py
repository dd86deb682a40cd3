"""Positions of tokens: added to embeddings (Sinusoidal, Learned) or rotated into queries and keys (Rotary)."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import ClassVar

import torch
from torch import nn

from regard.arguments import each, in_memory, of_kind, one_of, real, shown, whole, yes_or_no
from regard.devices import device_of_float64, in_float64
from regard.errors import ArgumentError, ShapeError
from regard.patterns.registry import Declared, Reader, Registry
from regard.reprs import brief

__all__ = ["Sinusoidal", "Learned", "Rotary", "Scaling", "Linear", "NTK", "YaRN", "Llama3"]


class Sinusoidal(nn.Module):
    """Sinusoidal positions, added to embeddings: `sin(p / base^(2c / dim))` in dimension 2c, the cosine in 2c + 1.

    Args:
        dim: size of the embeddings, an even number.
        base: the longest wave length is about `2π · base` positions.

    Source: Attention Is All You Need, Vaswani et al. 2017, section 3.5.

    >>> Sinusoidal(4)(torch.tensor([[0]])).tolist()
    [[[0.0, 1.0, 0.0, 1.0]]]
    """

    def __init__(self, dim: int, base: float = 10_000.0) -> None:
        super().__init__()
        dim = whole("Sinusoidal's dim", dim)
        if dim < 2 or dim % 2:
            raise ArgumentError(
                f"Sinusoidal(dim={dim}): sines and cosines come in pairs, so dim is even and above 0"
            )
        self.dim = dim
        self.base = checked_base("Sinusoidal", base)

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        """The vectors to add, (..., dim) in float32, for integer positions (...)."""
        positions = checked_positions(positions)
        turns = frequencies(self.dim, self.base, device_of_float64(positions.device))
        angles = in_float64(positions[..., None]) * turns  # (..., dim / 2)
        vectors = torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)
        return vectors.float().to(positions.device)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


def checked_positions(positions: torch.Tensor) -> torch.Tensor:
    """Positions with their numbers in their memory; a ShapeError unless they are an integer tensor."""
    if not isinstance(positions, torch.Tensor) or positions.dtype not in (torch.int64, torch.int32):
        raise ShapeError(f"positions are {shown(positions)}; give an integer tensor (int64)")
    return in_memory("positions", positions)


def checked_base(name: str, base: float) -> float:
    """The base of the wave lengths; an ArgumentError unless it is above 0."""
    base = real(f"{name}'s base", base)
    if base <= 0:
        raise ArgumentError(
            f"{name}'s base is {base}; wave lengths are powers of it, so give a number above 0"
        )
    return base


def frequencies(dim: int, base: float, device: torch.device) -> torch.Tensor:
    """`base^(-2c / dim)` for c = 0 .. dim / 2 - 1, in float64, since float32 angles are wrong at position 100,000."""
    return base ** (-torch.arange(0, dim, 2, dtype=torch.float64, device=device) / dim)


class Learned(nn.Module):
    """Learned positions: a table with one vector per position, added to embeddings.

    Args:
        length: number of positions; later ones are refused.
        dim: size of the embeddings.

    Source: BERT, Devlin et al. 2019, section 3.

    >>> Learned(16, 4)(torch.tensor([[0, 15]])).shape
    torch.Size([1, 2, 4])
    """

    def __init__(self, length: int, dim: int) -> None:
        super().__init__()
        length = whole("Learned's length", length)
        dim = whole("Learned's dim", dim)
        if length < 1 or dim < 1:
            raise ArgumentError(f"Learned(length={length}, dim={dim}): both are 1 or more")
        self.weight = nn.Parameter(torch.randn(length, dim) * 0.02)

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        """The vectors to add, (..., dim), for integer positions (...).

        Raises:
            ShapeError: a position outside the table.
        """
        positions = checked_positions(positions)
        if not torch.compiler.is_compiling():  # a program has no numbers yet
            self.check(positions)
        return self.weight[positions]

    def check(self, positions: torch.Tensor) -> None:
        """Raise a ShapeError unless all positions are in the table."""
        if not positions.numel():
            return
        first = int(positions.min())
        last = int(positions.max())
        length = len(self.weight)
        if first < 0 or last >= length:
            raise ShapeError(
                f"positions {first} to {last} were given and this table has 0 to {length - 1}; shorten the text, or "
                f"train with a longer table"
            )

    def extra_repr(self) -> str:
        return f"length={len(self.weight)}, dim={self.weight.shape[1]}"


@dataclass(frozen=True)
class Scaling(Declared, enrol=False):
    """Base class of scalings, which let Rotary rotate texts longer than those of the training.

    Each has a text, as patterns have: `Rotary(scaling="yarn(4, 4096)")`.

    Args:
        factor: how many times longer the texts become.
    """

    registry: ClassVar[Registry] = Registry("scaling")
    factor: float

    def __post_init__(self) -> None:
        for field in self._numbers():
            name = f"{type(self).__name__}'s {field}"
            value = real(name, getattr(self, field))
            if value <= 0:
                raise ArgumentError(f"{name} is {value}; give a number above 0")
            object.__setattr__(self, field, value)

    def _numbers(self) -> list[str]:
        """The fields that hold a number above 0: all, unless a class says otherwise."""
        return [field.name for field in fields(self)]

    def frequencies(self, dims: int, base: float, device: torch.device) -> torch.Tensor:
        """The angle of each pair at position 1, (dims / 2,) in float64."""
        raise NotImplementedError(f"{type(self).__name__} does not define frequencies")

    @property
    def magnitude(self) -> float:
        """What rotated queries and keys are multiplied by."""
        return 1.0


@dataclass(frozen=True)
class Linear(Scaling):
    """Divides positions by `factor`: every pair turns that much slower.

    Source: Extending Context Window of Large Language Models via Positional Interpolation, Chen et al. 2023.

    >>> Rotary(scaling=Linear(factor=4.0)).scaling
    Linear(factor=4.0)
    """

    def frequencies(self, dims: int, base: float, device: torch.device) -> torch.Tensor:
        return frequencies(dims, base, device) / self.factor


@dataclass(frozen=True)
class NTK(Scaling):
    """Increases the base, so that the slowest pair turns `factor` times slower and the fastest as before.

        base' = base · factor^(dims / (dims - 2))

    Dynamic NTK has factor = a · length / trained - (a - 1), for a model with the factor a that was trained on texts of
    `trained` tokens. This factor grows with a text and would turn its earlier keys too, so choose `length` beforehand.

    Source: YaRN, Peng et al. 2023, section 3.1, which cites the posts that proposed it.

    >>> NTK(2.0).frequencies(4, 10_000.0, torch.device("cpu")).tolist()
    [1.0, 0.005]
    """

    def frequencies(self, dims: int, base: float, device: torch.device) -> torch.Tensor:
        if dims < 4:
            raise ArgumentError(
                f"NTK scales the pairs beside the fastest, and {dims} dimensions have none; give 4"
            )
        return frequencies(dims, base * self.factor ** (dims / (dims - 2)), device)


@dataclass(frozen=True)
class YaRN(Scaling):
    """Slows down the pairs that turn rarely, keeps those that turn often, and sharpens the scores.

        angle' = share · angle + (1 - share) · angle / factor,   q, k multiplied by 0.1 ln(factor) + 1

    `share` falls from 1 to 0 between the pairs that turn `fast` and `slow` times within `trained` positions.

    Args:
        factor: how many times longer the texts become.
        trained: length of the texts of the training, `original_max_position_embeddings` of transformers.
        fast, slow: turns; `beta_fast` and `beta_slow`.
        attention_factor: multiplies rotated queries and keys, in place of 0.1 ln(factor) + 1.
        truncated: whether `share` begins and ends at whole pairs, as in the authors' code.

    Source: YaRN, Peng et al. 2023, sections 3.2 to 3.4.

    >>> round(YaRN(4.0, trained=4096).magnitude, 6)
    1.138629
    """

    text_name: ClassVar[str] = "yarn"
    trained: float
    fast: float = 32.0
    slow: float = 1.0
    attention_factor: float | None = None
    truncated: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        yes_or_no("YaRN's truncated", self.truncated)
        if self.fast < self.slow:
            raise ArgumentError(
                f"YaRN's fast is {self.fast} turns and slow {self.slow}; fast ones turn more often"
            )

    def _numbers(self) -> list[str]:
        others = {"truncated"}
        if self.attention_factor is None:
            others.add("attention_factor")
        return [name for name in super()._numbers() if name not in others]

    def frequencies(self, dims: int, base: float, device: torch.device) -> torch.Tensor:
        first = self._pair_that_turns(self.fast, dims, base)
        last = self._pair_that_turns(self.slow, dims, base)
        if self.truncated:
            first = math.floor(first)
            last = math.ceil(last)
        first = max(first, 0)
        last = min(last, dims - 1)
        if first == last:
            last = first + 0.001

        pairs = torch.arange(dims // 2, dtype=torch.float64, device=device)
        share = 1 - ((pairs - first) / (last - first)).clamp(0, 1)
        angles = frequencies(dims, base, device)
        return share * angles + (1 - share) * angles / self.factor

    def _pair_that_turns(self, turns: float, dims: int, base: float) -> float:
        """The pair that turns so often within the trained positions; pairs in between count by fractions."""
        return dims * math.log(self.trained / (2 * math.pi * turns)) / (2 * math.log(base))

    @property
    def magnitude(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        return 0.1 * math.log(self.factor) + 1 if self.factor > 1 else 1.0


@dataclass(frozen=True)
class Llama3(Scaling):
    """Slows down the pairs that turn less than `slow` times within `trained` positions, keeps those above `fast`.

        angle' = share · angle + (1 - share) · angle / factor,   share = (turns - slow) / (fast - slow), within 0 and 1

    Args:
        factor: how many times longer the texts become.
        trained: length of the texts of the training, `original_max_position_embeddings` of transformers.
        slow, fast: turns; `low_freq_factor` and `high_freq_factor`.

    Source: The Llama 3 Herd of Models, Llama Team 2024, section 3.4.2 for long contexts; the formula is that of the
    published code of Llama 3.1.

    >>> angles = Llama3(8.0, trained=8192).frequencies(128, 500_000.0, torch.device("cpu"))
    >>> float(angles[0]), bool(angles[-1] * 8 == frequencies(128, 500_000.0, torch.device("cpu"))[-1])
    (1.0, True)
    """

    trained: float
    slow: float = 1.0
    fast: float = 4.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fast <= self.slow:
            raise ArgumentError(
                f"Llama3's fast is {self.fast} turns and slow {self.slow}; fast ones turn more often"
            )

    def frequencies(self, dims: int, base: float, device: torch.device) -> torch.Tensor:
        angles = frequencies(dims, base, device)
        turns = self.trained * angles / (2 * math.pi)
        share = ((turns - self.slow) / (self.fast - self.slow)).clamp(0, 1)
        return share * angles + (1 - share) * angles / self.factor


@brief
@dataclass(frozen=True)
class Rotary:
    """Rotary positions: rotates pair c of a head's dimensions by the angle `p · base^(-2c / dims)` at position p.

    Args:
        base: sets the slowest rotation.
        dims: number of leading dimensions to rotate, even; None for all.
        pairs: which dimensions form pair c: "halves" c and c + dims / 2 (Llama, GPT-NeoX), "neighbours" 2c and
            2c + 1 (the paper, GPT-J). Weights trained with one do not fit the other.
        frequencies: the angle of each pair at position 1, in place of those of the base; dims is then twice their
            number.
        scaling: for texts longer than those of the training: Linear, NTK, YaRN, Llama3, or its text.
        axes: for images within a text, the number of pairs that each axis of a position rotates, such as (16, 24, 24)
            for time, height and width; positions then have one number for each axis, (batch, length, axes). Positions
            without that axis are those of words, the same on every axis.

    Source: RoFormer, Su et al. 2021, section 3.2.2; axes: Qwen2-VL, Wang et al. 2024, section 2.1.

    >>> x = torch.randn(1, 2, 3, 8)
    >>> torch.allclose(Rotary().rotate(x, torch.zeros(3, dtype=torch.long)), x)
    True
    """

    base: float = 10_000.0
    dims: int | None = None
    pairs: str = "halves"
    frequencies: tuple[float, ...] | None = None
    scaling: Scaling | str | None = None
    axes: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.frequencies is not None:
            numbers = each("Rotary's frequencies", self.frequencies, "a number for each pair")
            turns = tuple(real("a frequency of Rotary", number) for number in numbers)
            if self.dims not in (None, 2 * len(turns)) or not turns:
                raise ArgumentError(
                    f"Rotary has {len(turns)} frequencies, one for each pair, and dims {self.dims}; leave dims out"
                )
            object.__setattr__(self, "frequencies", turns)
            object.__setattr__(self, "dims", 2 * len(turns))
        object.__setattr__(self, "base", checked_base("Rotary", self.base))
        if self.dims is not None:
            object.__setattr__(self, "dims", whole("Rotary's dims", self.dims))
        one_of("Rotary's pairs", self.pairs, ("halves", "neighbours"))
        if self.dims is not None and (self.dims < 2 or self.dims % 2):
            raise ArgumentError(
                f"Rotary(dims={self.dims}): pairs are rotated, so dims is even and above 0"
            )
        if self.scaling is not None:
            self._check_scaling()
        if self.axes is not None:
            numbers = each("Rotary's axes", self.axes, "a number of pairs for each axis")
            axes = tuple(whole("pairs of an axis", number, 1) for number in numbers)
            object.__setattr__(self, "axes", axes)

    def _check_scaling(self) -> None:
        if isinstance(self.scaling, str):
            scaling = Reader(self.scaling, Scaling.registry, "yarn(4, 4096)").whole()
            object.__setattr__(self, "scaling", scaling)
        scalings = "Linear, NTK, YaRN or Llama3 of regard.positions"
        of_kind("Rotary's scaling", self.scaling, Scaling, scalings)
        if self.frequencies is not None:
            raise ArgumentError(
                "Rotary was given frequencies and a scaling, which makes its own; give one of them"
            )

    def check(self, head_dim: int) -> None:
        """Raise an ArgumentError if heads of this size cannot be rotated."""
        dims = head_dim if self.dims is None else self.dims
        if dims % 2 or dims > head_dim:
            raise ArgumentError(
                f"Rotary rotates pairs of dimensions and cannot rotate {dims} of {head_dim}; use an even head_dim"
            )
        if self.axes is not None and 2 * sum(self.axes) != dims:
            raise ArgumentError(
                f"Rotary's axes {self.axes} have {sum(self.axes)} pairs, and {dims // 2} are rotated"
            )

    def rotate(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Heads (batch, heads, length, head_dim) rotated to their positions, (length,) or (batch, length).

        With axes also (batch, length, axes).
        """
        positions = checked_positions(positions)
        if not isinstance(x, torch.Tensor) or x.dim() != 4 or not x.dtype.is_floating_point:
            raise ShapeError(
                f"Rotary rotates heads (batch, heads, length, head_dim), not {shown(x)}"
            )
        self._check_shape_of(positions, x)
        dims = self._dims_of(x)
        angles = self._angles(positions, dims, x.device)  # (.., length, dims / 2)
        if angles.dim() == 3:
            angles = angles[:, None]  # (batch, 1, length, dims / 2)
        dtype = torch.promote_types(x.dtype, torch.float32)
        cos, sin = self._cos_and_sin(angles)
        return self._turn(x, cos.to(dtype).to(x.device), sin.to(dtype).to(x.device))

    def _check_shape_of(self, positions: torch.Tensor, x: torch.Tensor) -> None:
        axes = "" if self.axes is None else f" or (batch, length, {len(self.axes)})"
        by_axis = self.axes is not None and positions.dim() == 3
        by_token = positions.shape[:-1] if by_axis else positions.shape
        fits_batch = tuple(by_token[:-1]) in ((), (1,), (x.shape[0],))
        fits_length = by_token[-1:] == x.shape[2:3]
        fits_axes = not by_axis or positions.shape[-1] == len(self.axes or ())
        if not (fits_batch and fits_length and fits_axes):
            raise ShapeError(
                f"positions {tuple(positions.shape)} do not fit heads {tuple(x.shape)}; give (length,) or "
                f"(batch, length){axes}"
            )

    def rotate_from(self, x: torch.Tensor, start: int) -> torch.Tensor:
        """Heads (batch, heads, length, head_dim) rotated to the positions start, start + 1, ..., as `rotate` does.

        Cosines of neighbouring positions are kept: all layers of a model rotate to the same ones, and a step of
        decoding to the one after those before.
        """
        dims = self._dims_of(x)
        length = x.shape[2]
        block, first = divmod(start, POSITIONS_OF_KEPT_TABLE)
        end = first + length
        if makes_other_tensors() or end > POSITIONS_OF_KEPT_TABLE:
            return self.rotate(x, start + torch.arange(length, device=x.device))
        dtype = torch.promote_types(x.dtype, torch.float32)
        inference = torch.is_inference_mode_enabled()
        cos, sin = _kept_cos_and_sin(self, block, dims, x.device, dtype, inference)
        if self.pairs == "halves" and dims == x.shape[3] and dtype == x.dtype:
            # The same as `_turn` in fewer operations.
            return turn_halves(x, cos[first:end], sin[first:end])
        pairs = slice(dims // 2, None)  # the half whose sines are not negated
        return self._turn(x, cos[first:end, pairs], sin[first:end, pairs])

    def turns_halves(self, head_dim: int) -> bool:
        """Whether a rotated head x is x · cosines + (x with its halves exchanged) · sines."""
        return self.pairs == "halves" and self.dims in (None, head_dim) and head_dim % 2 == 0

    def turns_around(
        self, position: int, head_dim: int
    ) -> tuple[torch.Tensor, torch.Tensor, range]:
        """Cosines and signed sines of the positions around this one, in float32 on the CPU, and these positions.

        Both are (positions, head_dim), the factors of a head and of the same head with its halves exchanged.
        """
        block = position // POSITIONS_OF_KEPT_TABLE
        first = block * POSITIONS_OF_KEPT_TABLE
        inference = torch.is_inference_mode_enabled()
        cos, sin = _kept_cos_and_sin(
            self, block, head_dim, torch.device("cpu"), torch.float32, inference
        )
        return cos, sin, range(first, first + POSITIONS_OF_KEPT_TABLE)

    def _angles(self, positions: torch.Tensor, dims: int, device: torch.device) -> torch.Tensor:
        """The angles of positions (..), or (.., axes) where there are any: (.., dims / 2) in float64.

        They are on the CPU if the device has no float64.
        """
        device = device_of_float64(device)
        positions = positions.to(device)
        if self.frequencies is not None:
            turns = torch.tensor(self.frequencies, dtype=torch.float64, device=device)
        elif isinstance(self.scaling, Scaling):
            turns = self.scaling.frequencies(dims, self.base, device)
        else:
            turns = frequencies(dims, self.base, device)
        if self.axes is None or positions.dim() < 3:
            return positions[..., None].double() * turns
        axis_of_pair = torch.repeat_interleave(torch.tensor(self.axes, device=device))
        return positions.double()[..., axis_of_pair] * turns

    def _cos_and_sin(self, angles: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if not isinstance(self.scaling, Scaling) or self.scaling.magnitude == 1:
            return angles.cos(), angles.sin()
        return angles.cos() * self.scaling.magnitude, angles.sin() * self.scaling.magnitude

    def _dims_of(self, x: torch.Tensor) -> int:
        self.check(x.shape[-1])
        return x.shape[-1] if self.dims is None else self.dims

    def _turn(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """The heads with their pairs rotated by angles (.., length, dims / 2) with these cosines and sines."""
        dims = 2 * cos.shape[-1]
        turning = x[..., :dims].to(cos.dtype)
        rest = x[..., dims:]
        if self.pairs == "halves":
            first, second = turning.chunk(2, -1)
        else:
            first = turning[..., 0::2]
            second = turning[..., 1::2]

        turned = [first * cos - second * sin, first * sin + second * cos]
        if self.pairs == "halves":
            rotated = torch.cat(turned, -1).to(x.dtype)
        else:
            rotated = torch.stack(turned, -1).flatten(-2).to(x.dtype)
        return torch.cat([rotated, rest], -1) if rest.shape[-1] else rotated


POSITIONS_OF_KEPT_TABLE = 1024  # of a table of cosines that is kept


def turn_halves(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Heads rotated by cosines and signed sines (length, head_dim): x · cos + (x with its halves exchanged) · sin."""
    return x * cos + x.roll(x.shape[-1] // 2, -1) * sin


def makes_other_tensors() -> bool:
    """Whether tensors that are made here must not be kept: they belong to a compiler, a tracer or a transform."""
    return (
        torch.compiler.is_compiling()
        or torch._C._is_tracing()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._len_torch_dispatch_stack() > 0
    )


@lru_cache(maxsize=16)
def _kept_cos_and_sin(
    rotary: Rotary,
    block: int,
    dims: int,
    device: torch.device,
    dtype: torch.dtype,
    inference: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of the angles of a block of neighbouring positions, (positions, dims) in dtype.

    Each row holds the cosines of its angles twice, and the sines negated and as they are: the factors of a vector and
    of the same vector with its halves exchanged.

    `inference`: whether inference_mode is on, whose tensors cannot be used where gradients are wanted.
    """
    first = block * POSITIONS_OF_KEPT_TABLE
    positions = first + torch.arange(POSITIONS_OF_KEPT_TABLE, device=device)
    cos, sin = rotary._cos_and_sin(rotary._angles(positions, dims, device))
    factors = torch.cat([cos, cos], -1).to(dtype), torch.cat([-sin, sin], -1).to(dtype)
    cos, sin = (x.to(device) for x in factors)
    return cos, sin


def as_rotary(positions: Rotary | str | None) -> Rotary | None:
    """The positions of an attention layer: a Rotary, "rotary" for its defaults, or None.

    >>> as_rotary("rotary")
    Rotary()
    """
    if positions is None or isinstance(positions, Rotary):
        return positions
    name = positions if isinstance(positions, str) else ""
    if name == "rotary":
        return Rotary()

    if isinstance(positions, Sinusoidal):
        name = "sinusoidal"
    if isinstance(positions, Learned):
        name = "learned"
    if name in ("sinusoidal", "learned"):
        raise ArgumentError(
            f"{name} positions are added to embeddings, before the layer; the layer itself takes Rotary(), 'rotary' "
            f"or None"
        )
    biases = {"alibi": "ALiBi()", "t5": "T5Relative(heads)"}
    if name.lower() in biases:
        raise ArgumentError(
            f"positions is {name!r}, which is a bias by distance; give it to the call: "
            f"layer(x, bias=regard.bias.{biases[name.lower()]})"
        )
    raise ArgumentError(f"positions is {shown(positions)}; give Rotary(), 'rotary' or None")
