"""Two ways to write the lines of a walkthrough: vectors as rows, or, as articles write them, as columns.

    rows       X (words, d)    q = x @ W_q[0].T    Ω = Q Kᵀ    Z = A V
    columns    X (d, words)    q = W_q[0] @ x      Ω = Qᵀ K    Z = V Aᵀ

Row i of scores and weights belongs to word i in both.
"""

from __future__ import annotations

from dataclasses import dataclass

from regard_lab.lessons.walkthrough.steps import Axis


@dataclass(frozen=True)
class Writing:
    """How vectors are written. Names are those of matrices of vectors; with `heads`, they have an axis for heads.

    Args:
        columns: if True, a vector is a column; if False, a row.

    >>> Writing().projected("x", "W_q", head=0), Writing(columns=True).projected("x", "W_q", head=0)
    ('x @ W_q[0].T', 'W_q[0] @ x')
    """

    columns: bool = False

    def axes(self, words: Axis, numbers: Axis) -> tuple[Axis, Axis]:
        """The axes of vectors of words."""
        return (numbers, words) if self.columns else (words, numbers)

    @property
    def line(self) -> str:
        """What a vector is, for explanations."""
        return "Column" if self.columns else "Row"

    def turned(self, rows: str, whole: bool = True) -> str:
        """An expression that gives vectors as rows, for this way to write; `whole`: put it in parentheses first."""
        if not self.columns:
            return rows
        return f"({rows}).T" if whole else f"{rows}.T"

    def by_row(self, name: str, heads: bool = False) -> str:
        """Vectors as rows."""
        return f"{name}{'.mT' if heads else '.T'}" if self.columns else name

    def by_column(self, name: str, heads: bool = False) -> str:
        """Vectors as columns."""
        return name if self.columns else f"{name}{'.mT' if heads else '.T'}"

    def one(self, name: str, place: int) -> str:
        """The vector of one word."""
        return f"{name}[:, {place}]" if self.columns else f"{name}[{place}]"

    def projected(self, x: str, matrix: str, *, head: int | None = None, bias: str = "", heads: bool = False) -> str:
        """Vectors multiplied by a matrix, by that of one head, or by those of all heads; plus a bias, if named."""
        at = "" if head is None else f"[{head}]"
        if self.columns:
            more = "[:, :, None]" if heads else f"{at}[:, None]"
            return f"{matrix}{at} @ {x}" + (f" + {bias}{more}" if bias else "")
        turned = f"{matrix}.mT" if heads else f"{matrix}{at}.T"
        return f"{x} @ {turned}" + (f" + {bias}{'[:, None]' if heads else at}" if bias else "")

    def weighted(self, weights: str, values: str, *, one: bool = False, heads: bool = False) -> str:
        """The sum of values by weights, of one word or of all."""
        if not self.columns:
            return f"{weights} @ {values}"
        return f"{values} @ {weights}{'' if one else '.mT' if heads else '.T'}"

    def angles(self, words: int, speeds: str) -> str:
        """Each position times each frequency."""
        if self.columns:
            return f"({speeds})[:, None] * torch.arange({words})"
        return f"torch.arange({words})[:, None] * {speeds}"

    def waves(self, angles: str) -> str:
        """A sine and a cosine of each angle, in turn."""
        if self.columns:
            return f"torch.stack([{angles}.sin(), {angles}.cos()], dim=1).flatten(0, 1)"
        return f"torch.stack([{angles}.sin(), {angles}.cos()], dim=-1).flatten(1)"

    def doubled(self, angles: str) -> str:
        """The angles of both halves of a vector."""
        return f"({angles}).repeat(2, 1)" if self.columns else f"({angles}).repeat(1, 2)"

    def rotated(self, name: str, size: int) -> str:
        """Queries or keys (of one head or of all) rotated by the step `angles`."""
        half, rest, axis = size // 2, ", :" if self.columns else "", -2 if self.columns else -1
        swapped = f"[-{name}[..., {half}:{rest}], {name}[..., :{half}{rest}]]"
        return f"{name} * angles.cos() + torch.cat({swapped}, {axis}) * angles.sin()"

    def joined(self, name: str) -> str:
        """The vectors of all heads, concatenated for each word."""
        return f"torch.cat(list({name}), dim={0 if self.columns else -1})"


ROWS = Writing()
