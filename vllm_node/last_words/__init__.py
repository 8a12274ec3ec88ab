"""The last words of units that died: what they mean, and what to do next."""

from vllm_node.last_words.cause import Cause, explain, likely_cause

__all__ = ["Cause", "explain", "likely_cause"]
