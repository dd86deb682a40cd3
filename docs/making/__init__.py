"""Generates the pages and figures that come from reports, lessons and docstrings: `python -m docs.making`."""
