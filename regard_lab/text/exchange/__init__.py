"""Files of messages that translations are written back into: XLIFF, TMX, and catalogues of gettext."""

from __future__ import annotations

import shlex
from pathlib import Path

from regard.errors import ArgumentError
from regard_lab.text.catalogues import CATALOGUES
from regard_lab.text.exchange.document import Document, WritingOptions
from regard_lab.text.exchange.memory import MemoryDocument
from regard_lab.text.exchange.po import PoDocument
from regard_lab.text.exchange.xliff import XLIFF, XliffDocument
from regard_lab.text.lines import PathLike, open_bytes, plain_path, suffix_of, unpacking
from regard_lab.text.memories import MEMORY

__all__ = ["Document", "WritingOptions", "open_document", "is_document"]

TEMPLATE = ".pot"
DOCUMENTS = (*XLIFF, MEMORY, *CATALOGUES, TEMPLATE)


def is_document(path: PathLike) -> bool:
    """Whether the suffix of a path is that of a file of messages.

    >>> is_document("menu.xliff"), is_document("de.po.gz"), is_document("lines.txt")
    (True, True, False)
    """
    return suffix_of(path) in DOCUMENTS


def open_document(
    path: PathLike, options: WritingOptions | None = None, source: str | None = None
) -> Document:
    """A file of messages with its texts to translate.

    Args:
        path: a `.xlf` or `.xliff` (version 1.2 or 2), `.tmx`, `.po` or `.pot`, or one that gzip packed.
        options: what is written into it.
        source: of a `.tmx` the language to translate from; by default that of its header.

    Raises:
        DataError: a file that is damaged, of another format, or in another encoding than it says.
        ArgumentError: another suffix, or a `.mo`; a language that the file does not have, or `source` of a file that
            names its own.
    """
    options = options or WritingOptions()
    path = Path(path)
    suffix = suffix_of(path)
    if suffix not in DOCUMENTS:
        known = [one for one in DOCUMENTS if one != ".mo"]
        raise ArgumentError(f"{path} has an unknown suffix; give one of {', '.join(known)}")
    if suffix == ".mo":
        plain = plain_path(path)
        command = shlex.join(["msgunfmt", str(plain), "-o", str(plain.with_suffix(".po"))])
        raise ArgumentError(
            f"{path} is compiled, and has no messages without translation; translate the .po that it was made from, or "
            f"make one by: {unpacking(path)}{command}"
        )
    if source is not None and suffix != MEMORY:
        raise ArgumentError(
            f"--from {source} is for a .tmx, and {path} names its source; leave it out"
        )
    with open_bytes(path) as file:
        content = file.read()
    if suffix in XLIFF:
        return XliffDocument(path, content, options)
    if suffix == MEMORY:
        return MemoryDocument(path, content, options, source)
    return PoDocument(path, content, options)
