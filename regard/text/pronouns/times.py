"""The times that may open a sentence: days, hours and spans, with their numbers in words."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Time:
    """A time at the head of a sentence; a span ("for two weeks") goes with negated clauses only."""

    english: str
    german: str
    is_span: bool = False


_NUMBERS = {
    "two": "zwei",
    "three": "drei",
    "four": "vier",
    "five": "fünf",
    "six": "sechs",
    "seven": "sieben",
    "eight": "acht",
    "nine": "neun",
    "ten": "zehn",
}

TIMES: tuple[Time, ...] = (
    Time(english="yesterday", german="gestern"),
    Time(english="on Monday", german="am Montag"),
    Time(english="on Friday", german="am Freitag"),
    *(Time(english=f"at {number} o'clock", german=f"um {zahl} Uhr") for number, zahl in _NUMBERS.items()),
    *(Time(english=f"after {number} days", german=f"nach {zahl} Tagen") for number, zahl in _NUMBERS.items()),
    *(
        Time(english=f"for {number} weeks", german=f"{zahl} Wochen lang", is_span=True)
        for number, zahl in _NUMBERS.items()
    ),
)
