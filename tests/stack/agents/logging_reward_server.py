"""Reward server of the drills, `python logging_reward_server.py LOG`: it prints its port, and appends every training prompt to LOG.

A reward is 0 or 1 by a checksum. A prompt is one line, its own checksum.
"""

import json
import sys
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        sample = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        (query,), (prompt,) = sample["query"], sample["prompts"]
        if sample["labels"] != ["evaluation"]:
            with open(sys.argv[1], "a") as log:
                log.write(f"{zlib.crc32(prompt.encode())}\n")
        reward = [float(zlib.crc32(query.encode()) % 2)]
        body = json.dumps({"rewards": reward, "scores": reward, "extra_logs": {}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
