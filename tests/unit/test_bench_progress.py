"""People who watch see all of a stage's figures, whatever the width of their terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from vllm_node.bench.generator import told
from vllm_node.progress import LiveView
from vllm_node.runner import HostStarted, Line, PlayStarted

PROGRESS = {
    "event": "progress",
    "rate_per_s": 12.25,
    "in_flight": 31,
    "running": 24.0,
    "waiting": 7.0,
    "failed": 2,
    "ttft_s": 0.1234,
    "left_s": 88.4,
}


@pytest.mark.parametrize("width", [60, 80, 100, 140, 240])
def test_the_live_region_holds_every_figure(width: int) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=width, height=24, color_system=None)
    with LiveView(console, "bench") as view:
        view.show(PlayStarted("An instance is measured and judged by the site's SLO"))
        view.show(HostStarted("gpu-node-1", "Instance is measured", "benchmark"))
        view.show(Line(f"stage 1 of 12 (12 requests/s, repeat 1), 32 s: {told(PROGRESS)}", "gpu-node-1", "progress"))
        view.draw_now()
    drawn = " ".join(out.getvalue().split())
    for figure in ("12.25 requests/s", "24 running", "7 waiting", "2 failed", "first token after 123 ms", "88 s left"):
        assert figure in drawn
    assert "gpu-node-1" in drawn
