"""Whether the gateway of the node is the door that it is to be: open by TLS, and closed to those without a key."""

from __future__ import annotations

import http.client
import ssl

LIMIT_S = 10
# /health says whether an instance answers; that none does yet is no fault of the gateway's.
WANTED = (("/health", (200, 503)), ("/v1/models", (401,)), ("/metrics", (404,)))


def ajar(address, port):
    """What is wrong with the gateway, or None.

    Its certificate is not judged: preflight has done that, and the node need not know the authority of a site.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    connection = http.client.HTTPSConnection(address.strip("[]"), port, timeout=LIMIT_S, context=context)
    try:
        for path, wanted in WANTED:
            connection.request("GET", path)
            answer = connection.getresponse()
            answer.read()
            if answer.status not in wanted:
                return "%s answers %d without a key, not %s" % (path, answer.status, " or ".join(map(str, wanted)))
    except ConnectionRefusedError:
        return "not listening yet"
    except (OSError, http.client.HTTPException) as error:
        return "no answer: %s" % (getattr(error, "strerror", None) or error or type(error).__name__)
    finally:
        connection.close()
    return None
