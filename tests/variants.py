"""Other digests of the lab's images: the same layers with another configuration, such as a program that is not there."""

from __future__ import annotations

import hashlib
import json
import urllib.request
from collections.abc import Mapping
from typing import Any

from vllm_node.lab import registry


def variant(image: Mapping[str, Any], **config: Any) -> dict[str, Any]:
    """A lab's entry of the image lock, with the digest of a variant whose configuration says this: `Labels`, `Entrypoint`.

    It stays in the registry's storage, which all labs share; the same call gives the same digest.
    """
    repository = image["repository"].partition("/")[2]
    with registry.writable() as address:
        base = f"http://{address}/v2/{repository}"
        manifest, kind = _get(f"{base}/manifests/{image['digest']}")
        told = json.loads(manifest)
        settings = json.loads(_get(f"{base}/blobs/{told['config']['digest']}")[0])
        settings["config"] = {**settings.get("config", {}), **config}
        blob = json.dumps(settings, sort_keys=True).encode()
        told["config"] |= {"digest": _digest(blob), "size": len(blob)}
        place = _send("POST", f"{base}/blobs/uploads/")
        _send("PUT", f"{place}{'&' if '?' in place else '?'}digest={_digest(blob)}", blob, "application/octet-stream")
        made = json.dumps(told, sort_keys=True).encode()
        _send("PUT", f"{base}/manifests/{_digest(made)}", made, kind)
    return {**image, "digest": _digest(made), "platform_digest": _digest(made)}


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _get(url: str) -> tuple[bytes, str]:
    kinds = "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"
    request = urllib.request.Request(url, headers={"Accept": kinds})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.read(), answer.headers["Content-Type"]


def _send(method: str, url: str, data: bytes = b"", kind: str = "application/octet-stream") -> str:
    request = urllib.request.Request(url, data=data, method=method, headers={"Content-Type": kind})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return str(answer.headers["Location"] or "")
