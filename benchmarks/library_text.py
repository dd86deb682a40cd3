"""English prose that every Python installation has: the documentation of its standard library.

Collected are the docstrings of the modules (read with `ast`, nothing is imported or run) and the chapters of
`pydoc_data.topics`, which `help()` prints. Examples, tables and signatures are dropped: a paragraph is kept if it has
several words, mostly letters, and ends like a sentence; of equal paragraphs the first is kept. The result is a
function of the installed Python alone, and differs between versions of Python.
"""

import ast
import hashlib
import re
import sysconfig
import textwrap
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

OTHERS = {
    "site-packages",
    "test",
    "tests",
    "idlelib",
    "lib2to3",
    "turtledemo",
    "pydoc_data",
    "__pycache__",
}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
FEWEST_WORDS = 6
PARTS = ("train", "valid", "test")
HELD_OUT = {"valid": 0.1, "test": 0.1}  # shares of the documents

_ROLE = re.compile(r":[\w:]+:(?=`)")  # Sphinx: :class:`Path`
_MARKS = re.compile(r"[`*_]{1,3}(?=\S)([^`*\n]*?\S)[`*_]{1,3}(?!\w)")  # emphasis and code
_PROSE = re.compile(r"[A-Za-z' ]")
_RULE = re.compile(r"\s*([-+=|~^*#.]{3,}|::=)")  # of a table, or of a grammar


@dataclass(frozen=True)
class LibraryDocument:
    """The prose of one module or of one chapter, as paragraphs."""

    name: str
    paragraphs: tuple[str, ...]

    @property
    def text(self) -> str:
        return " ".join(self.paragraphs)

    @property
    def part(self) -> str:
        """train, valid or test: decided by the name alone.

        >>> LibraryDocument("json/decoder.py", ()).part
        'train'
        """
        place = int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:6], "big") / 2**48
        for part, share in HELD_OUT.items():
            if place < share:
                return part
            place -= share
        return "train"


def library_documents() -> list[LibraryDocument]:
    """All documents in the order of their names, each paragraph once."""
    seen: set[str] = set()
    documents = []
    modules = [(name, docstrings(tree)) for name, tree in library_modules()]
    for name, texts in [*modules, *_chapters()]:
        paragraphs = []
        for text in texts:
            for paragraph in prose(text):
                if paragraph.lower() not in seen:
                    seen.add(paragraph.lower())
                    paragraphs.append(paragraph)
        if paragraphs:
            documents.append(LibraryDocument(name, tuple(paragraphs)))
    return documents


def prose(text: str) -> Iterator[str]:
    r"""The paragraphs of a docstring that are prose, each on one line.

    >>> list(prose("Return it.\n\n    >>> f(1)\n    2\n\nThe *name* of the ``file`` is\nkept as it is."))
    ['The name of the file is kept as it is.']
    """
    for block in re.split(r"\n\s*\n", textwrap.dedent(text).strip()):
        lines = block.splitlines()
        has_rule = any(_RULE.match(line) for line in lines)
        if ">>>" in block or "::=" in block or has_rule:
            continue
        joined = " ".join(" ".join(lines).split())
        plain = _MARKS.sub(r"\1", _ROLE.sub("", joined)).replace("\\", "")
        words = re.findall(r"[A-Za-z][a-z']+", plain)
        letters = len(_PROSE.findall(plain)) / max(1, len(plain))
        if len(words) >= FEWEST_WORDS and letters > 0.85 and plain[-1] in ".:!?":
            yield plain


def library_modules() -> Iterator[tuple[str, ast.Module]]:
    """The modules of the standard library, parsed, in the order of their names."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if OTHERS & set(name.parts) or name.parts[0].startswith("config-"):
            continue
        with suppress(SyntaxError, ValueError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield name.as_posix(), ast.parse(path.read_bytes())


def docstrings(tree: ast.Module) -> list[str]:
    """The docstrings of a module, its classes and its functions."""
    documented = [node for node in ast.walk(tree) if isinstance(node, DOCUMENTED)]
    return [text for text in map(ast.get_docstring, documented) if text]


def _chapters() -> Iterator[tuple[str, list[str]]]:
    from pydoc_data.topics import topics

    for name, text in sorted(topics.items()):
        yield f"topics/{name}", [text]
