"""All signals by their ids, and the PromQL of those that Prometheus knows."""

from __future__ import annotations

from vllm_node.diagnosis.look import expression
from vllm_node.diagnosis.signal import Signal
from vllm_node.diagnosis.signals_beyond import BEYOND
from vllm_node.diagnosis.signals_gpu import GPU
from vllm_node.diagnosis.signals_host import HOST, MONITORING
from vllm_node.diagnosis.signals_vllm import VLLM
from vllm_node.diagnosis.window import seconds

DEFAULT_WINDOW = "15m"
_ALL = (*VLLM, *GPU, *HOST, *MONITORING, *BEYOND)
SIGNALS: dict[str, Signal] = {one.id: one for one in _ALL}
assert len(SIGNALS) == len(_ALL), "two signals have one id"


def expressions(window: str = DEFAULT_WINDOW) -> dict[str, str]:
    """PromQL by signal for a window such as `15m`: what a diagnosis asks Prometheus."""
    return {one.id: expression(one, seconds(window)) for one in _ALL if one.expr}
