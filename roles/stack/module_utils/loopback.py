"""Questions to programs that listen on the node itself: no proxy of the site sees them, and none goes on for ever."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request

LARGEST_BYTES = 64 * 2**20


class SilentError(Exception):
    """Nobody answered, or the answer did not come whole and in time; the text says which."""


def ask(url, limit_s, body=None, method=None, headers=None):
    """(status, text) of a request, of one that is refused as well. `body` is sent as JSON.

    Raises SilentError when there is no whole answer of at most 64 MiB within `limit_s`.
    """
    try:
        request = urllib.request.Request(url, data=None if body is None else json.dumps(body).encode(), method=method)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            request.add_header(name, value)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        end = time.monotonic() + limit_s
        try:
            with opener.open(request, timeout=limit_s) as answer:
                return answer.status, _whole(answer, end, limit_s)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, _whole(error, end, limit_s)
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        words = getattr(reason, "strerror", None) or reason
        raise SilentError(str(words) or type(reason).__name__) from None


def _whole(answer, end, limit_s):
    parts, size = [], 0
    while True:
        part = answer.read1(2**16)
        if not part:
            if answer.length:
                raise ValueError("the page was cut off")
            return b"".join(parts).decode("utf-8", "replace")
        parts.append(part)
        size += len(part)
        if size > LARGEST_BYTES:
            raise ValueError("the page is larger than %d MiB" % (LARGEST_BYTES >> 20))
        if time.monotonic() > end:
            raise ValueError("the page did not end within %g s" % limit_s)
