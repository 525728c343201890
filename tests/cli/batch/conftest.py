"""A server that a test scripts."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.cli.batch.server import Server, send


@pytest.fixture
def server():
    told = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):  # the library's name
            told.answer(self)

        def do_GET(self):  # the library's name
            told.key = self.headers["Authorization"]
            send(self, getattr(told, "greets", 200), {}, b"{}")

        def log_message(self, *_):
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, args=(0.01,))
    thread.start()
    told.port = http.server_port
    told.address = f"127.0.0.1:{told.port}"
    yield told
    told.ends.set()
    http.shutdown()
    thread.join()
    http.server_close()
