"""What runs in the pod of `Listeners`: `python -c SOURCE URL CLIENTS TEXT`. Each request's result is a line of JSON.

A log is rotated after some megabytes, so PCM is written once: all streams should be equal.
"""

import base64
import hashlib
import json
import sys
import threading
import time
from pathlib import Path

import httpx

LEAVE = Path("/tmp/leave")
"""Once this exists, no further request is sent."""
TIMEOUT = httpx.Timeout(30.0, read=120.0)
PAUSE_AFTER_FAILURE = 1.0
LOCK = threading.Lock()
WRITTEN = {""}
"""Digests of the PCM that was written."""


def listen(url: str, text: str) -> None:
    """Requests one stream after the other, each on a connection of its own."""
    body = {"input": text, "voice": "us", "seed": 7, "response_format": "pcm", "stream": True}
    while not LEAVE.exists():
        digest, pcm, failure = "", b"", ""
        try:
            with httpx.stream("POST", url, json=body, timeout=TIMEOUT) as response:
                pcm = response.read()
            if response.status_code == 200:
                digest = hashlib.sha256(pcm).hexdigest()
            else:
                failure = f"{response.status_code}: {response.text}"
        except httpx.HTTPError as error:
            failure = f"{type(error).__name__}: {error}"
        with LOCK:
            data = "" if digest in WRITTEN else base64.b64encode(pcm).decode()
            WRITTEN.add(digest)
            print(json.dumps({"digest": digest, "pcm": data, "failure": failure}), flush=True)
        if failure:
            time.sleep(PAUSE_AFTER_FAILURE)


if __name__ == "__main__":
    url, clients, text = sys.argv[1:]
    for _ in range(int(clients)):
        threading.Thread(target=listen, args=(url, text)).start()
