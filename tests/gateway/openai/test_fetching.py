"""Images by URL: from allowed hosts with public addresses alone, whatever names, redirects and servers try."""

import asyncio
import ssl

import openai
import pytest

from dormouse_api.images import BadImage
from dormouse_api.limits import MAX_IMAGE_BYTES
from dormouse_gateway.openai.fetching import ImageFetcher, is_public, resolve
from tests.gateway.openai.test_pictures import PNG, chat, seen
from tests.gateway.test_tls import write_pair

PUBLIC = "93.184.216.34"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s"


class Host:
    """A real HTTPS server on loopback, that answers each path as it is told; and the fakes that lead to it."""

    def __init__(self):
        self.answers, self.asked, self.resolved, self.dialled = {}, [], [], []
        self.addresses = {"localhost": [[PUBLIC]]}  # name → what each look-up finds; the last one stays

    async def serve(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path = head.split(" ")[1]
        self.asked.append(head)
        answer = self.answers.get(path, OK % (len(PNG), PNG))
        for piece in answer if isinstance(answer, list) else [answer]:
            if piece is None:
                await asyncio.Event().wait()
            writer.write(piece)
            await writer.drain()
        writer.close()

    async def resolve(self, name, port):
        self.resolved.append((name, port))
        known = self.addresses[name]
        return known.pop(0) if len(known) > 1 else known[0]

    async def dial(self, address, port, tls, name):
        self.dialled.append((address, port))
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=tls, server_hostname=name)


@pytest.fixture
async def host(tmp_path):
    write_pair(tmp_path, 1)
    own = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    own.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    made = Host()
    made.tls = ssl.create_default_context(cafile=tmp_path / "tls.crt")
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0, ssl=own)
    made.port = server.sockets[0].getsockname()[1]
    yield made
    server.close()


def fetcher(host, *, hosts=("localhost", "*.other.example"), timeout_s=30.0):
    return ImageFetcher(frozenset(hosts), timeout_s, host.tls, host.resolve, host.dial)


async def refused(host, url, **how):
    with pytest.raises(BadImage) as caught:
        await fetcher(host, **how).fetch(url)
    assert "hush" not in str(caught.value), "of a URL only its host is told"
    return str(caught.value)


async def test_an_image_of_an_allowed_host_is_fetched(host):
    assert await fetcher(host).fetch("https://localhost/a%20b.png?token=hush#x") == PNG
    assert host.asked[0].startswith("GET /a%20b.png?token=hush HTTP/1.1\r\nhost: localhost\r\n")
    assert (host.resolved, host.dialled) == ([("localhost", 443)], [(PUBLIC, 443)])


@pytest.mark.parametrize(
    "address",
    [
        *(
            "127.0.0.1",
            "10.0.0.1",
            "172.16.0.1",
            "192.168.0.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "224.0.0.1",
        ),
        *("255.255.255.255", "192.0.2.1", "198.18.0.1", "240.0.0.1", "::1", "::", "fe80::1", "fe80::1%eth0", "fd00::1"),
        *("ff02::1", "::ffff:127.0.0.1", "::ffff:93.184.216.34", "2002:7f00:1::", "64:ff9b::7f00:1", "64:ff9b:1::1"),
        *("2001::1", "2001:db8::1", "fec0::1", "nonsense", ""),
    ],
)
async def test_addresses_that_are_not_public_are_not_dialled(host, address):
    assert not is_public(address)
    host.addresses["localhost"] = [[PUBLIC, address]]
    assert "localhost has an address that is not public" in await refused(host, "https://localhost/hush")
    assert host.dialled == []


@pytest.mark.parametrize("address", [PUBLIC, "1.1.1.1", "2606:4700::1111"])
def test_public_addresses_are(address):
    assert is_public(address)


async def test_a_name_that_means_another_address_a_moment_later_leads_nowhere(host):
    host.addresses["localhost"] = [[PUBLIC], ["127.0.0.1"]]
    assert await fetcher(host).fetch("https://localhost/a") == PNG
    assert (host.resolved, host.dialled) == ([("localhost", 443)], [(PUBLIC, 443)]), "looked up once"
    assert "not public" in await refused(host, "https://localhost/a")


def redirect(where, status=302):
    return f"HTTP/1.1 {status} Go\r\nlocation: {where}\r\ncontent-length: 0\r\n\r\n".encode()


