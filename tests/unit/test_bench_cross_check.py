"""Our figures beside those of another client: real results of both, and what is said when either of them differs."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from vllm_node.bench import cross_check
from vllm_node.bench.cross_check import ORDER, Load
from vllm_node.bench.cross_figures import PEER, judged
from vllm_node.bench.facts import Facts
from vllm_node.bench.generator import StageError
from vllm_node.bench.redaction import redact
from vllm_node.load import bodies
from vllm_node.load.arrivals import NS
from vllm_node.load.plan import parse

# Of the timed server of tests/load (first token after 50 ms, then one every 20 ms; `slower`: 55 and 21 ms), by our
# engine and by vllm bench serve 0.32, at 20 requests/s of 16 tokens. `peer` is what the module gives of a result.
RESULTS: Mapping[str, Any] = json.loads((Path(__file__).parent / "data/cross_check.json").read_text())
REQUESTS: int = RESULTS["requests"]
FACTS = {"max_model_len": 2048, "vocab_size": 2000}


def results(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = copy.deepcopy(RESULTS[name])
    return found


def scaled(result: dict[str, Any], by: float, latency: str = "ttft_sent_s", only: Sequence[str] = ("mean", "p50", "p95")) -> dict[str, Any]:
    for name in only:
        result["latency"][latency][name] *= by
    return result


def figure(said: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return next(one for one in said["figures"] if one["name"] == name)


def test_two_clients_of_one_server_agree() -> None:
    said = judged(results("ours"), results("peer"), REQUESTS)
    assert said["agrees"] is True
    assert said["why"].startswith("within 3 %")
    # Which of them needed more than that is told.
    assert "by the clocks' allowance only: TTFT mean" in said["why"]
    assert [one["name"] for one in said["figures"] if one["within"] is not True] == []
    first = figure(said, "ttft_mean_s")
    assert (first["ours"], first["ours_runs"]) == (0.05029053, [0.05029053, 0.05025335, 0.0503605])
    assert first["peer"] == pytest.approx((0.05252883 + 0.05192495) / 2)
    assert first["ratio"] == pytest.approx(first["ours"] / first["peer"])
    assert first["allowed"] == 0.003


def test_throughput_is_that_of_the_same_window_and_not_the_peers_own() -> None:
    seen = figure(judged(results("ours"), results("peer"), REQUESTS), "completed_per_s")
    assert (seen["ours"], seen["peer"]) == (16.5, 16.5)
    assert all(one["request_throughput"] > 17.1 for one in results("peer"))


def test_a_client_that_sees_a_slower_server_does_not_agree() -> None:
    said = judged(results("slower"), results("peer"), REQUESTS)
    assert said["agrees"] is False
    assert "TTFT mean 55.17 ms and 52.23 ms" in said["why"]
    assert figure(said, "tpot_mean_s")["within"] is False
    assert figure(said, "prompt_tokens")["within"] is True


@pytest.mark.parametrize(("by", "agrees"), [(0.98, True), (0.97, False), (1.06, True), (1.08, False)])
def test_the_peers_clock_may_make_a_first_token_later_and_never_earlier(by: float, agrees: bool) -> None:
    """Ours is 50.3 ms and the peer's 52.2 ms: 3 ms above ours are its clock, below ours only 3 % are allowed."""
    said = judged([scaled(one, by) for one in results("ours")], results("peer"), REQUESTS)
    assert figure(said, "ttft_mean_s")["within"] is agrees
    assert said["agrees"] is agrees


def test_a_server_that_varied_is_no_measure() -> None:
    ours = results("ours")
    scaled(ours[1], 1.07, "tpot_s")
    said = judged(ours, results("peer"), REQUESTS)
    assert said["agrees"] is None
    assert re.search(r"^insufficient: the server itself varied by 7 % \(TPOT mean\)", said["why"])
    assert figure(said, "tpot_mean_s")["within"] is None


