"""Reward servers of every kind and slowness, in a process of its own: `python servers.py SECONDS` prints their addresses.

What follows an address names the run, and each run finds a server that has just started. Label -1 is the one that hangs.
"""

import json
import socket
import struct
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer

KINDS = ("one-thread server", "gateway that starts late", "server that resets", "1 MiB answers", "redirects")
LATE = 3.0  # seconds until the gateway has started: a moment before OpenRLHF asks again, where ours is later by the most seconds
RESETS = 4  # requests of a run


class Handler(BaseHTTPRequestHandler):
    """Answers as the server's `kind` and `speed` say."""

    def do_POST(self):
        self.server.seen[self.path] += 1
        began = self.server.began.setdefault(self.path, time.monotonic())
        if self.server.kind == "server that resets" and self.server.seen[self.path] <= RESETS:
            return self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        label = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["labels"][0]
        if self.server.kind == "gateway that starts late" and time.monotonic() < began + LATE:
            return self.answer(404, {})
        if self.server.kind == "redirects" and not self.path.startswith("/there"):
            return self.answer(307, {}, Location="/there" + self.path)
        self.work(label)
        text = "a" * 2**20 if self.server.kind == "1 MiB answers" else ""
        self.answer(200, {"rewards": [reward_of(label)], "text": text})

    def work(self, label: int) -> None:
        seconds = self.server.seconds
        if self.server.speed == "slow CPU":
            end = time.thread_time() + seconds
            while time.thread_time() < end:
                pass
        elif self.server.speed == "slow wait":
            time.sleep(seconds)
        elif self.server.speed == "one hang" and label < 0:
            self.connection.recv(1)  # until the client has given up

    def answer(self, status: int, body: dict, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *args):
        pass


def reward_of(label: int) -> float:
    """What every kind gives for a sample's label."""
    return label % 5 / 4


def serve(kind: str, speed: str, seconds: float) -> str:
    """Start a server, in a thread; its address."""
    server_class = HTTPServer if kind == "one-thread server" else ThreadingHTTPServer
    server = type("Server", (server_class,), {"request_queue_size": 5 if server_class is HTTPServer else 128})(
        ("127.0.0.1", 0), Handler
    )
    server.kind, server.speed, server.seconds, server.seen, server.began = kind, speed, seconds, Counter(), {}
    server.handle_error = lambda *args: None  # a client that has given up
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}/"


if __name__ == "__main__":
    speeds = ("fast", "slow CPU", "slow wait", "one hang")
    print(json.dumps({kind: {speed: serve(kind, speed, float(sys.argv[1])) for speed in speeds} for kind in KINDS}))
    sys.stdout.flush()
    sys.stdin.read()  # until whoever started it is gone
