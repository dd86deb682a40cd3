"""The error for an optional package that is not installed."""

import json
import shlex
from collections.abc import Generator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote, urlparse

from regard.errors import MissingPackageError


def install_line(extra: str) -> str:
    """The command that installs an extra of regard from where regard was installed, such as a clone.

    >>> install_line("lab").startswith("pip install ")
    True
    """
    return "pip install " + shlex.quote(f"{_origin()}[{extra}]")


def _origin() -> str:
    """The folder or wheel that regard was installed from; its name if that is unknown, or no longer there."""
    try:
        record = distribution("regard").read_text("direct_url.json") or "{}"
        url = urlparse(json.loads(record).get("url", ""))
    except (PackageNotFoundError, ValueError):
        return "regard"
    path = unquote(url.path)
    return path if url.scheme == "file" and Path(path).exists() else "regard"


@contextmanager
def needed(package: str, purpose: str, extra: str = "lab", otherwise: str = "") -> Generator[None]:
    """Import an optional package inside this block to get a clear error if it is missing.

    Args:
        package: the name by which it is imported.
        purpose: what needs it, as the message begins.
        extra: the extra of regard that installs it.
        otherwise: what the message names besides installing it, if anything.

    Raises:
        MissingPackageError: the package is not installed. A missing dependency of it is reported unchanged.

    >>> with needed("json", "a report"):
    ...     import json
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        way_out = install_line(extra)
        if otherwise:
            way_out = f"{way_out}; or {otherwise}"
        raise MissingPackageError(
            f"{purpose} needs the package '{package}', which is not installed: {way_out}"
        ) from error
