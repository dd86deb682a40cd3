"""What the papers say that their mechanisms can and cannot learn, tried again with models small enough for a laptop."""
