"""Files that survive a kill and notice every changed bit: text, sealed JSON, and tensors as safetensors.

Whatever is written here appears complete or not at all; whatever is read is believed only after every check, and
no file names code. Models, checkpoints and caches are kept by it.
"""

from regard.storage.tensors import load_tensor_metadata, load_tensors, save_tensors

__all__ = ["save_tensors", "load_tensors", "load_tensor_metadata"]
