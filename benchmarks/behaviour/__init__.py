"""Experiments on what mechanisms can and cannot learn according to their papers, with models of laptop size."""
