"""Preflight: judge a node's snapshot against what the site wants, before anything is changed."""

from vllm_node.preflight.findings import Finding, render
from vllm_node.preflight.judge import judge
from vllm_node.preflight.wanted import Wanted, wanted_from

__all__ = ["Finding", "Wanted", "judge", "render", "wanted_from"]
