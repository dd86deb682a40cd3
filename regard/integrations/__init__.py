"""regard inside other people's code: PyTorch, transformers, diffusers. Nothing here is needed to use regard itself."""
