"""regard inside other people's code: PyTorch's own attention functions. Nothing here is needed to use regard itself."""
