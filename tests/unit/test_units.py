"""Text for unit files: pinned images, flags, and words that come through systemd and Quadlet unchanged."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_node.units import image_reference, image_references, systemd_word, systemd_words, vllm_args

DIGEST = "sha256:" + "0a" * 32


def entry(**changed: str) -> dict[str, str]:
    return {"repository": "registry:5000/vllm/vllm-openai", "tag": "v1", "digest": DIGEST} | changed


def raw_words(line: str) -> list[str]:
    """Words of a line as systemd splits it: quotes and escapes."""
    words: list[str] = []
    word, quote, at = None, "", 0
    while at < len(line):
        char = line[at]
        if char == "\\" and line[at + 1] == "x":
            word = (word or "") + chr(int(line[at + 2 : at + 4], 16))
            at += 3
        elif char == "\\":
            at += 1
            word = (word or "") + {"n": "\n", "t": "\t", "s": " "}.get(line[at], line[at])
        elif quote:
            if char == quote:
                quote = ""
            else:
                word = (word or "") + char
        elif char in "\"'":
            quote, word = char, word or ""
        elif char.isspace():
            words += [word] if word is not None else []
            word = None
        else:
            word = (word or "") + char
        at += 1
    assert not quote, f"a quote is open at the end of {line!r}"
    words += [word] if word is not None else []
    return words


def expanded(word: str) -> str:
    """What systemd makes of `%%` and `$$`; a lone `%` or `$` would start a specifier or a variable: an error here."""
    lone = re.search(r"(?<!%)(?:%%)*%(?!%)|(?<!\$)(?:\$\$)*\$(?!\$)", word)
    assert not lone, f"{lone and lone[0]!r} would be expanded in {word!r}"
    return word.replace("%%", "%").replace("$$", "$")


def split_like_systemd(line: str) -> list[str]:
    """Words of an `ExecStart=` as systemd hands them on."""
    return [expanded(word) for word in raw_words(line)]


printable = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]))
LOST = ["", ";"]


@given(st.lists(printable.filter(lambda word: word not in LOST)))
def test_words_arrive_as_they_were_written(words: list[str]) -> None:
    assert split_like_systemd(systemd_words(words)) == words


@pytest.mark.parametrize(
    "word",
    [
        "a b",
        "a;",
        ";;",
        "; b",
        'say "hi"',
        "it's",
        "back\\slash",
        "\\",
        "100%",
        "%h",
        "$HOME",
        "${A}",
        "$$",
        "%%",
        '{"a":1}',
        "a\tb",
        "é",
    ],
)
def test_awkward_words_arrive(word: str) -> None:
    assert split_like_systemd(systemd_word(word)) == [word]


@pytest.mark.parametrize("careless", ["50%", "$HOME", "a b", 'a"b', "a\\b"])
def test_the_splitter_would_notice_a_word_that_was_not_quoted(careless: str) -> None:
    try:
        arrived = split_like_systemd(careless)
    except AssertionError:
        return
    assert arrived != [careless]


def test_a_plain_word_stays_plain() -> None:
    assert systemd_word("--max-model-len=2048") == "--max-model-len=2048"


@pytest.mark.parametrize("text", ["a\nExecStartPre=/bin/evil", "a\r"])
def test_a_line_break_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="line break"):
        systemd_word(text)


@pytest.mark.parametrize("word", LOST)
def test_a_word_that_would_be_lost_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match="as a word of its own"):
        systemd_words(["--chat-template", word])


@pytest.mark.parametrize("value", LOST)
def test_a_value_that_would_be_lost_is_joined_to_its_flag(value: str) -> None:
    words = vllm_args({"generation-config": value, "dtype": "auto"})
    assert words == [f"--generation-config={value}", "--dtype", "auto"]
    assert split_like_systemd(systemd_words(words)) == words


def test_values_become_flags_by_their_kind() -> None:
    args = {
        "enforce-eager": True,
        "enable-prefix-caching": False,
        "max-model-len": 2048,
        "gpu-memory-utilization": 0.9,
        "dtype": "bfloat16",
        "lora-modules": ["a=/srv/a", {"name": "b", "path": "/srv/b"}],
        "speculative-config": {"method": "ngram", "n": [1, 2]},
        "host": None,
    }
    assert vllm_args(args) == [
        *("--enforce-eager", "--no-enable-prefix-caching", "--max-model-len", "2048"),
        *("--gpu-memory-utilization", "0.9", "--dtype", "bfloat16"),
        *("--lora-modules", "a=/srv/a", '{"name":"b","path":"/srv/b"}'),
        *("--speculative-config", '{"method":"ngram","n":[1,2]}'),
    ]


def test_a_text_is_one_word_and_not_a_list_of_letters() -> None:
    assert vllm_args({"model": "a b"}) == ["--model", "a b"]


@given(st.dictionaries(printable, st.recursive(st.integers() | st.booleans() | printable, st.lists, max_leaves=5)))
def test_a_dictionary_survives_the_unit_file(value: dict[str, object]) -> None:
    flag, text = split_like_systemd(systemd_words(vllm_args({"x": value})))
    assert flag == "--x"
    assert json.loads(text) == value


def test_an_image_is_named_by_its_digest_only() -> None:
    assert image_reference(entry()) == f"registry:5000/vllm/vllm-openai@{DIGEST}"


@pytest.mark.parametrize(
    "digest", ["", "latest", "sha256:0a", DIGEST.upper(), DIGEST + "0", f" {DIGEST}", "sha512:" + "0" * 64]
)
def test_an_image_without_a_digest_is_refused_by_name(digest: str) -> None:
    with pytest.raises(ValueError, match=r"vllm-openai:v1 is not pinned"):
        image_reference(entry(digest=digest))


def test_references_come_in_the_order_of_their_names() -> None:
    lock = {"vllm": entry(), "grafana": entry(repository="registry:5000/grafana")}
    assert image_references(lock) == [
        {"name": "grafana", "reference": f"registry:5000/grafana@{DIGEST}"},
        {"name": "vllm", "reference": f"registry:5000/vllm/vllm-openai@{DIGEST}"},
    ]
