"""Constraints on the ids of a search: which it must write, may not write, and writes at a penalty."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from regard.arguments import each, of_kind, real, whole
from regard.errors import ArgumentError
from regard.reprs import brief
from regard_lab.text.source_placeholders import Once


@brief
@dataclass(frozen=True, kw_only=True)
class Constraints:
    """Constraints on the ids of a search; they change what is chosen, never the log-probabilities of the model.

    Ids that would repeat a run of `no_repeat` ids of the text are excluded, and END before `min_length` ids. If no id
    is left, END is allowed after all. A prefix is written whatever the others exclude.

    Reserved ids stand for something in the text that is read. A text has only those of its batch row, each at most
    once. With `complete` it ends only when it has all: where END would be most likely, the likeliest of those that are
    missing takes its place.

    Args:
        min_length: the fewest ids of a text, END aside.
        no_repeat: no run of so many ids occurs twice in a text; None for no such rule.
        repetition_penalty: the log-probability of an id that the text has already is multiplied by this, 1 or more.
        prefixes: for each batch row the ids that its texts begin with; none by default.
        reserved: the ids that are reserved; none by default.
        once: for each batch row those that it has.
        complete: whether a text has all of its batch row.

    Raises:
        ArgumentError: other values.

    Source: no_repeat, A Deep Reinforced Model, Paulus et al. 2018, section 2.5; the penalty, CTRL, Keskar et al. 2019,
    section 4.1, there of logits, here of log-probabilities, which do not change when a constant is added to the logits.

    >>> Constraints(no_repeat=2).banned((7, 5, 7, 8, 7))
    [5, 8]
    """

    min_length: int = 0
    no_repeat: int | None = None
    repetition_penalty: float = 1.0
    prefixes: tuple[tuple[int, ...], ...] = ()
    reserved: range = range(0)
    once: tuple[Once, ...] = ()
    complete: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "min_length", whole("min_length", self.min_length, 0))
        if self.no_repeat is not None:
            object.__setattr__(self, "no_repeat", whole("no_repeat", self.no_repeat, 1))
        penalty = real(
            "repetition_penalty",
            self.repetition_penalty,
            1,
            needs="a factor of 1 or more, such as 1.2",
        )
        object.__setattr__(self, "repetition_penalty", penalty)
        prefixes = []
        for prefix in each("prefixes", self.prefixes, "ids for each batch row"):
            ids = each("a prefix", prefix, "ids")
            prefixes.append(tuple(whole("an id of prefixes", identifier, 0) for identifier in ids))
        object.__setattr__(self, "prefixes", tuple(prefixes))
        of_kind("reserved", self.reserved, range, "a range of ids")
        once = each("once", self.once, "a Once for each batch row")
        once = tuple(of_kind("once", row, Once, "a Once for each batch row") for row in once)
        object.__setattr__(self, "once", once)
        of_kind("complete", self.complete, bool, "True or False")

    @property
    def are_none(self) -> bool:
        """Whether nothing is constrained."""
        return self == FREE

    def limits(self, limits: Sequence[int], given: bool) -> list[int]:
        """The most ids of each batch row, raised to what the constraints need unless these limits were given.

        Raises:
            ArgumentError: limits that were given and are below what the constraints need.
        """
        if self.prefixes and len(self.prefixes) != len(limits):
            raise ArgumentError(
                f"{len(self.prefixes)} prefixes for {len(limits)} texts; give one for each"
            )
        if self.once and len(self.once) != len(limits):
            raise ArgumentError(
                f"{len(self.once)} of once for {len(limits)} texts; give one for each"
            )
        prefixes = self.prefixes or [()] * len(limits)
        # one id or more beyond a prefix: the model's own
        needed = [max(self.min_length, 1 + len(prefix)) for prefix in prefixes]
        most_needed = max(needed, default=0)
        if given and most_needed > min(limits, default=0):
            why = "min_length" if most_needed == self.min_length else "the prefix"
            raise ArgumentError(
                f"the longest text is {min(limits):,} ids, and {why} needs {most_needed:,}; give a larger limit"
            )
        return list(map(max, limits, needed))

    def banned(self, ids: Sequence[int]) -> list[int]:
        """The ids that would repeat a run of `no_repeat` ids."""
        if self.no_repeat is None:
            return []
        before = self.no_repeat - 1  # with 0, every id so far is banned
        last = tuple(ids[len(ids) - before :])
        banned = []
        for start in range(len(ids) - before):
            end = start + before
            if tuple(ids[start:end]) == last:
                banned.append(ids[end])
        return banned

    def constrained(
        self,
        logits: torch.Tensor,
        log_sum_exp: torch.Tensor,
        texts: Sequence[tuple[int, Sequence[int]]],
        end: int | None,
    ) -> torch.Tensor:
        """The logits by which the next ids are chosen.

        Args:
            logits, log_sum_exp: (texts, vocab_size) and (texts, 1), as `exclude_never` gives them.
            texts: of each text the batch row whose prefix it has, and its ids so far.
            end: id that ends a text.

        Raises:
            ArgumentError: every id of a text is excluded, and no END can end it.
        """
        if self.are_none:
            return logits
        constrained = logits.clone()
        for place, (row, ids) in enumerate(texts):
            of_text = constrained[place]  # a view: (vocab_size,)
            prefix = self.prefixes[row] if self.prefixes else ()
            if len(ids) < len(prefix):
                next_id = prefix[len(ids)]
                of_text[:] = -torch.inf
                of_text[next_id] = logits[place, next_id]
                continue

            if self.repetition_penalty != 1 and ids:
                repeated = torch.tensor(sorted(set(ids)), device=logits.device)
                log_probs = logits[place, repeated] - log_sum_exp[place]
                of_text[repeated] = log_sum_exp[place] + self.repetition_penalty * log_probs
            of_text[self.banned(ids)] = -torch.inf
            if end is not None and len(ids) < self.min_length:
                of_text[end] = -torch.inf
            if self.once:
                of_text[list(self.once[row].banned)] = -torch.inf
                allowed = self.once[row].allowed(ids)
                latest = self.once[row].latest
                is_late = self.complete and latest is not None and len(ids) >= latest
                self._constrain_reserved(of_text, allowed, end, is_late)

            nothing_left = not bool((of_text > -torch.inf).any())
            if nothing_left:
                if end is None:
                    raise ArgumentError(
                        f"no_repeat={self.no_repeat} excludes every id after {len(ids)}; give more"
                    )
                of_text[end] = logits[place, end]
        return constrained

    def _constrain_reserved(
        self, of_text: torch.Tensor, allowed: Sequence[int], end: int | None, is_late: bool
    ) -> None:
        """Exclude the reserved ids of a text (vocab_size,) but those that are allowed; with `complete` END too."""
        logits_of_allowed = of_text[list(allowed)]
        of_text[self.reserved.start : self.reserved.stop] = -torch.inf
        if self.complete and allowed and end is not None:
            best = logits_of_allowed.argmax()
            logits_of_allowed[best] = torch.maximum(logits_of_allowed[best], of_text[end])
            of_text[end] = -torch.inf
            if is_late:
                of_text[:] = -torch.inf
        of_text[list(allowed)] = logits_of_allowed


FREE = Constraints()
