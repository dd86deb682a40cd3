"""Attention over several processes on this machine."""