async def test_redirects_to_allowed_hosts_are_followed_a_few_times(host):
    host.answers = {"/a": redirect("/b", 301), "/b": redirect("https://localhost/c", 308), "/c": redirect("d", 307)}
    assert await fetcher(host).fetch("https://localhost/a") == PNG
    host.answers["/d"] = redirect("/a")
    assert "redirected by localhost; allowed: at most 3 redirects" in await refused(host, "https://localhost/a")


@pytest.mark.parametrize(
    "where",
    [
        "https://169.254.169.254/latest/hush",
        "http://localhost/hush",
        "https://localhost:8443/hush",
        "https://evil.example/hush",
        "//evil.example/hush",
        "https://user:hush@localhost/",
        "file:///hush",
        "https://[::1]/hush",
        "https://loc\xe4lhost/hush",
        "https://localhost:99999/hush",
    ],
)
async def test_redirects_elsewhere_are_not(host, where):
    host.answers = {"/a": redirect(where)}
    assert "allowed: " in await refused(host, "https://localhost/a")
    assert len(host.dialled) == 1


async def test_each_redirect_is_looked_up_anew(host):
    host.answers = {"/a": redirect("https://cdn.other.example/hush")}
    host.addresses["cdn.other.example"] = [["10.0.0.1"]]
    assert "cdn.other.example has an address that is not public" in await refused(host, "https://localhost/a")
    assert len(host.dialled) == 1


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 404 No\r\ncontent-length: 4\r\n\r\nhush", "answers with the status 404; allowed: 200"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n", f"of more than {MAX_IMAGE_BYTES} bytes"),
        ([b"HTTP/1.1 200 OK\r\n\r\n", *[bytes(1 << 20)] * 21], f"of more than {MAX_IMAGE_BYTES} bytes"),
        (b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n\r\nhush", "sends compressed"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhush", "cannot be fetched"),
        (b"hush\r\n\r\n", "cannot be fetched"),
        (b"HTTP/1.1 200 OK\r\na: " + b"b" * 100_000, "cannot be fetched"),
        (b"", "cannot be fetched"),
    ],
)
async def test_what_hosts_answer_is_bounded(host, answer, words):
    host.answers = {"/a": answer}
    assert words in await refused(host, "https://localhost/a")


@pytest.mark.parametrize("answer", [[None], [b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\na", None]])
async def test_slow_hosts_are_left(host, answer):
    host.answers = {"/a": answer}
    words = "an image of localhost that did not come; allowed: 0.2 seconds"
    assert words in await refused(host, "https://localhost/a", timeout_s=0.2)


async def test_a_host_that_cannot_prove_its_name_gets_no_request(host):
    host.addresses["a.other.example"] = [[PUBLIC]]
    assert "cannot be fetched" in await refused(host, "https://a.other.example/hush")
    assert host.asked == []


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("https://evil.example/hush", "not allowed; allowed: hosts that the operator names"),
        ("https://other.example/hush", "not allowed"),
        ("https://localhost.evil.example/hush", "not allowed"),
        ("http://localhost/hush", "no such URL"),
        ("https:///hush", "no such URL"),
        ("https://localhost/a b", "percent-encoded"),
        ("https://localhost/\r\nhost: hush", "URL"),
    ],
)
async def test_other_urls_are_refused_before_anything_is_looked_up(host, url, words):
    assert words in await refused(host, url)
    assert host.resolved == []


async def test_without_hosts_nothing_is_fetched(host):
    assert "the operator has allowed no hosts" in await refused(host, "https://localhost/hush", hosts=())


async def test_the_system_resolves_names():
    assert "127.0.0.1" in await resolve("localhost", 443)


async def test_an_image_by_url_reaches_the_worker(make_house, worker, open_client, host, monkeypatch):
    monkeypatch.setattr("dormouse_gateway.server.ImageFetcher", lambda hosts: fetcher(host, hosts=hosts))
    async with make_house(image_hosts=frozenset({"localhost"})) as house:
        await house.add("tiny", [worker])
        client = open_client(house)
        await client.chat.completions.create(**chat("https://localhost/a.png?token=hush"))
        assert seen(worker)[0].parts[1].image == PNG
        with pytest.raises(openai.BadRequestError, match="not allowed") as caught:
            await client.chat.completions.create(**chat("https://evil.example/a.png?token=hush"))
        assert "hush" not in str(caught.value)
        assert house.gateway._proxy.images.num_bytes == 0
