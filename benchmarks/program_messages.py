"""Makes sentence pairs of the program messages on this machine: English with a translation, from message catalogues.

python benchmarks/program_messages.py --out DIR [--language de] [--locale /usr/share/locale]

It writes train.tsv, valid.tsv, short.tsv and long.tsv. Validation and test have messages of whole programs that are
held out, so that no message of a test program was seen: short.tsv those of one line and one column with at most 100
characters, long.tsv all others: longer ones, columns of a help text, and lines with a line end or tab around them. A
message that a program of training has too, but for capitals and punctuation, is left out of the test.

Messages without two letters in a row and lists of names (countries, languages, currencies) are left out. Of programs of
one family, such as the parts of PostgreSQL, at most 3,000 messages are taken.
"""

import argparse
import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from regard_lab.text.catalogues import catalogue_pairs, read_catalogue
from regard_lab.text.cleaning import tidy_target
from regard_lab.text.plurals import PluralForms

# Characters of a message.
SHORTEST = 3
SHORT = 100  # the most of a short one
LONGEST = 800
NAMES = re.compile(r"iso_|xkeyboard|shared-mime")  # catalogues that list names
FAMILIES = {
    "postgresql": re.compile(r"pg_|pgscripts|plpgsql|postgres|psql|libpq|initdb"),
    "gtk": re.compile(r"gtk|gdk|at-spi|gsettings"),
    "binutils": re.compile(r"^(ld|opcodes|gprof|bfd|gas|binutils|elfutils)"),
    "dpkg": re.compile(r"dpkg"),
    "apt": re.compile(r"apt|software-properties"),
    "man-db": re.compile(r"man-db"),
    "gettext": re.compile(r"gettext"),
    "wget": re.compile(r"wget"),
    "gnutls": re.compile(r"gnutls|gnupg"),
}
MOST = 3_000  # messages of a family
# Families of the test split, then of the validation split.
TEST = {"tar", "sed", "grep", "diffutils", "findutils", "wget", "make", "xz", "procps-ng"}
VALID = {"apt", "gettext", "man-db", "systemd"}


class ProgramMessage(NamedTuple):
    """A message of a program and its translation."""

    program: str
    source: str
    target: str
    short: bool


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--language", default="de")
    parser.add_argument("--locale", type=Path, default=Path("/usr/share/locale"))
    asked = parser.parse_args(words)
    messages = read_messages(asked.locale / asked.language / "LC_MESSAGES")
    if not messages:
        raise SystemExit(
            f"{asked.locale} has no messages in {asked.language!r}; see `ls {asked.locale}`"
        )
    about = {
        "language": asked.language,
        "pairs": len(messages),
        "programs": len({message.program for message in messages}),
    }
    for part, of_part in split_by_program(messages).items():
        write_pairs(asked.out / f"{part}.tsv", of_part)
        about[part] = len(of_part)
        if part != "train":
            programs = Counter(message.program for message in of_part)
            about[f"programs of {part}"] = dict(programs)
    (asked.out / "about.json").write_text(json.dumps(about, indent=1) + "\n")
    print(json.dumps(about, indent=1))


def read_messages(folder: Path) -> list[ProgramMessage]:
    """Messages of all programs with a catalogue in the folder; each source once, in the order of the programs."""
    by_source: dict[str, ProgramMessage] = {}
    for path in sorted(folder.glob("*.mo")):
        if NAMES.match(path.stem):
            continue
        try:
            header, entries = read_catalogue(path.read_bytes())
        except UnicodeDecodeError:  # of another encoding
            continue
        forms = PluralForms.of_header(header)
        for entry_source, entry_target in entries:
            # Of plurals only the pair of n = 1 is taken, as when the report was made.
            pair, *_ = catalogue_pairs(entry_source, entry_target, forms)
            if isinstance(pair, str):  # the reason why it is none
                continue
            source, target = pair
            if is_message(source) and is_message(target):
                line = tidy_target(source)
                message = ProgramMessage(path.stem, line, tidy_target(target), is_short(source))
                by_source.setdefault(line, message)

    of_family: defaultdict[str, list[ProgramMessage]] = defaultdict(list)
    in_random_order = sorted(
        by_source.values(), key=lambda message: share_of(f"taken {message.source}")
    )
    for message in in_random_order:
        of_family[family(message.program)].append(message)
    taken: set[str] = set()
    for messages in of_family.values():
        taken |= {message.source for message in messages[:MOST]}
    return [message for message in by_source.values() if message.source in taken]


def is_message(text: str) -> bool:
    """Whether a text has a fitting length and two letters in a row.

    >>> is_message("cannot open %s"), is_message("%d:")
    (True, False)
    """
    return SHORTEST <= len(text) <= LONGEST and re.search(r"[^\W\d_]{2}", text) is not None


def is_short(text: str) -> bool:
    """Whether a text is one line and one column of at most 100 characters.

    >>> is_short("cannot open %s"), is_short("  --help   show this help")
    (True, False)
    """
    text = text.strip(" ")
    return len(text) <= SHORT and not any(gap in text for gap in ("\n", "\t", "\r", "  "))


def family(program: str) -> str:
    """The family of a program."""
    for name, pattern in FAMILIES.items():
        if pattern.search(program):
            return name
    return program


def split_by_program(messages: list[ProgramMessage]) -> dict[str, list[ProgramMessage]]:
    """The messages of TEST, short and long, of VALID, and of all other programs."""
    parts: dict[str, list[ProgramMessage]] = {"train": [], "valid": [], "short": [], "long": []}
    for message in messages:
        name = family(message.program)
        part = "train"
        if name in TEST:
            part = "short" if message.short else "long"
        elif name in VALID:
            part = "valid"
        parts[part].append(message)

    seen = {comparable(message.source) for message in parts["train"]}
    for part in ("valid", "short", "long"):
        unseen = [message for message in parts[part] if comparable(message.source) not in seen]
        parts[part] = unseen
    return parts


def comparable(text: str) -> str:
    """A text without what differs between programs that say the same: capitals, spaces, marks at the end."""
    return re.sub(r"\W+", " ", text).casefold().strip()


def share_of(text: str) -> float:
    """A number from 0 to 1 that is a function of the text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / 2**48


def write_pairs(path: Path, messages: list[ProgramMessage]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{message.source}\t{message.target}\n" for message in messages]
    path.write_text("".join(lines), "utf-8")


if __name__ == "__main__":
    main()
