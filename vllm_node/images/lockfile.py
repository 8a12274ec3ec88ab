"""The image lock as a file: read, and written so that only what changed is another text than before.

A site comments its lock, and reads what has changed in a diff. So the file is not written anew from its data: values
are replaced, and keys added, at the places that the YAML parser tells, which is the one that Ansible reads it with.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

VARIABLE = "images_lock"
PLACE = Path("group_vars/all/images.lock.yml")
# In this order they stand in an entry; a key that is added comes after those that it follows here.
KEYS = ("repository", "source", "tag", "digest", "platform_digest", "architecture", "size_bytes")
_PLAIN = re.compile(r"\d+|[A-Za-z][\w./-]*(:[\w./-]+)*")


class LockError(Exception):
    """The lock cannot be read or written; the text names the file, what was seen and the next step."""


@dataclass(frozen=True)
class Entry:
    """One image of the lock, as far as it is told and has the form it should; what is not is None.

    repository: in the site's registry; source: where it comes from, when that is another one; size_bytes: what a node
    of `architecture` fetches for it.
    """

    name: str
    repository: str | None = None
    source: str | None = None
    tag: str | None = None
    digest: str | None = None
    platform_digest: str | None = None
    architecture: str | None = None
    size_bytes: int | None = None

    @property
    def origin(self) -> str | None:
        """Repository that the image is taken from on the connected side."""
        return self.source or self.repository


class LockFile:
    """A lock as it was read. `entries` in the order of the file."""

    def __init__(self, path: Path, content: bytes) -> None:
        """Raises LockError when `content` is no lock."""
        self.path, self._content = path, content
        try:
            self._text = content.decode()
            node = yaml.compose(self._text, Loader=yaml.SafeLoader)
            data = yaml.safe_load(self._text)
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise LockError(f"{path} cannot be read as YAML: {error}") from error
        images = data.get(VARIABLE) if isinstance(data, dict) else None
        if not isinstance(images, dict) or not isinstance(node, yaml.MappingNode):
            raise LockError(f"{path} has no mapping {VARIABLE}: it holds {{name: {{repository, tag, architecture}}}}")
        self._data: dict[str, Any] = data
        self._images = _pairs(node, path, "the file")[VARIABLE][1]
        _no_key_twice(self._images, path)
        nodes = _pairs(self._images, path, VARIABLE)
        if not all(isinstance(name, str) for name in images):
            raise LockError(f"{path}: {VARIABLE} has a name that is no text: put it in quotes")
        self.entries = tuple(_entry(path, name, said, nodes.get(name)) for name, said in images.items())

    @classmethod
    def read(cls, path: Path) -> LockFile:
        """The lock in a file. Raises LockError."""
        try:
            return cls(path, path.read_bytes())
        except OSError as error:
            raise LockError(f"{path} cannot be read: {error.strerror}") from error

    def with_values(self, changes: Mapping[str, Mapping[str, str | int]]) -> bytes:
        """The file with these values, `{name: {key: value}}`; the very same bytes when they are there already.

        Raises:
            LockError: the place of a value is one that cannot be changed by itself, such as a YAML alias.
        """
        edits: list[tuple[int, int, str]] = []
        wanted = {**self._data, VARIABLE: {name: dict(said) for name, said in self._data[VARIABLE].items()}}
        nodes = _pairs(self._images, self.path, VARIABLE)
        for name, values in changes.items():
            told = wanted[VARIABLE][name]
            new = {key: value for key, value in values.items() if told.get(key) != value}
            told.update(new)
            edits += self._edits(nodes[name][1], new, name)
        # From the end: places before an edit are then still where the parser saw them.
        text = self._text
        for start, end, replacement in sorted(edits, key=lambda edit: edit[:2], reverse=True):
            text = text[:start] + replacement + text[end:]
        if edits and _loaded(text) != wanted:
            raise LockError(
                f"{self.path} is written in a way that its values cannot be changed one by one (aliases, anchors, "
                f"merge keys): write out {', '.join(sorted(changes))}"
            )
        return text.encode()

    def write(self, content: bytes) -> bool:
        """Put `content` in the file's place at once; False when it holds that already.

        Raises:
            LockError: the file has been changed since it was read, or cannot be written.
        """
        if content == self._content:
            return False
        target = self.path.resolve()  # a link stays one
        partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        try:
            if target.read_bytes() != self._content:
                raise LockError(f"{self.path} was changed meanwhile; nothing is written. Run it again")
            with partial.open("xb") as file:
                os.fchmod(file.fileno(), target.stat().st_mode & 0o7777)
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(target)
        except OSError as error:
            raise LockError(f"{self.path} cannot be written: {error.strerror}") from error
        finally:
            partial.unlink(missing_ok=True)
        return True

    def _edits(self, node: yaml.Node, new: Mapping[str, str | int], name: str) -> Iterator[tuple[int, int, str]]:
        if not new:
            return
        if not isinstance(node, yaml.MappingNode):
            raise LockError(f"{self.path}: {name} is no mapping")
        own = _pairs(node, self.path, name)
        for key, value in new.items():
            if key in own:
                yield self._replaced(*own[key], value)
        added = [key for key in KEYS if key in new and key not in own]
        groups: dict[str | None, list[str]] = {}
        for key in added:
            before = [known for known in KEYS[: KEYS.index(key)] if known in own]
            groups.setdefault(before[-1] if before else None, []).append(key)
        for after, keys in groups.items():
            yield self._added(node, own, after, {key: new[key] for key in keys})

    def _replaced(self, _key: yaml.Node, value: yaml.Node, new: str | int) -> tuple[int, int, str]:
        start, end = value.start_mark.index, value.end_mark.index
        style = value.style if isinstance(value, yaml.ScalarNode) else None
        text = f"{style}{new}{style}" if style in ("'", '"') and isinstance(new, str) else _scalar(new)
        return start, end, text if start != end else f" {text}"

    def _added(
        self,
        node: yaml.MappingNode,
        own: Mapping[str, tuple[yaml.Node, yaml.Node]],
        after: str | None,
        values: Mapping[str, str | int],
    ) -> tuple[int, int, str]:
        if node.flow_style:
            text = "".join(f", {key}: {json.dumps(value)}" for key, value in values.items())
            if after is None:
                return node.start_mark.index + 1, node.start_mark.index + 1, text[2:] + (", " if own else "")
            end = own[after][1].end_mark.index
            return end, end, text
        first = node.value[0][0].start_mark  # the mapping itself may begin with a tag or an anchor, a line earlier
        indent = " " * first.column
        newline = "\r\n" if "\r\n" in self._text else "\n"
        lines = [f"{key}: {_scalar(value)}" for key, value in values.items()]
        if after is None:
            return first.index, first.index, "".join(f"{line}{newline}{indent}" for line in lines)
        # After the line's own comment, before comments of what follows.
        end = self._text.find("\n", own[after][1].end_mark.index)
        if end < 0:
            end = len(self._text)
            return end, end, "".join(f"{newline}{indent}{line}" for line in lines)
        return end + 1, end + 1, "".join(f"{indent}{line}{newline}" for line in lines)


def find(inventories: Sequence[str]) -> Path:
    """The lock of an inventory: beside its hosts, where Ansible reads it.

    Raises:
        LockError: none of the inventories has one, or several have.
    """
    folders = [Path(one) if Path(one).is_dir() else Path(one).parent for one in inventories]
    places = list(dict.fromkeys(folder / PLACE for folder in folders))
    found = [place for place in places if place.is_file()]
    if len(found) > 1:
        told = ", ".join(map(str, found))
        raise LockError(f"several inventories have an image lock ({told}); choose with --lock FILE")
    if not found:
        raise LockError(f"there is no {' and no '.join(map(str, places))}; name the image lock with --lock FILE")
    return found[0]


def _pairs(node: yaml.Node, path: Path, where: str) -> dict[str, tuple[yaml.Node, yaml.Node]]:
    """Keys of a mapping with the nodes of key and value; none for what is no mapping."""
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    found: dict[str, tuple[yaml.Node, yaml.Node]] = {}
    for key, value in pairs:
        if key.value in found:
            raise LockError(f"{path}: {where} has {key.value} twice; remove one of them")
        found[str(key.value)] = (key, value)
    return found


def _no_key_twice(images: yaml.Node, path: Path) -> None:
    """A reader takes the last of two, and an edit would go to either."""
    for name, (_key, value) in _pairs(images, path, VARIABLE).items():
        _pairs(value, path, name)


def _entry(path: Path, name: str, said: Any, nodes: tuple[yaml.Node, yaml.Node] | None) -> Entry:
    if not isinstance(said, dict):
        raise LockError(f"{path}: {name} is no mapping; it holds repository, tag and architecture")
    written = {key: one.value for key, (_, one) in (_pairs(nodes[1], path, name) if nodes else {}).items()}
    texts = {}
    for key in KEYS[:-1]:
        value = said.get(key)
        if value not in (None, ""):
            # To YAML the tag 12.40 is the number 12.4: what counts is what is written.
            texts[key] = value if isinstance(value, str) else str(written.get(key, value))
    size = said.get("size_bytes")
    return Entry(name, **texts, size_bytes=size if isinstance(size, int) and not isinstance(size, bool) else None)


def _scalar(value: str | int) -> str:
    return str(value) if _PLAIN.fullmatch(str(value)) else json.dumps(value)


def _loaded(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return None
