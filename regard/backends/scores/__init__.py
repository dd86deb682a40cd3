"""Scores block by block, in workspaces that stay in a core's cache: for what fused operations do not compute.

`blocking` cuts the row blocks of a schedule along keys and heads, `formulas` computes the score of a pair, `blocks`
computes the scores of a block and sends gradients back, `plain` is the same as plain operations for second derivatives.
"""
