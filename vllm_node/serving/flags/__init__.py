"""Flags of `vllm serve`: which ones an image knows, and whether an instance's are among them."""
