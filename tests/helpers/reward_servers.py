"""Reward servers on this machine, which answer as a test wants."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

SECRETS = ("alice", "pass-word", "query-token")
MEGABYTE = 2**20


class Server(ThreadingHTTPServer):
    request_queue_size = 128  # a burst of connections finds room: those that find none come again a second later


@pytest.fixture
def serve():
    """serve(*answers) -> (url, payloads): answers in turn, the last one for ever.

    An answer is (status, body, seconds before it), or a function that writes it: answer(handler, free), where the event
    `free` ends the test.
    """

    def start(*answers):
        payloads = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.answer(None)

            def do_POST(self):
                self.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def answer(self, payload):
                payloads.append(payload)
                answer = answers[min(len(payloads), len(answers)) - 1]
                if callable(answer):
                    return answer(self, free)
                status, body, seconds = answer
                free.wait(seconds)
                begin(self, status=status)
                self.wfile.write(body.encode())

            def log_message(self, *args):
                pass

        server = Server(("127.0.0.1", 0), Handler)
        server.handle_error = lambda *args: None  # a client that has given up
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}/get_reward", payloads

    free, servers = threading.Event(), []
    yield start
    free.set()
    for server in servers:
        server.shutdown()
        server.server_close()


def begin(handler, status=200, **headers):
    """The head of an answer."""
    handler.send_response(status)
    handler.send_header("Content-Type", "application/json")
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()


def with_secrets(url):
    user, password, token = SECRETS
    return url.replace("http://", f"http://{user}:{password}@") + f"?token={token}"
