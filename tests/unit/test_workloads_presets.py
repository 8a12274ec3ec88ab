"""Presets: the same seed gives the same bytes, nothing is shared that should not be, and all of it fits the model."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_node.bench.facts import Facts, WorkloadError, from_files
from vllm_node.bench.fit import MOST_CUT, fit
from vllm_node.bench.presets import PRESETS
from vllm_node.bench.workloads import describe, named, plan, preview
from vllm_node.load import bodies
from vllm_node.load import plan as engine
from vllm_node.load.bodies import Bodies
from vllm_node.load.lengths import Lengths

SPECIAL = (0, 1, 2, 31_000, 31_999)
FACTS = {"max_model_len": 32_768, "vocab_size": 32_000, "gpus": 2, "special_token_ids": SPECIAL}
names = st.sampled_from(sorted(PRESETS))


def made(name: str, *, seed: int = 1, repeat: int = 1, **other: Any) -> dict[str, Any]:
    given_ = {"facts": FACTS, "arrivals": {"kind": "poisson", "rate": 2}, "duration_s": 30, **other}
    workload = named(name, given_.pop("share", None))
    return plan(workload, url="http://127.0.0.1:8000", model="tiny", seed=seed, repeat=repeat, **given_)


def documents(document: dict[str, Any], purpose: str = "scored", count: int = 4) -> list[Any]:
    return list(bodies.documents(engine.parse(document), purpose, count))


def sent(document: dict[str, Any], folder: Path) -> bytes:
    with Bodies(folder / "bodies", documents(document)) as one:
        return b"\n".join(one[number] for number in range(len(one)))


@settings(max_examples=8, deadline=None)
@given(names, st.integers(0, 2**40), st.integers(1, 9))
def test_same_seed_same_bytes(tmp_path_factory: pytest.TempPathFactory, name: str, seed: int, repeat: int) -> None:
    folder = tmp_path_factory.mktemp("bodies")
    first = sent(made(name, seed=seed, repeat=repeat), folder)
    assert sent(made(name, seed=seed, repeat=repeat), folder) == first
    assert sent(made(name, seed=seed + 1, repeat=repeat), folder) != first


def test_requests_are_those_of_last_year() -> None:
    """A change of these numbers makes old and new runs incomparable: give such a workload another name."""
    seen = [[*one["prompt"][-3:], one["max_tokens"]] for one in documents(made("smoke"), count=2)]
    assert seen == [[6526, 29940, 14959, 24], [12500, 16976, 2407, 32]]


@settings(max_examples=8, deadline=None)
@given(names, st.integers(0, 1000), st.integers(1, 9))
def test_seeds_repeats_and_warmup_share_nothing_but_the_prefix(name: str, seed: int, repeat: int) -> None:
    own = [
        (document, purpose)
        for document, purpose in itertools.product(
            (
                made(name, seed=seed, repeat=repeat),
                made(name, seed=seed, repeat=repeat + 1),
                made(name, seed=seed + 1, repeat=repeat),
            ),
            ("warmup", "scored"),
        )
    ]
    tails = []
    for document, purpose in own:
        prefix = document["requests"]["shared_prefix_tokens"]
        for one in documents(document, purpose, 3):
            if "follows_after_s" not in one:
                tokens = one["prompt"]
                tails.append(tuple(tokens[min(prefix, len(tokens) - 8) :][:8]))
    assert len(set(tails)) == len(tails) >= 18


@settings(max_examples=8, deadline=None)
@given(names, st.sampled_from([0.0, 0.1, 0.3, 0.5]), st.integers(0, 1000))
def test_share_of_the_prefix_is_as_asked(name: str, share: float, seed: int) -> None:
    """Counted in the requests. A tenth off at most: lengths are drawn, and caches keep whole blocks."""
    seen = preview(made(name, seed=seed, share=share), 30 if name == "agent" else 200)
    assert seen["shared_prefix_share"] == pytest.approx(share, abs=0.1 if share else 0)


def test_share_over_many_requests_is_close() -> None:
    seen = preview(made("chat", share=0.3), 2000)
    assert seen["shared_prefix_share"] == pytest.approx(0.3, abs=0.02)
    assert seen["repeated_share"] == seen["shared_prefix_share"]
    assert preview(made("chat", share=0.0), 500)["shared_prefix_share"] == 0


@pytest.mark.parametrize("share", [1.0, 1.5, -0.1, 0.99])
def test_share_that_cannot_be(share: float) -> None:
    with pytest.raises(WorkloadError, match="shared prefix"):
        made("smoke", share=share)


@settings(max_examples=30, deadline=None)
@given(names, st.integers(64, 40_000), st.sampled_from(["completions", "chat"]), st.integers(0, 1000))
def test_all_fits_the_context_or_the_workload_is_refused(name: str, context: int, api: str, seed: int) -> None:
    try:
        document = made(name, seed=seed, facts={**FACTS, "max_model_len": context}, api=api)
    except WorkloadError as error:
        refused = str(error)
    else:
        refused = ""
    if refused:
        assert "does not fit a context of" in refused
        return
    for one in documents(document):
        length = len(one["prompt"]) if api == "completions" else 2 * len(one["messages"][0]["content"].split()) + 64
        assert length + one["max_tokens"] * (1 if api == "completions" else 2) <= context
        assert length >= 8
        assert one["max_tokens"] >= 1
        if api == "completions":
            assert not {*SPECIAL} & {*one["prompt"]}
            assert max(one["prompt"]) < 32_000


@pytest.mark.parametrize("api", ["completions", "chat"])
@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_refusal_names_a_context_that_will_do(name: str, api: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        made(name, facts={**FACTS, "max_model_len": 128}, api=api)
    enough = int(str(caught.value).partition("max_model_len of at least ")[2].split(",")[0])
    made(name, facts={**FACTS, "max_model_len": enough}, api=api)


def test_what_is_cut_is_said_before_and_counted_after() -> None:
    small = {**FACTS, "max_model_len": 2048}
    (answers, prompts) = describe("chat", seed=1, facts=small)["notices"]
    assert "answers are at most 1024" in answers
    assert "of the prompts are cut to fit a context of 2048" in prompts
    expected = float(prompts.split("%")[0].rpartition(" ")[2]) / 100
    seen = preview(made("chat", facts=small), 1000)
    assert 0 < seen["cut"] / 1000 == pytest.approx(expected, abs=0.03)
    assert expected < MOST_CUT
    assert describe("chat", seed=1, facts=FACTS)["notices"] == []


def test_lengths_are_as_the_preset_says() -> None:
    """All three percentiles, over many draws."""
    lengths = PRESETS["chat"].prompt_tokens
    draw = random.Random(1)
    drawn = sorted(lengths.draw(draw) for _ in range(20_000))
    for share, wanted in ((0.5, lengths.p50), (0.95, lengths.p95), (0.99, lengths.p99)):
        assert drawn[int(share * len(drawn))] == pytest.approx(wanted, rel=0.08)
    assert drawn[-1] == lengths.high  # long ones are there
    assert Lengths(1, 10**6, 450, 2200).draw(random.Random(1)) > 0


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 1000))
def test_calls_of_an_agent_grow_from_each_other(seed: int) -> None:
    before: list[int] = []
    calls = answer = 0
    for one in documents(made("agent", seed=seed), count=3):
        tokens = one["prompt"]
        if "follows_after_s" in one:
            assert tokens[: len(before)] == before
            assert len(tokens) >= len(before) + answer + 16
            assert 0.05 <= one["follows_after_s"] <= 15
            calls += 1
        else:
            assert calls == 0 or 3 <= calls <= 10
            calls = 1
        before, answer = tokens, one["max_tokens"]


def test_run_document_describes_the_workload() -> None:
    asked = preview(made("agent"), 5)
    seen = describe("agent", seed=7, facts=FACTS, asked=asked)
    assert (seen["name"], seen["seed"], seen["api"], seen["cache"], seen["how"]) == (
        "agent",
        7,
        "completions",
        "mixed",
        "illustrative",
    )
    assert seen["shared_prefix_share"]["asked"] == 0.5
    assert seen["shared_prefix_share"]["measured"] == asked["shared_prefix_share"]
    assert asked["shared_prefix_share"] is not None
    assert seen["repeated_share"] > seen["shared_prefix_share"]["measured"]
    assert set(seen["lengths"]) == {"prompt_tokens", "output_tokens", "new_tokens", "calls", "think_ms"}
    assert describe("chat", seed=1, facts=FACTS)["cache"] == "warm"
    assert describe(named("chat", 0.0), seed=1, facts=FACTS)["cache"] == "cold"
    json.dumps(seen)


def test_plan_of_a_closed_loop_and_of_a_trace() -> None:
    closed = made("agent", arrivals={"kind": "closed", "clients": 4}, duration_s=60)
    assert closed["requests"]["count"] > 100
    assert closed["name"] == "agent, 4 clients"
    assert made("chat", arrivals={"kind": "trace", "offsets_s": [0, 1.5]}, duration_s=None)["arrivals"] == {
        "kind": "trace",
        "offsets_s": [0, 1.5],
    }
    assert (made("agent")["name"], made("chat")["gpus"]) == ("agent, 2 workflows/s", 2)
    with pytest.raises(engine.PlanError, match="did you mean metrics"):
        made("chat", metrisc={})
    with pytest.raises(WorkloadError, match="no workload 'caht'"):
        made("caht")
    with pytest.raises(WorkloadError, match="needs the number"):
        made("chat", arrivals={"kind": "closed", "clients": 4}, duration_s=None)


@pytest.mark.parametrize(
    ("size", "special", "found"),
    [
        (32_000, SPECIAL, (3, 31_000)),
        (1000, (), (0, 1000)),
        (152_000, range(151_643, 151_700), (0, 151_643)),
        (131_072, range(1000), (1000, 131_072)),
        (1000, (5, 2000, 10**9), (6, 1000)),
    ],
)
def test_vocabulary_is_the_longest_run_without_special_ids(
    size: int, special: tuple[int, ...], found: tuple[int, int]
) -> None:
    assert Facts(4096, size, None, frozenset(special)).vocabulary() == found


def test_vocabulary_of_which_too_little_is_left() -> None:
    with pytest.raises(WorkloadError, match="bring your own"):
        Facts(4096, 1000, None, frozenset(range(0, 1000, 100))).vocabulary()
    with pytest.raises(WorkloadError, match="vocab_size of the model is not known"):
        Facts.of({"max_model_len": 4096})


def test_facts_from_the_files_of_a_model() -> None:
    config = {
        "text_config": {"vocab_size": 5000, "max_position_embeddings": 8192, "eos_token_id": [7, 9]},
        "pad_token_id": 3,
    }
    tokenizer = {"added_tokens_decoder": {"4990": {"content": "<image>"}}}
    assert from_files(config, tokenizer, gpus=1) == Facts(8192, 5000, 1, frozenset({3, 7, 9, 4990}))
    assert from_files(config, {"added_tokens": [{"id": 11}]}, max_model_len=2048).special_token_ids == {3, 7, 9, 11}


def test_smoke_fits_the_smallest_models() -> None:
    assert fit(PRESETS["smoke"], Facts(512, 2000)).notices == ()
