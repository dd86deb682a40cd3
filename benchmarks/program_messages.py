"""Makes sentence pairs of the program messages on this machine: English with a translation, from message catalogues.

python benchmarks/program_messages.py --out DIR [--language de] [--locale /usr/share/locale]

It writes two splits of the same pairs, each as train.tsv, valid.tsv and test.tsv:

- `random/`: a pair is held out by a hash of its source, so that test messages are like those of training;
- `programs/`: whole programs are held out, so that no message of a test program was seen. A message that a program of
  training has too, but for capitals and punctuation, is left out of the test.

Messages of several lines or columns and lists of names (countries, languages, currencies) are left out. Of programs of
one family, such as the parts of PostgreSQL, at most 3,000 messages are taken.
"""

import argparse
import hashlib
import json
import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from regard_lab.text.catalogues import read_catalogue

LONGEST, SHORTEST = 100, 3  # characters of a message
NAMES = re.compile(r"iso_|xkeyboard|shared-mime")  # catalogues that list names
FAMILIES = {
    "postgresql": re.compile(r"pg_|pgscripts|plpgsql|postgres|psql|libpq|initdb"),
    "gtk": re.compile(r"gtk|gdk|at-spi|gsettings"),
    "binutils": re.compile(r"^(ld|opcodes|gprof|bfd|gas|binutils|elfutils)"),
    "dpkg": re.compile(r"dpkg"), "apt": re.compile(r"apt|software-properties"), "man-db": re.compile(r"man-db"),
    "gettext": re.compile(r"gettext"), "wget": re.compile(r"wget"), "gnutls": re.compile(r"gnutls|gnupg"),
}  # fmt: skip
MOST = 3_000  # messages of a family
HELD_OUT = 0.05  # of the pairs for validation, and as many for the test, where they are split by the source
TEST = {"tar", "sed", "grep", "diffutils", "findutils", "wget", "make", "xz", "procps-ng"}  # families
VALID = {"apt", "gettext", "man-db", "systemd"}


class Message(NamedTuple):
    """A message of a program and its translation."""

    program: str
    source: str
    target: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--language", default="de")
    parser.add_argument("--locale", type=Path, default=Path("/usr/share/locale"))
    asked = parser.parse_args()
    messages = read_messages(asked.locale / asked.language / "LC_MESSAGES")
    if not messages:
        raise SystemExit(f"{asked.locale} has no messages in {asked.language!r}; see `ls {asked.locale}`")
    about = {"language": asked.language, "pairs": len(messages), "programs": len({one.program for one in messages})}
    for name, split in (("random", split_by_source(messages)), ("programs", split_by_program(messages))):
        for part, chosen in split.items():
            write_pairs(asked.out / name / f"{part}.tsv", chosen)
            about[f"{name} {part}"] = len(chosen)
            if name == "programs" and part != "train":
                about[f"programs of {part}"] = dict(Counter(one.program for one in chosen))
    (asked.out / "about.json").write_text(json.dumps(about, indent=1) + "\n")
    print(json.dumps(about, indent=1))


def read_messages(folder: Path) -> list[Message]:
    """Messages of all programs with a catalogue in the folder; each source once, in the order of the programs."""
    kept: dict[str, Message] = {}
    for path in sorted(folder.glob("*.mo")):
        if NAMES.match(path.stem):
            continue
        try:
            entries = read_catalogue(path.read_bytes())
        except UnicodeDecodeError:  # of another encoding
            continue
        for source, target in entries:
            if is_sentence(source) and is_sentence(target):
                kept.setdefault(source, Message(path.stem, source, target))
    of_family: dict[str, list[Message]] = {}
    for one in sorted(kept.values(), key=lambda one: share_of(f"taken {one.source}")):
        of_family.setdefault(family(one.program), []).append(one)
    taken = {one.source for messages in of_family.values() for one in messages[:MOST]}
    return [one for one in kept.values() if one.source in taken]


def is_sentence(text: str) -> bool:
    """Whether a text is one line and one column, of a fitting length, with two letters in a row.

    >>> is_sentence("cannot open %s"), is_sentence("%d:"), is_sentence("  --help   show this help")
    (True, False, False)
    """
    text = text.strip(" ")
    in_one = not any(gap in text for gap in ("\n", "\t", "\r", "  "))
    return in_one and SHORTEST <= len(text) <= LONGEST and re.search(r"[^\W\d_]{2}", text) is not None


def family(program: str) -> str:
    """The family of a program."""
    return next((name for name, pattern in FAMILIES.items() if pattern.search(program)), program)


def split_by_source(messages: list[Message]) -> dict[str, list[Message]]:
    """A twentieth for validation and for the test, by a hash of the source."""
    parts: dict[str, list[Message]] = {"train": [], "valid": [], "test": []}
    for one in messages:
        place = share_of(one.source)
        parts["valid" if place < HELD_OUT else "test" if place < 2 * HELD_OUT else "train"].append(one)
    return parts


def split_by_program(messages: list[Message]) -> dict[str, list[Message]]:
    """The messages of TEST, of VALID and of all other programs."""
    parts: dict[str, list[Message]] = {"train": [], "valid": [], "test": []}
    for one in messages:
        name = family(one.program)
        parts["test" if name in TEST else "valid" if name in VALID else "train"].append(one)
    known = {comparable(one.source) for one in parts["train"]}
    return {
        part: [one for one in chosen if part == "train" or comparable(one.source) not in known]
        for part, chosen in parts.items()
    }


def comparable(text: str) -> str:
    """A text without what differs between programs that say the same: capitals, spaces, marks at the end."""
    return re.sub(r"\W+", " ", text).casefold().strip()


def share_of(text: str) -> float:
    """A number from 0 to 1 that is a function of the text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / 2**48


def write_pairs(path: Path, messages: list[Message]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{one.source}\t{one.target}\n" for one in messages), "utf-8")


if __name__ == "__main__":
    main()
