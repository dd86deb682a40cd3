"""Strictly parsed JSON with a checksum, so that every changed byte is detected."""

import hashlib
import json
import math
from pathlib import Path
from typing import Any

from regard.errors import ArgumentError, CheckpointError
from regard.storage.files import TEXT_LIMIT, read_bytes

_SEAL = "sha256"


def parse_json(data: bytes, source: str | Path) -> Any:
    """Parse strict JSON: UTF-8, no repeated keys, no NaN or infinity, limited nesting.

    >>> parse_json(b'{"heads": 8}', "config.json")
    {'heads': 8}
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content = dict(pairs)
        if len(content) != len(pairs):
            raise ValueError("an object repeats a key")
        return content

    def finite(text: str) -> float:
        number = float(text)
        if not math.isfinite(number):
            raise ValueError(f"{text[:40]} is not a finite number")
        return number

    try:
        return json.loads(
            data.decode(), object_pairs_hook=unique, parse_constant=finite, parse_float=finite
        )
    except RecursionError:
        raise CheckpointError(f"{source} is nested too deeply to be a file of regard") from None
    except ValueError as error:
        raise CheckpointError(f"{source} is not valid JSON: {error}") from None


def render_sealed(content: dict[str, Any]) -> bytes:
    """JSON whose last entry is the SHA-256 of the rest.

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
        raise ArgumentError(
            f"this content has {len(sealed)} bytes as JSON; at most {TEXT_LIMIT} are stored"
        )
    return sealed


def read_sealed(path: Path) -> dict[str, Any]:
    """Read a file that `render_sealed` wrote, and verify its checksum."""
    data = read_bytes(path)
    content = parse_json(data, path)
    if not isinstance(content, dict) or not isinstance(content.pop(_SEAL, None), str):
        raise CheckpointError(f"{path} has no '{_SEAL}' entry, so it was not written by regard")
    try:
        unchanged = render_sealed(content) == data
    except ArgumentError:
        unchanged = False
    if not unchanged:
        raise CheckpointError(
            f"{path} does not match its own SHA-256: it was changed or damaged after it was saved"
        )
    return content


def check_format(content: dict[str, Any], known: int, path: str | Path) -> None:
    """Raise a CheckpointError unless the content has this format, an integer (`true` is not 1).

    >>> check_format({"format": True}, 1, "config.json")
    Traceback (most recent call last):
    regard.errors.CheckpointError: config.json has format True; this version reads format 1
    """
    version = content.get("format")
    if type(version) is not int or version != known:
        raise CheckpointError(
            f"{path} has format {str(version)[:40]}; this version reads format {known}"
        )
