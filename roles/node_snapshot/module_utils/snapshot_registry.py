"""Whether the internal registry can be reached, trusted and used, and whether it holds the locked images."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import re
import socket
import ssl
import threading
from typing import Any
from urllib.parse import urlencode, urlsplit

ACCEPT = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "ppc64le": "ppc64le", "s390x": "s390x"}
_LARGEST_BODY = 8 << 20
_AT_ONCE = 4


class RefusedError(Exception):
    """The registry wants other credentials."""


class Client:
    """One registry with one set of credentials. Proxies are never used: the registry is inside."""

    def __init__(
        self, address: str, context: ssl.SSLContext, username: str, password: str, limit_s: float
    ) -> None:
        self.address = address
        self._context = context
        self._limit_s = limit_s
        self._basic = None
        if username:
            pair = f"{username}:{password}".encode()
            self._basic = "Basic " + base64.b64encode(pair).decode("ascii")

    def get(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """Answer to one GET: status, headers with names in small letters, body.

        Raises RefusedError, OSError or http.client.HTTPException.
        """
        status, headers, body = self._fetch(self.address, path, self._basic)
        challenge = headers.get("www-authenticate", "")
        if status == 401 and challenge.lower().startswith("bearer "):
            status, headers, body = self._fetch(self.address, path, "Bearer " + self._token(challenge))
        if status in (401, 403):
            raise RefusedError(f"status {status}")
        return status, headers, body

    def _token(self, challenge: str) -> str:
        fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
        place = urlsplit(fields.pop("realm", ""))
        if place.scheme != "https" or not place.netloc:
            # The password would cross the network in the clear.
            raise RefusedError(
                f"its token service {place.geturl() or 'has no address'} is not reached by https"
            )
        query = urlencode({key: value for key, value in fields.items() if key in ("service", "scope")})
        status, _, body = self._fetch(place.netloc, f"{place.path}?{query}", self._basic)
        if status != 200:
            raise RefusedError(f"the token service answers with status {status}")
        try:
            data = json.loads(body.decode("utf-8"))
            return str(data.get("token") or data["access_token"])
        except (ValueError, KeyError, AttributeError):
            raise RefusedError("the token service gives no token") from None

    def _fetch(self, address: str, path: str, authorization: str | None) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPSConnection(address, timeout=self._limit_s, context=self._context)
        try:
            headers = {"Accept": ACCEPT}
            if authorization:
                headers["Authorization"] = authorization
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            body = answer.read(_LARGEST_BODY)
            return answer.status, {key.lower(): value for key, value in answer.getheaders()}, body
        finally:
            connection.close()


def probe(
    wanted: dict[str, Any], images: list[dict[str, Any]], machine: str, limit_s: float
) -> dict[str, Any]:
    """The registry as the snapshot shows it. Never raises; ends within a few times `limit_s` seconds."""
    address = str(wanted["address"])
    found: dict[str, Any] = {
        "address": address,
        "reachable": False,
        "tls": None,
        "auth": None,
        "server": None,
        "error": None,
        "images": [_image(image) for image in images],
    }
    try:
        context = ssl.create_default_context(cadata=wanted.get("ca") or None)
    except (ssl.SSLError, ValueError) as error:
        return dict(found, error=f"the given CA is no PEM certificate: {error}")
    client = Client(address, context, wanted.get("username") or "", wanted.get("password") or "", limit_s)
    try:
        status, headers, _ = client.get("/v2/")
    except RefusedError as error:
        return dict(
            found,
            reachable=True,
            tls="ok",
            auth="refused",
            error=f"the user name or password is refused ({error})",
        )
    except (OSError, http.client.HTTPException, ValueError) as error:
        return dict(found, **trouble(error))
    found.update(reachable=True, tls="ok", auth="ok", server=headers.get("server"))
    if status != 200:
        return dict(found, auth=None, error=f"/v2/ answers with status {status}: is it a registry?")
    found["server"] = found["server"] or headers.get("docker-distribution-api-version")
    _look_up_all(client, found["images"], _ARCHITECTURES.get(machine, machine))
    return found


def trouble(error: Exception) -> dict[str, Any]:
    """{reachable, tls, error} for a failed connection: the text says which step failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return {
            "reachable": True,
            "tls": error.verify_message,
            "error": f"not trusted: {error.verify_message}",
        }
    if isinstance(error, ssl.SSLError):
        text = (error.reason or str(error)).replace("_", " ").lower()
        if "wrong version number" in text or "record layer failure" in text or "http request" in text:
            text = "it does not speak TLS on this port"
        return {"reachable": True, "tls": text, "error": f"TLS fails: {text}"}
    if isinstance(error, (socket.timeout, TimeoutError)):
        return {"reachable": False, "tls": None, "error": "no answer within the time limit"}
    if isinstance(error, socket.gaierror):
        return {"reachable": False, "tls": None, "error": f"its name cannot be resolved: {error.strerror}"}
    if isinstance(error, OSError):
        return {"reachable": False, "tls": None, "error": error.strerror or str(error)}
    return {"reachable": True, "tls": None, "error": f"it answers no HTTP: {error or type(error).__name__}"}


