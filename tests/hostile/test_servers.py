"""Clients of servers, before servers that nobody would run: an answer, or an error in its time."""

import contextlib
import json
import random
import socketserver
import threading
import time

import pytest
from hostile_texts import hostile_text

from engineer.designers import NoAnswerError
from engineer.endpoint import Endpoint, RefusedError, Reply

KEY = "sk-very-secret-0123456789"
TIMEOUT = 0.3
SLACK = 2.0  # Seconds, for two cores that others use too.
STATUSES = ("200 OK",) * 8 + (
    "100 Continue",
    "204 No",
    "302 Found",
    "400 Bad",
    "429 Slow",
    "500 No",
)
HEADERS = (
    "Transfer-Encoding: chunked", "Content-Encoding: gzip", "Location: http://127.0.0.1:1/",
    "Retry-After: 1e400", "Retry-After: -3", "Retry-After: Mon, 99 Foo", "Content-Length: -1",
    "Content-Length: 99999999999999999999", "Set-Cookie: a=b", "X: " + "y" * 70_000, "bad header",
)  # fmt: skip


def body(rng):
    """What a server may say, whole or as events, in JSON or not."""
    text = hostile_text(rng, [f"your key is {KEY}", "fraction: 0.5", ""])
    odd = rng.choice((None, 3, [], {}, "x", float("nan"), "9" * 400, True, [text], {"content": 1}))
    usage = {"prompt_tokens": odd, "completion_tokens": 7}
    choice = {"message": {"content": text}, "delta": {"content": text}, "finish_reason": "stop"}
    for one in (choice, choice["message"], choice["delta"]):
        if rng.random() < 0.15:
            one[rng.choice(list(one))] = odd
    reply = {"choices": [choice] if rng.random() < 0.9 else odd, "usage": usage}
    said = json.dumps(reply if rng.random() < 0.9 else odd, ensure_ascii=rng.random() < 0.5)
    events = f"data: {said}\n\n" * rng.randrange(1, 4) + rng.choice(("data: [DONE]\n\n", ""))
    return rng.choice((said, said, events, hostile_text(rng, [said]))).encode(
        "utf-8", "surrogatepass"
    )


def response(rng):
    """The bytes of a whole response, often damaged."""
    content = body(rng)
    lines = [f"HTTP/1.1 {rng.choice(STATUSES)}", f"Content-Length: {len(content)}"]
    if rng.random() < 0.25:
        lines[-1] = rng.choice(HEADERS)
    if rng.random() < 0.25:
        lines.append(rng.choice(HEADERS))
    raw = bytearray("\r\n".join([*lines, "", ""]).encode() + content)
    if rng.random() < 0.3:
        at = rng.randrange(len(raw))
        raw[at : at + rng.randrange(20)] = rng.randbytes(rng.randrange(20))
    return bytes(raw[: rng.randrange(len(raw)) if rng.random() < 0.15 else None])


class Hostile(socketserver.BaseRequestHandler):
    """Answers each connection from the next seed, at once, in drops or not at all."""

    def handle(self):
        rng = random.Random(self.server.seed)
        with contextlib.suppress(OSError):
            self.request.recv(1 << 16)
            raw, pace = response(rng), rng.random()
            if pace < 0.85:
                self.request.sendall(raw)
            elif pace < 0.95:
                for i in range(0, len(raw), 40):
                    self.request.sendall(raw[i : i + 40])
                    time.sleep(0.02)
            if rng.random() < 0.1:  # It does not hang up either.
                time.sleep(2 * TIMEOUT)


@pytest.mark.parametrize("count", [60, pytest.param(1_500, marks=pytest.mark.slow)])
def test_an_endpoint(count, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    answers = 0
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Hostile) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        for server.seed in range(count):
            ask = Endpoint(url, "m", timeout=TIMEOUT, tries=1, stream=server.seed % 3 == 0).ask
            begin = time.monotonic()
            try:
                found = ask([{"role": "user", "content": "hi"}], 0)
            except (NoAnswerError, RefusedError) as error:
                said = str(error)
                assert len(said) < 1_000
            else:
                answers += 1
                assert isinstance(found, Reply)
                said = found.text + found.finish
                assert type(found.completion_tokens) in (int, type(None))
            assert time.monotonic() - begin < TIMEOUT + SLACK, f"seed {server.seed}"
            said.encode()  # As files need it.
            assert KEY not in said, f"seed {server.seed}"
        server.shutdown()
    assert answers > count / 20
