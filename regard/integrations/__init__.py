"""regard inside other people's code: PyTorch and transformers. Nothing here is needed to use regard itself."""
