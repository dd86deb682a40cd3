"""Mechanisms as text: `performer(features=256)`, for configs and command lines."""

from __future__ import annotations

import re
from typing import Any

from regard.arguments import suggest
from regard.errors import ArgumentError
from regard.mechanisms.base import Mechanism
from regard.mechanisms.linear import FeatureMap
from regard.mechanisms.scores import Score
from regard.patterns.registry import WORDS, Reader, Registry, usage

_HYPHEN = re.compile(r"(?<=[a-z])-(?=[a-z])")
ARGUMENT_REGISTRIES = (FeatureMap.registry, Score.registry)


def parse(text: str) -> Mechanism:
    """The mechanism that a text describes: a name, and in parentheses the arguments of its class.

    Arguments stand by place or as name=value. Values are numbers, true, false, all (None), feature maps and scores by
    name, and words such as keys_and_values. A hyphen in a name is an underscore. `str` of a mechanism reads back.

    Raises:
        ArgumentError: a text that is no mechanism, or arguments that its class refuses.

    >>> print(parse("performer(features=256)"))
    performer(256, seed=0)
    >>> print(parse("linear(signed-softmax)"))
    linear_transformer(signed_softmax)
    >>> parse("softmax(general(8, 4))").score.key_dim
    4
    """
    text = _HYPHEN.sub("_", text) if isinstance(text, str) else text
    return _MechanismReader(text, Mechanism.registry, "performer(features=256)").whole()


class _MechanismReader(Reader):
    """Adds nested declarations, words, factors such as 4 x 8, and flags: `gated` for gated=true."""

    def named(self, registry: Registry) -> Any:
        name = self.peek()
        if registry is self.registry and name and name not in registry.kinds:
            raise self._unknown_mechanism(name)
        return super().named(registry)

    def _unknown_mechanism(self, name: str) -> ArgumentError:
        score = Score.registry.kinds.get(name)
        if score is not None:
            hint = f"write softmax({usage(score)}), in Python Softmax({score.__name__}(...))"
            return self.error(
                f"{name!r} is a score function, which is an argument of softmax", hint=hint
            )
        shortened = name if len(name) <= 80 else f"{name[:77]}..."
        # Second names are suggested as well.
        kinds = self.registry.kinds
        names = [known for known, kind in kinds.items() if kind.no_text is None]
        return self.error(f"there is no mechanism {shortened!r}", hint=suggest(name, names))

    def argument(self) -> tuple[str | None, Any]:
        if self.peek() in self.flags and self.peek(1) != "=":
            self.at += 1
            return self.words[self.at - 1][0], True
        return super().argument()

    def value(self) -> Any:
        name = self.peek()
        for registry in ARGUMENT_REGISTRIES:
            if name in registry.kinds:
                return self.named(registry)
        if name.isidentifier() and name not in WORDS:
            self.at += 1
            return name
        value = super().value()
        return value if self.peek() != "x" else self._factors(value)

    def _factors(self, first: int) -> tuple[int | float, ...]:
        factors: list[int | float] = [first]
        while self.take("x"):
            factors.append(self.number())
        return tuple(factors)
