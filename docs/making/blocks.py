"""The code of a page: its fenced blocks, in order."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the line of the page on which its text begins."""

    language: str
    text: str
    line: int

    @property
    def commands(self) -> list[list[str]]:
        """The words of each `regard` command in a block of a shell, without comments.

        >>> Block("sh", "regard plan --q-len 9  # the costs\\nmake test\\n", 1).commands
        [['plan', '--q-len', '9']]
        """
        if self.language != "sh":
            return []
        lines = self.text.replace("\\\n", " ").splitlines()
        words = [shlex.split(line, comments=True) for line in lines]
        return [line[1:] for line in words if line[:1] == ["regard"]]


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page.

    >>> blocks("Text\\n\\n```python\\nx = 1\\n```\\n")
    [Block(language='python', text='x = 1\\n', line=4)]
    """
    return [Block(found[1], found[2], page.count("\n", 0, found.start(2)) + 1) for found in FENCE.finditer(page)]


def mentioned(page: str) -> list[list[str]]:
    """The words of each `regard` command that stands in a line of text, without brackets and dots.

    >>> mentioned("See `regard bench [NAME] [--quick]`, `regard train ...` and `regard.bench`.")
    [['bench', 'NAME', '--quick'], ['train']]
    """
    found = re.findall(r"(?<!`)`regard ([^`\n]+)`", page)
    lines = [shlex.split(re.sub(r"[][]|\.\.\.", " ", one.replace("\\|", "|"))) for one in found]
    return [words for words in lines if words]
