"""Finds the fenced code blocks of a page and the `regard` commands in its text."""

import re
import shlex
from dataclasses import dataclass

FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class FencedBlock:
    """A fenced block: its language, its text, and the number of the line on which the text begins."""

    language: str
    text: str
    line: int

    @property
    def commands(self) -> list[list[str]]:
        """The words of each `regard` command in a shell block, without comments.

        >>> FencedBlock("sh", "regard plan --q-len 9  # the costs\\nmake test\\n", 1).commands
        [['plan', '--q-len', '9']]
        """
        if self.language != "sh":
            return []
        lines = self.text.replace("\\\n", " ").splitlines()
        words = [shlex.split(line, comments=True) for line in lines]
        return [line[1:] for line in words if line[:1] == ["regard"]]


def blocks(page: str) -> list[FencedBlock]:
    """The fenced blocks of a page.

    >>> blocks("Text\\n\\n```python\\nx = 1\\n```\\n")
    [FencedBlock(language='python', text='x = 1\\n', line=4)]
    """
    return [
        FencedBlock(match[1], match[2], page.count("\n", 0, match.start(2)) + 1)
        for match in FENCE.finditer(page)
    ]


def mentioned(page: str) -> list[list[str]]:
    """The words of each `regard` command within a line of text, without brackets and dots.

    >>> mentioned("See `regard bench [NAME] [--quick]`, `regard train ...` and `regard_lab.bench`.")
    [['bench', 'NAME', '--quick'], ['train']]
    """
    commands = re.findall(r"(?<!`)`regard ([^`\n]+)`", page)
    lines = [shlex.split(re.sub(r"[][]|\.\.\.", " ", one.replace("\\|", "|"))) for one in commands]
    return [words for words in lines if words]


def expressions(page: str) -> list[str]:
    """The Python in a line of text that builds a value: `Name(...)`, also combined, or as `pattern=Name(...)`.

    >>> expressions("Write `pattern=Causal() & Prefix(n)` or `bias=mask`, see `reach(layers)` and `Where(f)`.")
    ['Causal() & Prefix(n)', 'Where(f)']
    """
    text = FENCE.sub("", page)
    fragments = (one.replace("\\|", "|") for one in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text))
    values = (re.sub(r"^\w+=(?!=)", "", one) for one in fragments)
    return [
        one
        for one in values
        if re.match(r"~?\(?(rg\.\w+\.)?[A-Z]\w+\(", one) and not re.search("…|\\.\\.\\.", one)
    ]
