"""JSON that is believed only after every check: strict to parse, and sealed so that a changed byte is noticed."""

import hashlib
import json
import math
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any

from regard.errors import ArgumentError, CheckpointError
from regard.storage.files import TEXT_LIMIT, read_bytes

_SEAL = "sha256"


def parse_json(data: bytes, source: str | Path) -> Any:
    """Strict JSON: UTF-8, no key twice, no NaN or infinity, no bottomless nesting.

    Raises:
        CheckpointError: anything else, naming `source`.

    >>> parse_json(b'{"heads": 8}', "config.json")
    {'heads': 8}
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a key stands twice in one object")
        return found

    def finite(text: str) -> float:
        number = float(text)
        if not math.isfinite(number):
            raise ValueError(f"{text[:40]} is not a finite number")
        return number

    try:
        return json.loads(data.decode(), object_pairs_hook=unique, parse_constant=finite, parse_float=finite)
    except RecursionError:
        raise CheckpointError(f"{source} is nested too deeply to be a file of ours") from None
    except ValueError as error:
        raise CheckpointError(f"{source} is not the JSON it should be: {error}") from None


def render_sealed(content: dict[str, Any]) -> bytes:
    """JSON that ends with the SHA-256 of all before it, so that a changed byte is noticed.

    Raises:
        ArgumentError: the content has no JSON form (NaN, infinity, objects).

    >>> list(parse_json(render_sealed({"heads": 8}), "here"))
    ['heads', 'sha256']
    """
    try:
        body = json.dumps(content, ensure_ascii=False, allow_nan=False, indent=2).encode()
        seal = hashlib.sha256(body).hexdigest()
        sealed = json.dumps({**content, _SEAL: seal}, ensure_ascii=False, indent=2).encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentError(f"this content cannot be stored as JSON: {error}") from error
    if len(sealed) > TEXT_LIMIT:
        raise ArgumentError(f"this content has {len(sealed)} bytes as JSON; at most {TEXT_LIMIT} are stored")
    return sealed


def read_sealed(path: Path) -> dict[str, Any]:
    """The content of a file written by `render_sealed`, byte for byte as it was written.

    Raises:
        CheckpointError: missing, not ours, or one bit of it changed.
    """
    data = read_bytes(path)
    content = parse_json(data, path)
    if not isinstance(content, dict) or not isinstance(content.pop(_SEAL, None), str):
        raise CheckpointError(f"{path} has no '{_SEAL}' entry, so it was not written by regard")
    try:
        unchanged = render_sealed(content) == data
    except ArgumentError:
        unchanged = False
    if not unchanged:
        raise CheckpointError(f"{path} does not match its own SHA-256: it was changed or damaged after it was saved")
    return content


def read_sealed_or_older(path: Path, older: Container[str], needed: Iterable[str] = ()) -> tuple[dict[str, Any], bool]:
    """The content of a sealed file, or of one that a version before the seals wrote; and whether it is sealed.

    Args:
        path: the file.
        older: every key that an unsealed file may have, so that a damaged seal is not taken for no seal.
        needed: keys that either has.

    Raises:
        CheckpointError: missing, not ours, or sealed and changed.
    """
    content = parse_json(read_bytes(path), path)
    sealed = not isinstance(content, dict) or not content or any(key not in older for key in content)
    if sealed:
        content = read_sealed(path)
    if missing := [key for key in needed if key not in content]:
        raise CheckpointError(f"{path} lacks {', '.join(missing)}, so it was not written for this")
    return content, sealed


def check_format(content: dict[str, Any], known: int, path: str | Path) -> None:
    """Raise a CheckpointError unless the content says that it has this format: the whole number itself, not `true`.

    >>> check_format({"format": True}, 1, "config.json")
    Traceback (most recent call last):
    regard.errors.CheckpointError: config.json has format True; this version reads format 1
    """
    found = content.get("format")
    if type(found) is not int or found != known:
        raise CheckpointError(f"{path} has format {str(found)[:40]}; this version reads format {known}")
