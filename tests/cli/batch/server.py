"""A server of OpenAI's API that answers, and refuses, as a test says."""

from __future__ import annotations

import json
import threading

CHAT = "/v1/chat/completions"


def request(custom_id, url=CHAT, **body):
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]} | body
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


class Server:
    """Answers what it is told by path and number of the request; remembers bodies and headers."""

    def __init__(self):
        self.seen = []
        self.script = []  # (status, headers, body) of each next request; then 200
        self.in_flight = self.most_in_flight = 0
        self.together = 1
        self.changed = threading.Condition()
        self.ends = threading.Event()
        self.stalls_from = 1_000_000  # the number of the first request that gets no answer

    def answer(self, handler):
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        with self.changed:
            number = len(self.seen)
            self.seen.append((handler.path, body, dict(handler.headers)))
            status, headers, said = self.script.pop(0) if self.script else (200, {}, b'{"ok": true}')
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.most_in_flight >= self.together, timeout=90)
        if number >= self.stalls_from:
            self.ends.wait(30)
        with self.changed:
            self.in_flight -= 1
        if status == 0:
            handler.close_connection = True
            handler.connection.close()
            return
        send(handler, status, headers, said)


def send(handler, status, headers, said):
    handler.send_response(status)
    for name, value in {"Content-Length": len(said), "X-Request-Id": "r", **headers}.items():
        handler.send_header(name, str(value))
    handler.end_headers()
    handler.wfile.write(said)
