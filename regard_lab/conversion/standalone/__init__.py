"""What is copied into exported folders: translating with a tokeniser and an engine, without regard and without torch.

`regard_lab.conversion.serving` copies these modules, and those of `regard_lab.text` that they import, as the package
`regard_text`; only the names in their imports change. So they import nothing else of regard.
"""
