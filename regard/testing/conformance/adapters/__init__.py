"""Adapters, which translate a `NeutralCall` into the arguments of one implementation.

An adapter takes the call, raises by `call.refuse_words(...)` for options that the library has no argument for, and
returns the results by name. `Torch` does what all functions of tensors share: dtypes, layouts, gradients, transforms.
"""
