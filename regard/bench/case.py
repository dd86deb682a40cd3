"""What a case is made of: contests, each between contenders over one work."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch

from regard.bench.promises import Promise
from regard.bench.work import Tensors, Work
from regard.plan import Plan

Attend = Callable[[], torch.Tensor | dict[str, torch.Tensor]]
Prepare = Callable[[Work, Tensors], Attend]


def unchanged(work: Work) -> Work:
    """The work of most contenders: that of their contest."""
    return work


@dataclass(frozen=True)
class Contender:
    """One way to compute a work.

    Args:
        name: as reports show it.
        prepare: from a work and its tensors the call to be timed: it answers with the output, or with the output and
            statistics by name. What a user does once (masks, modules, plans) is done in `prepare`.
        package: what must be installed for it, besides torch; "" for nothing.
        compiles: it takes tens of seconds before its first answer, so a quick run leaves it out.
        device: the only device it runs on; "" for any.
        own_dropout: it drops weights by a law of its own, so its values are checked without dropout.
        own_pattern: it keeps other pairs than the work's pattern: answers (batch or 1, heads or 1, rows, k_len) for
            some rows, once it was prepared.
        works_on: another work than its contest's.
        judged_at: the length at which its values are compared, where they need every row and those are too many.
        plan: for regard itself, the plan that it follows.
    """

    name: str
    prepare: Prepare
    package: str = ""
    compiles: bool = False
    device: str = ""
    own_dropout: bool = False
    own_pattern: Callable[[Work, list[int]], torch.Tensor] | None = None
    works_on: Callable[[Work], Work] = unchanged
    judged_at: int | None = None
    plan: Callable[[Work, Tensors], Plan] | None = None


@dataclass(frozen=True)
class Contest:
    """Contenders over one work, in the order of a report; the first is ours.

    Args:
        label: what tells it apart from the other contests of its case.
        work: what is computed.
        contenders: by whom.
        promises: what is expected to be seen.
        timed: take times.
        memory: the names of those whose memory is measured, each in a process of its own.
    """

    label: str
    work: Work
    contenders: tuple[Contender, ...]
    promises: tuple[Promise, ...] = ()
    timed: bool = True
    memory: tuple[str, ...] = ()


def unpromised(contests: Iterable[Contest]) -> tuple[Contest, ...]:
    """The same as a look at smaller sizes, of which nothing is promised."""
    return tuple(replace(contest, promises=()) for contest in contests)


@dataclass(frozen=True)
class Case:
    """Contests about one subject; `quick` are those of a quick run."""

    name: str
    title: str
    contests: tuple[Contest, ...]
    quick: tuple[Contest, ...]
