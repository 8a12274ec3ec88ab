"""Bring up, measure and hand back standalone GPU nodes that serve models with vLLM."""
