"""Scores block by block, in workspaces that stay in a core's cache; for calls that fused operations cannot compute.

`blocking` divides the row blocks of a schedule along keys and heads. `formulas` has the formula of each score. `blocks`
computes the scores of a block and their gradients. `plain` has the same as plain operations, for second derivatives.
"""