def test_a_peer_that_varied_is_no_measure_either() -> None:
    peer = results("peer")
    peer[0]["mean_tpot_ms"] *= 1.07
    said = judged(results("ours"), peer, REQUESTS)
    assert said["agrees"] is None
    assert "the peer's own runs varied by 6.700 % (TPOT mean)" in said["why"]


def test_variation_is_no_excuse_for_clients_that_are_far_apart_in_each_run() -> None:
    ours = [scaled(one, by, "tpot_s") for one, by in zip(results("ours"), (1.5, 1.6, 1.7), strict=True)]
    said = judged(ours, results("peer"), REQUESTS)
    assert said["agrees"] is False
    assert "TPOT mean 32.00 ms and 20.00 ms" in said["why"]


def test_the_slowest_few_decide_nothing_but_are_told() -> None:
    peer = [{**one, "p95_ttft_ms": one["p95_ttft_ms"] * 1.2} for one in results("peer")]
    said = judged(results("ours"), peer, REQUESTS)
    assert said["agrees"] is True
    assert "only the slowest answers differ by more: TTFT p95 50.37 ms and 63.23 ms" in said["why"]


def test_a_percentile_of_too_few_samples_is_not_compared() -> None:
    ours, peer = results("ours"), results("peer")
    for one in ours:
        one["counts"]["completed"] = 12
        one["latency"]["ttft_sent_s"]["p95"] = "insufficient"
    said = judged(ours, [{**one, "completed": 12} for one in peer], 12)
    assert (figure(said, "ttft_p95_s")["ours"], figure(said, "ttft_p95_s")["peer"]) == ("insufficient", "insufficient")
    assert figure(said, "ttft_p95_s")["ratio"] is figure(said, "ttft_p95_s")["within"] is None
    assert figure(said, "itl_p95_s")["within"] is True  # of single gaps there are enough


def test_tokens_without_a_text_make_the_figures_two_different_things() -> None:
    ours = results("ours")
    for one in ours:
        one["counts"]["empty_events"] = 30  # of 640
    said = judged(ours, results("peer"), REQUESTS)
    assert said["agrees"] is None
    assert "not comparable: many events had no text" in said["why"]
    assert figure(said, "e2e_mean_s")["within"] is True


def test_counts_have_to_be_equal() -> None:
    said = judged(results("ours"), [{**one, "total_output_tokens": 639} for one in results("peer")], REQUESTS)
    assert said["agrees"] is False
    assert "output tokens 640 and 639" in said["why"]


def test_a_figure_that_another_version_does_not_give_is_not_taken_for_agreement() -> None:
    peer = [{key: value for key, value in one.items() if key != "start_times"} for one in results("peer")]
    said = judged(results("ours"), peer, REQUESTS)
    assert said["agrees"] is None
    assert said["why"] == "insufficient: completed requests/s: one of the two has no such figure"


def void(result: dict[str, Any]) -> dict[str, Any]:
    return {**result, "selfcheck": {"valid": False, "reasons": ["lateness p99 12.0 ms, above 10 ms"]}}


def incomplete(result: dict[str, Any]) -> dict[str, Any]:
    return {**result, "counts": {**result["counts"], "completed": 39, "by_kind": {"held_back": 1}}}


@pytest.mark.parametrize(
    ("ours", "said"),
    [
        (lambda runs: [void(runs[0]), void(runs[1]), runs[2]], "of our 3 runs 1 can be used (lateness p99 12.0 ms, above 10 ms)"),
        (lambda runs: [incomplete(one) for one in runs], "1 of 40 requests did not complete (1 held_back)"),
        (lambda runs: [{**one, "stopped": "SIGTERM was received"} for one in runs], "it ended early: SIGTERM was received"),
        (lambda _: [], "of our 0 runs 0 can be used"),
    ],
)
def test_runs_of_ours_that_say_nothing(ours: Callable[[list[dict[str, Any]]], list[dict[str, Any]]], said: str) -> None:
    found = judged(ours(results("ours")), results("peer"), REQUESTS)
    assert found["agrees"] is None
    assert found["why"].startswith("insufficient: ")
    assert said in found["why"]