def _image(image: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": image.get("name"),
        "repository": image.get("repository"),
        "digest": image.get("digest"),
        "found": None,
        "size_bytes": None,
        "media_type": None,
        "architectures": [],
        "error": None,
    }


def _look_up_all(client: Client, images: list[dict[str, Any]], architecture: str) -> None:
    """Look all images up, a few at once: a registry that checks a bcrypt password is slow at each request."""
    waiting = list(images)

    def work() -> None:
        while True:
            try:
                image = waiting.pop()
            except IndexError:
                return
            try:
                look_up(client, image, architecture)
            except RefusedError as error:
                image["error"] = f"access is refused ({error})"
            except (OSError, http.client.HTTPException, ValueError) as error:
                image["error"] = trouble(error)["error"]

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(_AT_ONCE, len(images)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def look_up(client: Client, image: dict[str, Any], architecture: str) -> None:
    """Fill in `found`, `media_type` and `size_bytes` (layers and configuration, as transferred)."""
    host, _, name = str(image["repository"] or "").partition("/")
    digest = str(image["digest"] or "")
    if host != client.address or not name:
        image["error"] = f"its repository is not on {client.address}"
        return
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        image["error"] = "its digest is not of the form sha256:<64 hex digits>"
        return
    manifest = _manifest(client, image, name, digest)
    if manifest is None:
        return
    children = manifest.get("manifests")
    if isinstance(children, list):
        platforms = [child.get("platform") or {} for child in children]
        # "unknown" marks attestations, which are no images
        image["architectures"] = sorted(
            {str(each.get("architecture")) for each in platforms} - {"unknown", "None"}
        )
        mine = [
            child for child in children if (child.get("platform") or {}).get("architecture") == architecture
        ]
        if not mine:
            image["error"] = f"the index holds no image for {architecture}"
            return
        manifest = _manifest(client, image, name, str(mine[0].get("digest")), child=True)
        if manifest is None:
            return
    parts = (manifest.get("layers") or []) + [manifest.get("config") or {}]
    sizes = [part.get("size") for part in parts]
    image["size_bytes"] = sum(sizes) if all(isinstance(size, int) for size in sizes) else None


def _manifest(
    client: Client, image: dict[str, Any], name: str, digest: str, child: bool = False
) -> dict[str, Any] | None:
    status, headers, body = client.get(f"/v2/{name}/manifests/{digest}")
    if status == 404:
        image["found"] = False
        image["error"] = f"the manifest {digest} that its index names is missing" if child else None
        return None
    if status != 200:
        image["error"] = f"status {status}"
        return None
    if "sha256:" + hashlib.sha256(body).hexdigest() != digest:
        image["error"] = f"the registry answers with another content than {digest}"
        return None
    try:
        manifest = json.loads(body.decode("utf-8"))
    except ValueError:
        manifest = None
    if not isinstance(manifest, dict):
        image["error"] = "its manifest is no JSON object"
        return None
    if not child:
        image["found"] = True
        image["media_type"] = headers.get("content-type")
    return manifest
