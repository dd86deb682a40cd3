"""How problems are computed: one file a backend, which never imports another, and one row each in `table.py`.

`flash.py` alone calls PyTorch's private attention operations; `reference.py` is the meaning of everything else.
"""

from regard.kernels.table import BACKENDS

__all__ = ["BACKENDS"]