def test_one_void_run_of_three_is_left_out_and_told() -> None:
    ours = results("ours")
    found = judged([ours[0], void(scaled(ours[1], 5.0)), ours[2]], results("peer"), REQUESTS)
    assert found["agrees"] is True
    assert len(figure(found, "ttft_mean_s")["ours_runs"]) == 2
    assert "1 of our 3 runs left out" in found["why"]


def test_a_peer_that_lost_requests_says_nothing() -> None:
    found = judged(results("ours"), [{**one, "completed": 38} for one in results("peer")], REQUESTS)
    assert (found["agrees"], found["why"]) == (None, "insufficient: 4 of the peer's 80 requests did not complete")


# What is sent


LOAD = Load(rate_per_s=4, requests=8, prompt_tokens=32, output_tokens=5)


def plan(repeat: int) -> dict[str, Any]:
    return cross_check.plan(LOAD, url="http://127.0.0.1:8000", model="tiny", facts=Facts.of(FACTS), seed=7, repeat=repeat)


def test_both_clients_send_the_same_number_at_the_same_times_and_of_the_same_lengths() -> None:
    read = parse(plan(1))
    schedule = read.arrivals.load(read.seed_for("arrivals"))
    lines = [json.loads(line) for line in cross_check.trace(LOAD)["trace.jsonl"].splitlines()]
    assert [line["timestamp"] for line in lines] == [one / NS for one in schedule.offsets_ns]  # type: ignore[union-attr]
    assert {(line["input_length"], line["output_length"]) for line in lines} == {(32, 5)}
    assert len({line["hash_ids"][0] for line in lines}) == LOAD.requests
    words = cross_check.words(LOAD, url="http://127.0.0.1:8000", model="tiny")
    options = dict(pairwise(words))
    assert (options["--num-prompts"], options["--timed-trace-chunk-hash-size"], options["--endpoint"]) == ("8", "32", "/v1/completions")
    body = next(iter(bodies.documents(read, "scored", 1)))
    assert (len(body["prompt"]), body["max_tokens"], body["ignore_eos"], body["temperature"]) == (32, 5, True, 0)
    assert body["skip_special_tokens"] is False
    assert {"--ignore-eos", "--temperature"} <= set(words)
    assert json.loads(options["--extra-body"]) == {"skip_special_tokens": body["skip_special_tokens"]}
    assert int(options["--max-concurrency"]) == read.limits.in_flight == 64


def test_no_run_meets_the_prompts_of_another() -> None:
    prompts = [tuple(one["prompt"]) for repeat in (1, 2) for one in bodies.documents(parse(plan(repeat)), "scored", 8)]
    assert len(set(prompts)) == 16
    seeds = [cross_check.environment(seed, repeat)["PYTHONHASHSEED"] for seed in (1, 2) for repeat in (1, 3)]
    assert len(set(seeds)) == 4
    assert all(0 <= int(one) < 2**32 for one in (*seeds, cross_check.environment(-5, 1)["PYTHONHASHSEED"]))


@pytest.mark.parametrize("wrong", [{"rate_per_s": 400}, {"rate_per_s": 0}, {"requests": 1}, {"output_tokens": 1}])
def test_a_load_that_the_peer_cannot_bear_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"right above 0|needs two requests"):
        Load(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rates", "context", "expected"),
    [
        ([8.0, 2.0], 4096, Load(2.0, 50, 256, 32)),
        ([], 4096, Load(4.0, 100, 256, 32)),
        ([0.1], 4096, Load(1.0, 40, 256, 32)),
        ([500.0], 64, Load(4.0, 100, 48, 16)),
    ],
)
def test_the_load_is_light_for_the_instance_and_fits_its_context(rates: list[float], context: int, expected: Load) -> None:
    assert Load.light(rates, context) == expected


