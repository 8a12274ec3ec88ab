"""The help page of vLLM as a table of flags, and the cache of such tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.role_code import ROOT
from vllm_node.serving.flags import cache
from vllm_node.serving.flags.page import Flag, FlagTable, PageError, parse

PAGE = (ROOT / "tests/unit/data/vllm-help.txt").read_text()
TABLE = parse(PAGE, "0.32.0")
DIGEST = "sha256:" + "ab" * 32


def flag(name: str) -> Flag:
    found = TABLE.find(name)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("max-num-seqs", "value"),
        ("enable-chunked-prefill", "pair"),
        ("headless", "switch"),
        ("config", "value"),  # its help begins on the same line
        ("grpc", "switch"),  # and so does this one's, which has no value
    ],
)
def test_a_flag_is_a_switch_a_pair_or_takes_a_value(name: str, kind: str) -> None:
    assert flag(name).kind == kind


def test_choices_are_closed_or_suggestions() -> None:
    assert flag("dtype").choices == ("auto", "bfloat16", "float", "float16", "float32", "half")
    assert not flag("dtype").open_choices
    assert flag("config-format").choices == ("auto", "hf", "mistral")
    assert flag("config-format").open_choices
    assert flag("tool-call-parser").open_choices
    assert flag("collect-detailed-traces").choices == ("all", "model", "worker", "None")


def test_how_many_values_it_takes() -> None:
    assert flag("served-model-name").several
    assert flag("collect-detailed-traces").several
    assert not flag("max-num-seqs").several
    assert flag("hf-token").optional
    assert not flag("config-format").optional


def test_defaults_are_told_whatever_stands_in_them() -> None:
    assert flag("port").default == "8000"
    assert flag("max-num-seqs").default == "None"
    assert flag("compilation-config").default == "{'mode': None, 'sizes': [1, (2, 3)], 'backend': ''}"
    assert flag("log-level").default is None


def test_numbers_for_people_are_marked() -> None:
    assert flag("max-num-batched-tokens").human
    assert not flag("max-num-seqs").human


def test_other_names_are_found_and_short_ones_are_none_of_them() -> None:
    assert flag("device-memory-utilization").name == "gpu-memory-utilization"
    assert flag("tensor-parallel-size").short == ("tp",)
    assert TABLE.find("tp") is None
    assert TABLE.find("no-enable-chunked-prefill") is None
    assert flag("enable-expert-parallel").short == ("ep",)


def test_sections_are_kept() -> None:
    assert flag("headless").section == "options"
    assert flag("max-num-seqs").section == "SchedulerConfig"


def test_what_is_no_flag_is_none() -> None:
    assert {"help", "json-arg", "model_tag"}.isdisjoint(TABLE.names)


def test_the_newer_form_of_argparse_is_read_too() -> None:
    page = PAGE.replace("--nnodes NNODES, -n NNODES", "\x1b[1m--nnodes\x1b[0m, -n NNODES")
    assert page != PAGE
    assert parse(page, "0.32.0") == TABLE


@pytest.mark.parametrize("text", ["", "usage: vllm\n\n  --port PORT  Where. (default: 8000)\n", "Traceback (most recent call"])
def test_what_is_not_the_whole_page_is_refused(text: str) -> None:
    with pytest.raises(PageError, match="no help page of vllm serve"):
        parse(text)


def test_a_table_is_kept_by_digest(tmp_path: Path) -> None:
    assert cache.load(DIGEST, tmp_path) is None
    path = cache.store(DIGEST, TABLE, tmp_path)
    assert cache.load(DIGEST, tmp_path) == TABLE
    assert cache.load("sha256:" + "cd" * 32, tmp_path) is None
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format": 0, "version": null, "flags": []}', '{"format": 1, "version": null, "flags": [{"x": 1}]}']
)
def test_a_damaged_table_or_one_of_another_format_is_not_there(tmp_path: Path, text: str) -> None:
    cache.store(DIGEST, TABLE, tmp_path).write_text(text)
    assert cache.load(DIGEST, tmp_path) is None


def test_a_name_that_is_no_digest_leads_nowhere(tmp_path: Path) -> None:
    assert cache.load("../../etc/passwd", tmp_path) is None
    with pytest.raises(ValueError, match="no digest"):
        cache.store("latest", TABLE, tmp_path)


def test_a_write_that_fails_leaves_the_old_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.store(DIGEST, TABLE, tmp_path)

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        cache.store(DIGEST, FlagTable({}, "9"), tmp_path)
    assert cache.load(DIGEST, tmp_path) == TABLE
    assert len(list(tmp_path.iterdir())) == 1


def test_the_built_in_table_agrees_with_the_page() -> None:
    known = cache.built_in()
    assert known.version == "0.32.0"
    for name, told in TABLE.flags.items():
        there = known.find(name)
        assert there is not None, name
        assert (there.kind, there.aliases, there.short) == (told.kind, told.aliases, told.short)
        assert (there.several, there.optional, there.human) == (told.several, told.optional, told.human)
