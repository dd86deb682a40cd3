"""What makes the pages: `python -m docs.making` writes all that comes from reports, lessons and declarations."""
