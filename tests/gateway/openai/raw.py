"""A connection whose bytes a test writes and reads itself."""

import json


class Raw:
    """A connection on which a test says what it wants."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    def say(self, text):
        self.writer.write(text)

    async def response(self):
        """Return status, headers and body of the next answer."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return int(head[0].split()[1]), headers, json.loads(body)

    async def until_closed(self):
        """Read until the gateway closes; return what came."""
        try:
            return await self.reader.read()
        except ConnectionResetError:
            return b""
