"""Hypotheses about a node, with what speaks for and against each: never a cause from one signal."""
