"""The backends. Each is a file or a folder and imports no other backend; `reference` defines every result.

They share `limits` (what a backend does not compute), `schedule` (a pattern as row blocks and runs), `flash` (PyTorch's
private attention operations, which no other module calls), `composed` (fused calls of row blocks), `scores`,
`statistics`, `dropout` and `second_order`. The native kernel computes the parts of a strided pattern for the tiled
backend, and those of a divided image for the windows backend.
"""

from regard.backends.decode import Decode
from regard.backends.fla import FlashLinear
from regard.backends.flex import Flex
from regard.backends.fused import Fused
from regard.backends.linear import LinearTime
from regard.backends.linformer import Projected
from regard.backends.lsh import Hashed
from regard.backends.native import Native
from regard.backends.reference import Reference
from regard.backends.streamed import Streamed
from regard.backends.tiled import Tiled
from regard.backends.windows import Windows
from regard.core.backend import Backend

BACKENDS: dict[str, Backend] = {
    backend.name: backend
    for backend in (
        Native(),
        Decode(),
        Fused(),
        Tiled(),
        Windows(),
        Flex(),
        Streamed(),
        FlashLinear(),
        LinearTime(),
        Projected(),
        Hashed(),
        Reference(),
    )
}

__all__ = ["BACKENDS"]
