"""A small real stage process for tests of supervision: serves /readyz and speaks the announcement protocol.

`python small_stage.py MODE CONFIG.json`; MODE: `serve`; `fail` (says why and exits 3); `silent` (never becomes ready);
`deaf` (ignores SIGTERM). A POST to /die kills it. Each event is a line in `history` beside the config file.
"""

import json
import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(dict(os.environ)).encode())

    def do_POST(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def log_message(self, *args):
        pass


def main():
    mode, config_file = sys.argv[1], Path(sys.argv[2])
    config = json.loads(config_file.read_bytes())
    history = config_file.with_name("history")

    def note(word):
        with history.open("a") as file:
            file.write(f"{config['replica']} {word}\n")

    def on_term(*_):
        note("term")
        if mode != "deaf":
            time.sleep(0.05)
            note("drained")
            os._exit(0)

    signal.signal(signal.SIGTERM, on_term)
    note("start")
    print("loading the model", file=sys.stderr, flush=True)
    if mode == "fail" or (mode == "alone" and config.get("standby_of")):
        print(f"syrinx: no checkpoint in {config['model']}", file=sys.stderr)
        sys.exit(3)
    if mode == "silent":
        signal.pause()
    server = ThreadingHTTPServer(("127.0.0.1", config.get("admin_port", 0)), Handler)
    url = f"http://127.0.0.1:{server.server_address[1]}"
    print("not the announcement", flush=True)
    print(json.dumps({"stage": "any", "replica": config["replica"], "url": url, "admin_url": url}), flush=True)
    server.serve_forever()


main()
