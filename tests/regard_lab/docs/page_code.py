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
    fenced = []
    for match in FENCE.finditer(page):
        line = page.count("\n", 0, match.start(2)) + 1
        fenced.append(FencedBlock(match[1], match[2], line))
    return fenced


def mentioned(page: str) -> list[list[str]]:
    """The words of each `regard` command within a line of text, without brackets and dots.

    >>> mentioned("See `regard bench [NAME] [--quick]`, `regard train ...` and `regard_lab.bench`.")
    [['bench', 'NAME', '--quick'], ['train']]
    """
    commands = []
    for command in re.findall(r"(?<!`)`regard ([^`\n]+)`", page):
        words = shlex.split(re.sub(r"[][]|\.\.\.", " ", command.replace("\\|", "|")))
        if words:
            commands.append(words)
    return commands


def expressions(page: str) -> list[str]:
    """The Python in a line of text that builds a value: `Name(...)`, also combined, or as `pattern=Name(...)`.

    >>> expressions("Write `pattern=Causal() & Prefix(n)` or `bias=mask`, see `reach(layers)` and `Where(f)`.")
    ['Causal() & Prefix(n)', 'Where(f)']
    """
    text = FENCE.sub("", page)
    values = []
    for fragment in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text):
        value = re.sub(r"^\w+=(?!=)", "", fragment.replace("\\|", "|"))
        is_built = re.match(r"~?\(?(rg\.\w+\.)?[A-Z]\w+\(", value)
        is_cut = re.search("…|\\.\\.\\.", value)
        if is_built and not is_cut:
            values.append(value)
    return values