# The order on a node


class Node:
    """Answers as the module does, with the next of the real results."""

    def __init__(self, **wrong: Any) -> None:
        self.wrong, self.did, self.begun = wrong, list[str](), list[dict[str, Any]]()
        self.peer = results("peer")

    def ours(self, plan: Mapping[str, Any], place: str) -> Mapping[str, Any]:
        self.did.append("ours")
        self.begun.append(dict(plan))
        if "ours" in self.wrong:
            raise StageError(self.wrong["ours"])
        return results("ours")[self.did.count("ours") - 1]

    def __call__(self, module: str, **args: Any) -> dict[str, Any]:
        assert module == "peer_run"
        state = args.pop("state")
        self.did.append(state)
        if state in self.wrong:
            answer = self.wrong[state]
            if isinstance(answer, BaseException):
                raise answer
            return dict(answer)
        if state == "begin":
            self.begun.append(args)
            return {"running": True}
        if state == "look":
            return {"running": self.did[-2] == "begin"}
        return {"result": self.peer.pop(0), "said": ""}


def run(node: Node, **more: Any) -> dict[str, Any]:
    shown: list[str] = []
    found = cross_check.cross_check(
        node,
        node.ours,
        shown.append,
        url="http://127.0.0.1:8000",
        model="tiny",
        model_path="/srv/models/tiny",
        reference="registry.example/vllm@sha256:" + "1" * 64,
        version="0.32.0",
        facts=FACTS,
        load=Load(rate_per_s=20, requests=REQUESTS, prompt_tokens=64, output_tokens=16),
        seed=1,
        **more,
    )
    return {**found, "shown": shown}


def test_runs_alternate_and_begin_and_end_with_ours() -> None:
    node = Node()
    found = run(node)
    once = ["begin", "look", "look", "collect"]
    assert node.did == ["ours", *once, "ours", *once, "ours"]
    assert found["order"] == list(ORDER) == ["ours", PEER, "ours", PEER, "ours"]
    assert (found["agrees"], found["peer"], found["peer_version"], found["load"]["requests"]) == (True, PEER, "0.32.0", 40)
    assert found["command"].startswith("vllm bench serve --backend openai --base-url http://127.0.0.1:8000 ")
    assert found["shown"] == [f"cross-check, run {number} of 5 (vllm bench serve): 0 s" for number in (2, 4)]
    sent = [one for one in node.begun if "words" in one]
    assert {one["model"] for one in sent} == {"/srv/models/tiny"}
    assert len({one["environment"]["PYTHONHASHSEED"] for one in sent}) == 2
    assert len({one["repeat"] for one in node.begun if "repeat" in one}) == 3
    assert json.loads(json.dumps(redact(found)))["agrees"] is True


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"begin": {"failed": True, "msg": "the image is not here"}}, "the image is not here"),
        ({"collect": {"said": "error: argument --dataset-name: invalid choice: 'timed_trace'"}}, "its last words:\nerror: argument --dataset-name"),
        ({"ours": "the generator gave no result"}, "the generator gave no result"),
    ],
)
def test_what_goes_wrong_is_told_and_loses_no_run(wrong: dict[str, Any], why: str) -> None:
    found = run(Node(**wrong))
    assert found["agrees"] is None
    assert found["why"].startswith("insufficient: ")
    assert why in found["why"]


def test_the_peer_is_collected_when_somebody_interrupts() -> None:
    node = Node(look=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        run(node)
    assert node.did[-1] == "collect"


def test_it_ends_when_no_more_is_wanted() -> None:
    node = Node()
    found = run(node, stopped=lambda: len(node.did) > 2)
    assert node.did == ["ours", "begin", "look", "collect"]
    assert found["why"] == "insufficient: it was ended early"
