"""What skopeo says when it fails: shortened to what counts, and sorted into kinds; and who the registry is.

skopeo has one exit code for everything, so its words are all there is. They come from its Go libraries and registries,
and are the same from 1.9 (tests run it) to 1.18 as far as they are matched here.
"""

from __future__ import annotations

import contextlib
import json
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

Kind = Literal["absent", "refused", "tls", "unreachable", "busy", "stopped", "no skopeo", "other"]
NOT_INSTALLED: Final = "skopeo cannot be started here: install it, `dnf install skopeo` or `apt-get install skopeo`"

_ASK_LIMIT_S = 3
_LOG_LINE = re.compile(r'level=\w+ msg=("(?:[^"\\]|\\.)*")')
# The caller names the image; skopeo's own prefix only says it again.
_PREFIX = re.compile(r'^(?:FATA\[\d+\] )?Error (?:parsing|reading) image(?: name)? "[^"]*": ')
# First match wins: a refused token says "unauthorized" after words about the token's address.
_KINDS: tuple[tuple[Kind, str], ...] = (
    ("busy", r"toomanyrequests|too many requests|status(?: ?code)?:? 429"),
    ("tls", r"x509:|tls: |certificate|server gave HTTP response to HTTPS client"),
    (
        "refused",
        r"unauthorized|authentication required|denied|invalid username/password|forbidden|status(?: ?code)?:? 40[13]",
    ),
    (
        "absent",
        r"manifest unknown|name unknown|repository name not known|blob unknown|not found|status(?: ?code)?:? 404",
    ),
    (
        "unreachable",
        r"no such host|connection refused|connection reset|no route to host|network is unreachable|i/o timeout"
        r"|timeout exceeded|handshake timeout|deadline exceeded|server misbehaving|: EOF|proxyconnect"
        r"|status(?: ?code)?:? 50[234]",
    ),
)


def shortened(stderr: str) -> str:
    """The last complaint in what skopeo wrote to stderr, without time stamps and without the name of the image."""
    told = _LOG_LINE.findall(stderr)
    plain = [line.strip() for line in stderr.splitlines() if line.strip()]
    text = _unquoted(told[-1]) if told else plain[-1] if plain else ""
    return _PREFIX.sub("", text)


def kind_of(said: str) -> Kind:
    """What a complaint means; `other` where nobody has seen it yet."""
    return next((kind for kind, words in _KINDS if re.search(words, said, re.IGNORECASE)), "other")


def product(reference: str, cert_dir: Path | None, tls_verify: bool, kind: Kind) -> str | None:
    """Product and version that a registry tells in its headers, such as `Nexus/3.70.1`; None where it tells nothing.

    Asked only when it did answer skopeo, and only when `reference` names its host.
    """
    host, slash, _path = reference.removeprefix("docker://").partition("/")
    named = reference.startswith("docker://") and slash and ("." in host or ":" in host or host == "localhost")
    if not named or kind in ("tls", "unreachable"):
        return None
    for scheme in ("https",) if tls_verify else ("https", "http"):
        with contextlib.suppress(OSError, ValueError):
            return ", ".join(_headers(f"{scheme}://{host}/v2/", cert_dir, tls_verify)) or None
    return None


def _headers(url: str, cert_dir: Path | None, tls_verify: bool) -> Iterator[str]:
    context = ssl.create_default_context() if tls_verify else ssl._create_unverified_context()  # noqa: S323 - as asked
    for authority in sorted((cert_dir or Path("/nonexistent")).glob("*.crt")):
        context.load_verify_locations(authority)
    try:
        with urllib.request.urlopen(url, timeout=_ASK_LIMIT_S, context=context) as answer:  # noqa: S310 - a registry
            headers = answer.headers
    except urllib.error.HTTPError as error:
        headers = error.headers
    for name in ("Server", "Docker-Distribution-Api-Version"):
        if headers.get(name):
            yield headers[name]


def _unquoted(text: str) -> str:
    """Go's quoting is JSON's for all that registries say."""
    try:
        return str(json.loads(text))
    except ValueError:
        return text.strip('"')
