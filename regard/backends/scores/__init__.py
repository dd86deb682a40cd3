"""Scores block by block, in workspaces that stay in a core's cache; for calls that fused operations cannot compute."""
