"""Optional packages are imported where they are used; here is what a user reads when one is missing."""

from collections.abc import Generator
from contextlib import contextmanager

from regard.errors import MissingPackageError


@contextmanager
def needed(package: str, purpose: str) -> Generator[None]:
    """Wrap the import of an optional package, so that its absence is explained.

    Raises:
        MissingPackageError: the package is not installed (what it lacks itself is reported unchanged).

    >>> with needed("json", "a report"):
    ...     import json
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        raise MissingPackageError(
            f"{purpose} needs the package '{package}', which is not installed here: pip install 'regard[train]'"
        ) from error
