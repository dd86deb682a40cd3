"""Atomic files with checksums: text, JSON, and tensors as safetensors, for models, checkpoints and caches.

A file appears complete or not at all, and every changed bit is detected when it is read. Sizes, types and names are
checked first, and nothing is unpickled.
"""

from regard.storage.tensors import load_tensor_metadata, load_tensors, save_tensors

__all__ = ["save_tensors", "load_tensors", "load_tensor_metadata"]
