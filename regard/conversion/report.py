"""What a conversion changed, in numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple


class Change(NamedTuple):
    """A number before and after."""

    before: int
    after: int

    def __str__(self) -> str:
        return f"{self.before:,} -> {self.after:,}"


@dataclass(frozen=True)
class Conversion:
    """What a conversion did; `str` makes a table of it.

    Args:
        kind: of model, such as "language-model" or "llama".
        method: how a group's heads became one: "mean", "first", or "repeat" where there are more heads now.
        heads: query heads, which stay.
        kv_heads: by setting, such as `decoder_kv_heads`.
        parameters: numbers of the model.
        kv_bytes: bytes that a "token" takes in the caches of all layers; a translator's "source token" and "target
            token"; the "state" of mechanisms that keep sums. Empty for a model that keeps nothing.
        measured: were the bytes counted on the tensors of a real cache? Otherwise they follow from the sizes.
        difference: the largest between what the new model says and what it says with its heads repeated, in float64;
            None where it was not asked for.

    >>> Conversion("llama", "mean", 8, {"kv_heads": Change(8, 2)}, Change(900, 750), {"token": Change(256, 64)}).removed
    150
    """

    kind: str
    method: str
    heads: int
    kv_heads: dict[str, Change]
    parameters: Change
    kv_bytes: dict[str, Change]
    measured: bool = False
    difference: float | None = None

    @property
    def removed(self) -> int:
        """Numbers that the model no longer has; below 0 where heads were repeated."""
        return self.parameters.before - self.parameters.after

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        changes = {name: {key: change._asdict() for key, change in getattr(self, name).items()} for name in
                   ("kv_heads", "kv_bytes")}  # fmt: skip
        return {**asdict(self), **changes, "parameters": self.parameters._asdict(), "parameters_removed": self.removed}

    def __str__(self) -> str:
        lines = [row("", "before", "after")]
        for name, (before, after) in self._changes():
            fewer = after and before > after and before % after == 0
            lines.append(row(name, f"{before:,}", f"{after:,}", f"{before // after} times fewer" if fewer else ""))
        removed = f"{self.removed:,} removed" if self.removed > 0 else ""
        return "\n".join([*lines, row("parameters", *(f"{count:,}" for count in self.parameters), removed)])

    def _changes(self) -> list[tuple[str, Change]]:
        heads = [(name.replace("_", " "), change) for name, change in self.kv_heads.items()]
        return heads + [(f"KV bytes a {name}", change) for name, change in self.kv_bytes.items()]


def row(name: str, before: str, after: str, remark: str = "") -> str:
    """A line of the table.

    >>> row("parameters", "900", "750", "150 removed")
    'parameters                        900             750   150 removed'
    """
    return f"{name:25} {before:>11} {after:>15}   {remark}".rstrip()
