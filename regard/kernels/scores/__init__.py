"""Scores block by block, in workspaces that stay in a core's cache: what fused operations cannot do or do not tell.

`layout` says where a problem has scores, `blocks` computes them, `gradients` sends back what arrives at them,
`diagonals` reads and sums a bias by distance.
"""
