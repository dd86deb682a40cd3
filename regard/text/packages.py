"""The error for an optional package that is not installed."""

from collections.abc import Generator
from contextlib import contextmanager

from regard.errors import MissingPackageError


@contextmanager
def needed(package: str, purpose: str, extra: str = "train") -> Generator[None]:
    """Import an optional package inside this block to get a clear error if it is missing.

    Args:
        package: the name by which it is imported.
        purpose: what needs it, as the message begins.
        extra: the extra of regard that installs it.

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
        raise MissingPackageError(
            f"{purpose} needs the package '{package}', which is not installed: pip install 'regard[{extra}]'"
        ) from error
