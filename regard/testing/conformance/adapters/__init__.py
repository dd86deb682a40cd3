"""How implementations are asked: for each an adapter of a few lines, from a `NeutralCall` to its own words.

An adapter takes the call, refuses by `call.refuse_words(...)` what the library has no word for, and returns the results
by name. `Torch` does for functions of tensors what all have in common: dtypes, layouts, gradients, transforms.
"""
