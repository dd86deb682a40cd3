"""The backends, each a file or a folder that imports no other: `reference` is the definition of every result.

They share `schedule` (a pattern as row blocks and runs), `flash` (the one owner of PyTorch's private attention
operations), `composed`, `scores`, `statistics`, `dropout` and `second_order`.
"""

from regard.core.backend import Backend
from regard.kernels.decode import Decode
from regard.kernels.flex import Flex
from regard.kernels.fused import Fused
from regard.kernels.linear import Linear
from regard.kernels.linformer import Projected
from regard.kernels.lsh import Hashed
from regard.kernels.reference import Reference
from regard.kernels.streamed import Streamed
from regard.kernels.tiled import Tiled

BACKENDS: dict[str, Backend] = {
    backend.name: backend
    for backend in (
        Decode(),
        Fused(),
        Tiled(),
        Flex(),
        Streamed(),
        Linear(),
        Projected(),
        Hashed(),
        Reference(),
    )
}

__all__ = ["BACKENDS"]
