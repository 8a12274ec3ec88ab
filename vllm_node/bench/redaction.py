"""Takes what identifies a site out of a document, and leaves pseudonyms that are the same throughout the document.

A pseudonym is an HMAC under a key that is made for the document and never kept, so that nobody can try out names
against it later. What is not certain to be harmless is replaced: better one word too many than one too few.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

_LENGTH = 10
# Keys whose value is a name that may stand in any text besides.
_NAMED = {
    "host": "host",
    "hosts": "host",
    "hostname": "host",
    "nodename": "host",
    "node": "host",
    "fqdn": "host",
    "domain": "host",
    "server_name": "host",
    "user": "user",
    "username": "user",
    "login": "user",
    "owner": "user",
    "remote_user": "user",
    "asset_tag": "id",
    "machine_id": "id",
}
_SERIAL = re.compile(r"serial|guid")
_PLACE = re.compile(r"(^|_)(path|folder|file|dir|directory|home|root|mount|model)$")
# Words of the run document itself. A host of that name does not change the document's form, and hides behind it.
_OWN_KEYS = re.compile(
    "schema|kind|id|host|instance|model|workload|slo|verdict|steps|repeats|client|server|figures|window|timeline|"
    "refused|unobservable|workflow|correctness|provenance|definitions|labels|toolkit|node|images|vllm|kv_cache|seed|"
    "selfcheck|metrics_schema|gpus?|uuid|name|value|how|what|why|check|seen|load|plan|target|api"
)
_LOOPBACK_NAMES = frozenset({"localhost", "localhost.localdomain"})
_BARE = r"(?<![A-Za-z0-9])"
_END = r"(?![A-Za-z0-9])"
_HEX = "[0-9A-Fa-f]"
_URL = re.compile(r"\b([A-Za-z][A-Za-z0-9+.-]*)://(?:([^\s/@\"'<>]*)@)?(\[[0-9A-Fa-f:.%]+\]|[^\s/:?#\"'<>,;)\]}]+)")
_QUERY = re.compile(r"(\b[A-Za-z][A-Za-z0-9+.-]*://[^\s?#\"'<>]*)\?[^\s\"'<>]*")
_IMAGE = re.compile(rf"{_BARE}((?:[\w-]+\.)+[\w-]+(?::\d+)?|[\w-]+:\d+|localhost)(?=/[\w./-]+(?:@sha256:|:[\w.-]+))")
_LOGIN = re.compile(r"(?<![\w/])[\w.+-]+@(?!sha\d+:)[\w.-]*\w")
_UUID = re.compile(rf"{_BARE}{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}{_END}")
_MACHINE = re.compile(rf"(?<![A-Za-z0-9:]){_HEX}{{32}}{_END}")
_MAC = re.compile(rf"{_BARE}{_HEX}{{2}}(?:([:-]){_HEX}{{2}})(?:\1{_HEX}{{2}}){{4,18}}{_END}")
_GUID = re.compile(rf"{_BARE}(?:0x{_HEX}{{12,16}}|{_HEX}{{4}}(?::{_HEX}{{4}}){{3}}){_END}")
_V6 = re.compile(rf"(?<![\w:.])(?:{_HEX}{{0,4}}:){{2,7}}(?:{_HEX}{{1,4}}|\d+\.\d+\.\d+\.\d+)?(?:%\w+)?(?![\w:])")
_V4 = re.compile(r"(?<![\w.-])(?:\d{1,3}\.){3}\d{1,3}(?![\w-]|\.\d)")
_PATH = re.compile(r"(?:(?<![\w/.])|(?<=file://))(?:~[\w-]*)?/[\w.@%+~-][\w.@%+~/:=,-]*")
_DOMAIN = re.compile(rf"{_BARE}(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?\.)+[A-Za-z]{{2,}}(?![\w.-]*\w*[_(])(?!\w)")
# Addresses of APIs look like paths and name nothing of the site.
_API_PATH = re.compile(
    r"/(v\d+(/(models|completions|chat/completions|embeddings|responses))?|api/v1/\w+|metrics|health|version|load|ping|"
    r"tokenize|detokenize|-/\w+)"
)
# Ends of names that have dots in them and are no hosts.
_ENDINGS = re.compile(
    "jsonl?|ya?ml|toml|txt|md|html|csv|log|py|js|css|so|gz|tar|xz|zip|bin|safetensors|gguf|model|index|prom|conf|cfg|"
    "service|target|container|timer|socket|mount|path|slice|scope|trace|svg|png|sh|pem|crt|key|lock"
)


class Redactor:
    """Replaces identifiers; one object gives one pseudonym to one identifier, in as many documents as it is given."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        """`known`: names to be replaced wherever they stand, such as hosts and users of the inventory."""
        self._key = secrets.token_bytes(32)
        self._literals: dict[str, str] = {}
        for name in known:
            self._learn(name, "name")

    def redact(self, document: Any) -> Any:
        """A copy of a JSON document without identifiers; numbers and the document's form stay."""
        for kind, text in _named(document):
            self._learn(text, kind)
        ordered = sorted(self._literals, key=len, reverse=True)
        literals = (
            re.compile(f"{_BARE}(?:{'|'.join(map(re.escape, ordered))}){_END}", re.IGNORECASE) if ordered else None
        )
        return self._walk(document, literals, "")

    def _learn(self, text: str, kind: str) -> None:
        """Take note of a name that is to go wherever it stands; a host's short name as well as its long one."""
        text = text.strip().strip("[]")
        if len(text) < 2 or text.lower() in _LOOPBACK_NAMES or _harmless_address(text) or text in ("/", "~"):
            return
        self._literals.setdefault(text.lower(), kind)
        short = text.partition(".")[0]
        if kind in ("host", "name") and short != text and len(short) > 1 and not short.isdigit():
            self._literals.setdefault(short.lower(), kind)

    def _alias(self, kind: str, text: str) -> str:
        mac = hmac.new(self._key, text.lower().encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()
        return f"{kind}-{mac[:_LENGTH]}"

    def _walk(self, value: Any, literals: re.Pattern[str] | None, key: str) -> Any:
        if isinstance(value, Mapping):
            return {
                self._key_name(str(name), literals): self._walk(one, literals, str(name)) for name, one in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._walk(one, literals, key) for one in value]
        if isinstance(value, str):
            return self._text(value, literals)
        if _SERIAL.search(key.lower()) and isinstance(value, int) and not isinstance(value, bool):
            return self._alias("id", str(value))
        return value

    def _key_name(self, name: str, literals: re.Pattern[str] | None) -> str:
        return name if _OWN_KEYS.fullmatch(name.lower()) else self._text(name, literals)

    def _text(self, text: str, literals: re.Pattern[str] | None) -> str:
        if literals is not None:
            text = literals.sub(lambda match: self._alias(self._literals[match[0].lower()], match[0]), text)
        text = _QUERY.sub(r"\1", text)
        text = _URL.sub(self._url, text)
        for pattern, kind in ((_LOGIN, "user"), (_UUID, "uuid"), (_MAC, "mac"), (_GUID, "id"), (_MACHINE, "id")):
            text = pattern.sub(self._with(kind), text)
        for pattern in (_V6, _V4):
            text = pattern.sub(self._address, text)
        text = _IMAGE.sub(lambda match: self._host(match[1]), text)
        text = _PATH.sub(lambda match: match[0] if _is_api(match[0]) else self._alias("path", match[0]), text)
        return _DOMAIN.sub(lambda match: match[0] if _no_host(match[0]) else self._alias("host", match[0]), text)

    def _with(self, kind: str) -> Callable[[re.Match[str]], str]:
        return lambda match: self._alias(kind, match[0])

    def _url(self, match: re.Match[str]) -> str:
        return f"{match[1]}://{self._host(match[3])}"

    def _host(self, host: str) -> str:
        name, colon, port = host.rpartition(":") if re.search(r"\w:\d+$", host) else (host, "", "")
        if name.lower() in _LOOPBACK_NAMES or _harmless_address(name) or re.fullmatch(r"[a-z]+-[0-9a-f]{10}", name):
            return host
        return self._alias("host", name.strip("[]")) + colon + port

    def _address(self, match: re.Match[str]) -> str:
        try:
            ipaddress.ip_address(match[0].partition("%")[0])
        except ValueError:
            return match[0]
        return match[0] if _harmless_address(match[0]) else self._alias("address", match[0])


def redact(document: Any, known: Iterable[str] = ()) -> Any:
    """A copy of a run document without identifiers; see `Redactor`."""
    return Redactor(known).redact(document)


def _named(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """(kind, text) of every value whose key says that it identifies something."""
    if isinstance(value, Mapping):
        for name, one in value.items():
            yield from _named(one, str(name).lower())
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _named(one, key)
    elif isinstance(value, str):
        kind = _NAMED.get(key) or ("id" if _SERIAL.search(key) else None)
        if kind:
            yield kind, value
        # Where a path has a space in it, only its key tells where it ends.
        if _PLACE.search(key) and value.startswith("/") and not _PATH.fullmatch(value):
            yield "path", value
        for user in re.findall(r"/home/([\w.-]+)|~([\w-]+)/|://([\w.-]+)(?::[^@\s/]*)?@", value):
            yield from (("user", name) for name in user if name)
        for match in _URL.finditer(value):
            yield "host", match[3]


def _harmless_address(text: str) -> bool:
    """Loopback and "any" are the same everywhere; 0.x is the version of something."""
    try:
        address = ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified or text.startswith("0.")


def _is_api(path: str) -> bool:
    return _API_PATH.fullmatch(path.rstrip(".,:")) is not None


def _no_host(text: str) -> bool:
    """Whether a word with dots is the name of a file or a unit, or a pseudonym."""
    return _ENDINGS.fullmatch(text.rpartition(".")[2].lower()) is not None
