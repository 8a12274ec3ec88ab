"""Health of a vLLM instance, run inside its container: `healthcheck.py URL`.

Only what is really dead is unhealthy: nobody listens, or the engine says that it has died (503). A server that
takes its time under load is alive, and restarting it would make things worse.
"""

import socket
import sys
import urllib.error
import urllib.request

try:
    urllib.request.urlopen(sys.argv[1], timeout=20).close()
except urllib.error.HTTPError as error:
    if error.code == 503:
        sys.exit("the engine is dead: 503")
except (TimeoutError, socket.timeout):
    print("slow, but alive")
except urllib.error.URLError as error:
    if not isinstance(error.reason, (TimeoutError, socket.timeout)):
        sys.exit("nobody answers: %s" % error.reason)
    print("slow, but alive")
except OSError as error:
    sys.exit("nobody answers: %s" % error)
