"""Both clients against a server whose times are known: where they agree it is said, and where they do not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.load import peer
from tests.load.runs import measure
from tests.load.server import TimedServer, serving
from tests.load.test_truth import close
from vllm_node.bench import cross_check
from vllm_node.bench.cross_check import Load
from vllm_node.bench.cross_figures import judged
from vllm_node.bench.facts import Facts

TTFT_S, ITL_S = 0.05, 0.02
LOAD = Load(rate_per_s=20, requests=60, prompt_tokens=64, output_tokens=16)
FACTS = Facts(max_model_len=2048, vocab_size=2000)
TRIES = 2


def ours(server: TimedServer, folder: Path, repeat: int) -> dict[str, Any]:
    """A run of our engine that its self-check finds valid, or the last of three."""
    for number in range(3):
        asked = cross_check.plan(LOAD, url=server.url, model="tiny", facts=FACTS, seed=1, repeat=3 * repeat + number)
        result, _ = measure(asked, folder / f"ours-{repeat}-{number}")
        if result["selfcheck"]["valid"]:
            break
    return result


def theirs(found: peer.Peer, server: TimedServer, folder: Path) -> dict[str, Any]:
    """A run of the peer."""
    for name, text in cross_check.trace(LOAD).items():
        (folder / name).write_text(text)
    words = cross_check.words(LOAD, url=server.url, model="tiny", folder=str(folder), tokenizer=str(found.model))
    return found.run(folder, words, cross_check.environment(1, 2))


def figure(said: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return next(one for one in said["figures"] if one["name"] == name)


@pytest.mark.usefixtures("first_in_line")
def test_both_clients_tell_the_same_of_a_light_load_and_a_slower_server_is_seen(tmp_path: Path) -> None:
    found = peer.installed()
    if found is None:
        pytest.skip(f"vllm bench serve takes no part: {peer.MISSING}")
    timing = ("--ttft-us", str(round(TTFT_S * 1e6)), "--itl-us", str(round(ITL_S * 1e6)))
    with serving(tmp_path, *timing) as server:
        # Other programs of the machine may disturb either client.
        for _ in range(TRIES):
            first, other, last = ours(server, tmp_path, 1), theirs(found, server, tmp_path), ours(server, tmp_path, 2)
            said = judged([first, last], [other], LOAD.requests)
            if said["agrees"]:
                break
        server.get(f"/set?ttft_us={round(TTFT_S * 1.1e6)}&itl_us={round(ITL_S * 1.05e6)}")
        slower = judged([ours(server, tmp_path, number) for number in (3, 4)], [other], LOAD.requests)
    assert said["agrees"], said["why"]
    # And both tell the truth, ours the more so.
    for name, truth in (("ttft_mean_s", TTFT_S), ("tpot_mean_s", ITL_S), ("itl_mean_s", ITL_S)):
        assert close(figure(said, name)["ours"], truth), name
    assert figure(said, "ttft_mean_s")["peer"] > figure(said, "ttft_mean_s")["ours"]
    assert figure(said, "output_tokens")["peer"] == LOAD.requests * LOAD.output_tokens
    assert slower["agrees"] is False
    assert "TTFT mean" in slower["why"]
    assert "TPOT mean" in slower["why"]
