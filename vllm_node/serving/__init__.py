"""Serving: what an instance is told, why, and whether its image and its GPUs can do it."""
