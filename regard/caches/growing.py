"""The cache that grows with its text."""

from __future__ import annotations

import torch

from regard.errors import ArgumentError, ShapeError


class GrowingCache:
    """Keys (batch, kv_heads, length, head_dim) and values (batch, kv_heads, length, v_dim) of one layer.

    Room doubles when it runs out, so that n appends copy O(n) entries. Where gradients are recorded the parts are
    joined instead of written in place, so that training through a cache is exact.

    >>> cache = GrowingCache(batch=1, kv_heads=2, head_dim=4)
    >>> keys, values = cache.append(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4))
    >>> cache.length, keys.shape
    (3, torch.Size([1, 2, 3, 4]))
    """

    def __init__(
        self,
        batch: int,
        kv_heads: int,
        head_dim: int,
        v_dim: int | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        v_dim = head_dim if v_dim is None else v_dim
        self._k = torch.empty(batch, kv_heads, 0, head_dim, dtype=dtype, device=device)
        self._v = torch.empty(batch, kv_heads, 0, v_dim, dtype=dtype, device=device)
        self._length = 0

    @property
    def length(self) -> int:
        """Entries kept, which is the position of the next one."""
        return self._length

    @property
    def batch(self) -> int:
        """Rows, each with its own entries."""
        return self._k.shape[0]

    @property
    def keys(self) -> torch.Tensor:
        """(batch, kv_heads, length, head_dim)."""
        return self._k[:, :, : self._length]

    @property
    def values(self) -> torch.Tensor:
        """(batch, kv_heads, length, v_dim)."""
        return self._v[:, :, : self._length]

    @property
    def nbytes(self) -> int:
        """Bytes held, room for entries to come included."""
        return sum(x.numel() * x.element_size() for x in (self._k, self._v))

    def append(self, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keep these entries behind the others, and return all keys and values.

        Args:
            k: (batch, kv_heads, added, head_dim).
            v: (batch, kv_heads, added, v_dim).

        Raises:
            ShapeError: entries of another shape or dtype; the cache is as it was.
        """
        self._check("k", k, self._k)
        self._check("v", v, self._v)
        if k.shape[2] != v.shape[2]:
            raise ShapeError(f"{k.shape[2]} keys but {v.shape[2]} values were to be appended; they come in pairs")
        added = k.shape[2]
        if torch.is_grad_enabled() and any(x.requires_grad for x in (k, v, self._k, self._v)):
            self._k, self._v = torch.cat([self.keys, k], 2), torch.cat([self.values, v], 2)
        else:
            self._make_room(self._length + added)
            self._k[:, :, self._length : self._length + added] = k
            self._v[:, :, self._length : self._length + added] = v
        self._length += added
        return self.keys, self.values

    def crop(self, length: int) -> None:
        """Keep the first `length` entries and forget the rest."""
        if not 0 <= length <= self._length:
            raise ArgumentError(
                f"crop({length}): this cache holds {self._length} entries; 0 to {self._length} can stay"
            )
        self._length = length

    def reorder(self, index: torch.Tensor) -> None:
        """Row i becomes what row `index[i]` was; index: integers (new batch,), as beams need it."""
        if index.dim() != 1 or index.dtype not in (torch.int64, torch.int32):
            raise ShapeError(f"reorder needs integers (new batch,), not {index.dtype} {tuple(index.shape)}")
        if index.numel() and not (0 <= int(index.min()) and int(index.max()) < self.batch):
            raise ArgumentError(f"reorder to rows {index.tolist()}: this cache has rows 0 to {self.batch - 1}")
        self._k, self._v = self.keys.index_select(0, index), self.values.index_select(0, index)

    def _check(self, name: str, new: torch.Tensor, kept: torch.Tensor) -> None:
        wanted = (*kept.shape[:2], "added", kept.shape[3])
        fits = new.dim() == 4 and new.shape[:2] == kept.shape[:2] and new.shape[3] == kept.shape[3]
        if not fits or new.dtype != kept.dtype or new.device != kept.device:
            raise ShapeError(
                f"{name} {tuple(new.shape)} {new.dtype} on {new.device} cannot be appended; this cache takes {wanted} "
                f"{kept.dtype} on {kept.device}"
            )

    def _make_room(self, length: int) -> None:
        if length <= self._k.shape[2] and not self._k.requires_grad and not self._v.requires_grad:
            return
        room = max(length, 2 * self._k.shape[2], 16)
        for name, kept in (("_k", self.keys), ("_v", self.values)):
            wider = kept.new_zeros(*kept.shape[:2], room, kept.shape[3])
            wider[:, :, : self._length] = kept.detach()
            setattr(self, name, wider)

    def __repr__(self) -> str:
        batch, kv_heads, _, head_dim = self._k.shape
        return f"GrowingCache(batch={batch}, kv_heads={kv_heads}, length={self._length}, head_dim={head_dim})"
