"""What tests of pages share: files of pages."""

import pytest

from regard_lab.seeing.explorer import Page, to_page

from .making import translation


@pytest.fixture(scope="session")
def page_of(tmp_path_factory):
    """A function that returns the address of a page, or of the page of an exploration."""
    folder = tmp_path_factory.mktemp("pages")
    count = iter(range(999))

    def saved(shown):
        path = folder / f"{next(count)}.html"
        (shown if isinstance(shown, Page) else to_page(shown)).save(path)
        return path.as_uri()

    return saved


@pytest.fixture(scope="session")
def translated(page_of):
    return page_of(translation())
