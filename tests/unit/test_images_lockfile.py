"""The image lock as a file: only what changed is another text than before, whoever wrote it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_node.images.lockfile import KEYS, PLACE, Entry, LockError, LockFile, find
from vllm_node.inputs import check, load_specs
from vllm_node.paths import project_root

OLD, NEW, CHILD = ("sha256:" + digit * 64 for digit in "0ab")
VALUES: dict[str, str | int] = {"digest": NEW, "platform_digest": CHILD, "size_bytes": 8123456789}
LOCK = f"""\
---
# Why this site has these.
images_lock:
  vllm:
    # Read where it was released.
    repository: registry.site.example:5000/vllm/vllm-openai
    tag: v0.33.0   # newest
    digest: {OLD}  # of the index
    architecture: amd64
    note: keep   me
  # What follows is for graphs.

  grafana:
    repository: registry.site.example:5000/grafana/grafana
    tag: "12.40"
    architecture: amd64
    digest: '{OLD}'
  # The end.
other: [1,   2]
"""


def lock(text: str) -> LockFile:
    return LockFile(Path("x/images.lock.yml"), text.encode())


def changed(text: str, **changes: dict[str, str | int]) -> str:
    return lock(text).with_values(changes).decode()


def test_values_are_replaced_and_keys_added_where_they_belong() -> None:
    assert changed(LOCK, vllm=VALUES, grafana=VALUES) == LOCK.replace(
        f"    digest: {OLD}  # of the index\n    architecture: amd64\n",
        f"    digest: {NEW}  # of the index\n    platform_digest: {CHILD}\n    architecture: amd64\n"
        "    size_bytes: 8123456789\n",
    ).replace(
        f"    architecture: amd64\n    digest: '{OLD}'\n",
        f"    architecture: amd64\n    size_bytes: 8123456789\n    digest: '{NEW}'\n    platform_digest: {CHILD}\n",
    )


def test_only_what_is_named_is_touched() -> None:
    assert changed(LOCK, grafana={"digest": NEW}) == LOCK.replace(f"'{OLD}'", f"'{NEW}'")
    assert changed(LOCK) == LOCK
    assert changed(LOCK, vllm={"digest": OLD}) == LOCK


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("images_lock: {a: {repository: r, digest: x}}", 'images_lock: {a: {repository: r, digest: y, platform_digest: "p"}}'),
        ("images_lock: {a: {}}", 'images_lock: {a: {digest: "y", platform_digest: "p"}}'),
        ("images_lock: {a: {architecture: z}}", 'images_lock: {a: {digest: "y", platform_digest: "p", architecture: z}}'),
        ("images_lock:\n  a:\n    architecture: z", "images_lock:\n  a:\n    digest: y\n    platform_digest: p\n    architecture: z"),
        ("images_lock:\n  a:\n    digest:\n", "images_lock:\n  a:\n    digest: y\n    platform_digest: p\n"),
        ("images_lock:\n  a:\n    digest: # none\n", "images_lock:\n  a:\n    digest: y # none\n    platform_digest: p\n"),
        ("images_lock:\r\n  a:\r\n    tag: t\r\n", "images_lock:\r\n  a:\r\n    tag: t\r\n    digest: y\r\n    platform_digest: p\r\n"),
        ("images_lock:\n  a:\n    tag: t", "images_lock:\n  a:\n    tag: t\n    digest: y\n    platform_digest: p"),
        ("images_lock:\n  é: {}\n  a:\n    'digest': \"x\" # ü\n", "images_lock:\n  é: {}\n  a:\n    'digest': \"y\" # ü\n    platform_digest: p\n"),
        ("images_lock:\n  a: !!map\n    digest: x\n", "images_lock:\n  a: !!map\n    digest: y\n    platform_digest: p\n"),
    ],
)
def test_every_way_to_write_an_entry(before: str, after: str) -> None:
    assert changed(before, a={"digest": "y", "platform_digest": "p"}) == after


@pytest.mark.parametrize(
    "text",
    [
        "images_lock:\n  a: &all\n    digest: x\n  b: *all\n",
        "images_lock:\n  a:\n    tag: &x y\n    digest: *x\n",
        "images_lock:\n  a:\n    digest: &x y\n    tag: *x\n",
    ],
)
def test_an_alias_is_refused_rather_than_broken(text: str) -> None:
    with pytest.raises(LockError, match="write out a"):
        changed(text, a={"digest": "z"})


def test_a_value_that_is_right_already_stays_as_it_is_written() -> None:
    text = "images_lock:\n  a:\n    tag: &x y\n    digest: *x\n    size_bytes: 1_000\n"
    assert changed(text, a={"digest": "y", "size_bytes": 1000}) == text


def test_a_merged_key_is_read_and_stays_with_the_others() -> None:
    text = "images_lock:\n  a: &all {architecture: amd64, digest: x}\n  b:\n    <<: *all\n    tag: t\n"
    assert lock(text).entries[1] == Entry("b", tag="t", digest="x", architecture="amd64")
    assert changed(text, b={"digest": "z"}) == text + "    digest: z\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no mapping images_lock"),
        ("a: 1", "no mapping images_lock"),
        ("images_lock: [a]", "no mapping images_lock"),
        ("images_lock:\n  a: [", "cannot be read as YAML"),
        ("images_lock:\n  a: text\n", "a is no mapping"),
        ("images_lock:\n  a: {}\n  a: {}\n", "images_lock has a twice"),
        ("images_lock:\n  a: {tag: 1, tag: 2}\n", "a has tag twice"),
        ("images_lock:\n  1: {}\n", "put it in quotes"),
        ("images_lock:\n  on: {}\n", "put it in quotes"),
        ("$ANSIBLE_VAULT;1.1;AES256\n6161\n", "no mapping images_lock"),
    ],
)
def test_what_is_no_lock_is_refused_by_name(text: str, told: str) -> None:
    with pytest.raises(LockError, match=r"x/images.lock.yml") as caught:
        lock(text)
    assert told in str(caught.value)


def test_a_file_that_is_no_text_or_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LockError, match="cannot be read as YAML"):
        LockFile(tmp_path, b"\xff\xfe\xff")
    with pytest.raises(LockError, match="No such file"):
        LockFile.read(tmp_path / "none")


def test_a_tag_is_what_is_written_also_where_yaml_sees_a_number() -> None:
    entries = lock("images_lock:\n  a: {tag: 12.40}\n  b: {tag: 0123}\n  c: {tag: 2026-01-02}\n  d: {tag: yes}\n").entries
    assert [entry.tag for entry in entries] == ["12.40", "0123", "2026-01-02", "yes"]


def test_fields_of_another_form_are_as_good_as_none() -> None:
    entry = lock("images_lock: {a: {digest: '', architecture: null, size_bytes: '12', source: s}}").entries[0]
    assert entry == Entry("a", source="s")
    assert entry.origin == "s"


def test_a_write_goes_all_at_once_and_keeps_mode_and_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real.yml", tmp_path / "link.yml"
    real.write_text(LOCK)
    real.chmod(0o640)
    link.symlink_to(real)
    inode = real.stat().st_ino
    file = LockFile.read(link)
    assert not file.write(file.with_values({}))
    assert real.stat().st_ino == inode
    assert file.write(file.with_values({"vllm": VALUES}))
    assert link.is_symlink()
    assert (real.stat().st_mode & 0o777, real.stat().st_ino == inode) == (0o640, False)
    assert LockFile.read(link).entries[0].size_bytes == VALUES["size_bytes"]
    assert sorted(tmp_path.iterdir()) == [link, real]


def test_a_file_that_somebody_changed_meanwhile_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "lock.yml"
    path.write_text(LOCK)
    file = LockFile.read(path)
    path.write_text(LOCK + "# more\n")
    with pytest.raises(LockError, match="changed meanwhile"):
        file.write(file.with_values({"vllm": VALUES}))
    assert path.read_text() == LOCK + "# more\n"
    assert list(tmp_path.iterdir()) == [path]


def test_the_lock_is_found_beside_the_hosts(tmp_path: Path) -> None:
    for name in ("a", "b", "none"):
        (tmp_path / name / "group_vars/all").mkdir(parents=True)
        (tmp_path / name / "hosts.yml").touch()
    places = {name: tmp_path / name / "group_vars/all/images.lock.yml" for name in ("a", "b")}
    for place in places.values():
        place.touch()
    assert find([str(tmp_path / "a")]) == places["a"]
    assert find([str(tmp_path / "none"), str(tmp_path / "a/hosts.yml"), str(tmp_path / "a")]) == places["a"]
    with pytest.raises(LockError, match="several inventories"):
        find([str(tmp_path / "a"), str(tmp_path / "b")])
    with pytest.raises(LockError, match=r"none/group_vars/all/images.lock.yml; name the image lock with --lock"):
        find([str(tmp_path / "none")])


def test_nodes_take_a_lock_with_all_keys_and_the_site_s_own() -> None:
    entry = {**dict.fromkeys(KEYS, "x"), "size_bytes": 1, "own": {"a": [1]}}
    specs = {"images": load_specs(project_root() / "roles")["images"]}
    assert check({"images_lock": {"it": entry}}, specs) == []
    assert check({"images_lock": ["it"]}, specs) != []


def test_the_example_s_lock_can_be_locked_and_names_no_registry() -> None:
    file = LockFile.read(project_root() / "inventories/example" / PLACE)
    assert all(entry.source and entry.tag and entry.architecture for entry in file.entries)
    hosts = {(entry.source or "").split("/")[0] for entry in file.entries if "." in (entry.source or "").split("/")[0]}
    assert hosts == {"nvidia-registry.example"}
    values = {entry.name: VALUES for entry in file.entries}
    assert yaml.safe_load(file.with_values(values))["images_lock"]["grafana"]["size_bytes"] == VALUES["size_bytes"]


# With an underscore: a name such as `on` is no text to YAML, and is refused.
NAMES = st.from_regex(r"[a-z][a-z0-9]{0,4}_[a-z0-9]{1,4}", fullmatch=True)
DIGESTS = st.from_regex(r"sha256:[0-9a-f]{64}", fullmatch=True)
COMMENTS = st.sampled_from(["", "  # said", " # {not} 'a: map'", "   "])
# A key that the toolkit does not know has to survive, whatever its value looks like.
OTHERS = st.sampled_from(["[1,  2]", "{a:   b}", "'it''s: #1'", '"\\u00e9: \\""', "null", "é # ü", "|\n          text: 1\n\n          more"])


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Locks as people write them: in any order of keys, with comments, blank lines, quotes, and unknown keys."""
    lines = [*draw(st.sampled_from([[], ["---"], ["# first", "", "---"]])), "images_lock:" + draw(COMMENTS)]
    indent = " " * draw(st.integers(1, 4))
    for name in draw(st.lists(NAMES, min_size=1, max_size=3, unique=True)):
        lines.append(f"{indent}{name}:{draw(COMMENTS)}")
        keys = draw(st.permutations(["repository", "digest", "architecture", "platform_digest", "size_bytes", "tag"]))
        for key in keys[: draw(st.integers(1, 6))]:
            value = str(draw(st.integers(0, 10**12))) if key == "size_bytes" else draw(DIGESTS)
            quote = draw(st.sampled_from(["", "'", '"'])) if key != "size_bytes" else ""
            lines.append(f"{indent * 2}{key}: {quote}{value}{quote}{draw(COMMENTS)}")
            lines += draw(st.sampled_from([[], [""], [f"{indent}# between"], ["# left", ""]]))
        lines += [f"{indent * 2}own: {other}" for other in draw(st.lists(OTHERS, max_size=1))]
    end = draw(st.sampled_from(["\n", "", "\n\n# last", "\nanother: x\n"]))
    return draw(st.sampled_from(["\n", "\r\n"])).join(("\n".join(lines) + end).split("\n"))


@settings(max_examples=50, deadline=None)  # each parses a lock seven times
@given(st.data())
def test_what_is_written_is_read_again_and_nothing_else_has_changed(data: st.DataObject) -> None:
    text = data.draw(texts())
    names = [entry.name for entry in lock(text).entries]
    values = st.fixed_dictionaries(
        {"digest": DIGESTS, "platform_digest": DIGESTS, "size_bytes": st.integers(0, 10**13)}
    )
    wanted: dict[str, dict[str, Any]] = data.draw(st.dictionaries(st.sampled_from(names), values))
    once = lock(text).with_values(wanted).decode()
    expected = yaml.safe_load(text)
    for name, told in wanted.items():
        expected["images_lock"][name].update(told)
    assert yaml.safe_load(once) == expected
    assert lock(once).with_values(wanted).decode() == once
    kept = [line for line in text.splitlines() if not any(f"{key}:" in line for key in KEYS)]
    # Line by line, and in the same order: comments, blank lines and keys of others are where they were.
    remaining = iter(once.splitlines())
    assert all(line in remaining for line in kept)
    comments = [line.partition("  # ")[2] for line in text.splitlines() if "  # " in line]
    assert all(once.count(comment) >= comments.count(comment) for comment in comments)
