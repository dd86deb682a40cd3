"""Studies of attention: what one does to understand or compare it, apart from computing it.

`bench` measures speed and memory beside other libraries, `comparison` trains models side by side, `lenses` measures
which lens shows what a model uses, `lessons` check the claims of articles, `walkthrough` shows each step from a
sentence to context vectors.
"""
