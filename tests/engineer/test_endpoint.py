"""A real HTTP server on loopback that fails in every way before it answers."""

import asyncio
import contextlib
import dataclasses
import email.utils
import json
import logging
import math
import time

import pytest
from local_server import Handler, LocalServer

from engineer.context import VARIANTS, compose
from engineer.designers import ModelDesigner, NoAnswerError
from engineer.endpoint import Endpoint, RefusedError
from engineer.proposal import render_config
from experiments.families.demonstrations import random_record
from experiments.families.lakes import texts as lakes

SPACE = lakes.lake_space((3, 4, 5))
RECORD = random_record(1, SPACE, lakes.TEXTS)
WANTED = SPACE.random(5)
ANSWER = f"Less of what works.\n{render_config(WANTED, SPACE)}"
HI = [{"role": "user", "content": "hi"}]
KEY = "sk-very-secret-0123456789"


def completion(text):
    return {"choices": [{"message": {"role": "assistant", "content": text}}]}


class Server(LocalServer):
    """Plays one prepared act for each request; the last one again and again."""

    def __init__(self, *acts):
        self.requests = []
        outer = self

        class Prepared(Handler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                number = len(outer.requests)
                outer.requests.append((self.path, dict(self.headers), json.loads(body)))
                # The client gives up, as it should.
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    acts[min(number, len(acts) - 1)](self)

            def do_GET(self):
                outer.requests.append((self.path, dict(self.headers), None))
                self.send_error(500)

        super().__init__(Prepared)


def answer(handler, text=ANSWER):
    handler.send(200, json.dumps(completion(text)).encode())


def too_slow(handler):
    time.sleep(0.5)
    answer(handler)


def dripping(handler):
    raw = json.dumps(completion(ANSWER)).encode()
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(raw)))
    handler.end_headers()
    for byte in raw:
        handler.wfile.write(bytes([byte]))
        handler.wfile.flush()
        time.sleep(0.05)


def overloaded(handler):
    handler.send(429, b"slow down", [("Retry-After", "7")])


def failing(handler):
    handler.send(500, b"<html>oops</html>")


def no_json(handler):
    handler.send(200, b'{"choices": [{"message": {"content": "3: {data')


def other_json(handler):
    handler.send(200, b'{"choices": []}')


def cut(handler):
    raw = json.dumps(completion(ANSWER)).encode()
    handler.send(200, raw[: len(raw) // 2], announced=len(raw))
    handler.close_connection = True


def ended_in_an_error(handler):
    choice = {"message": {"content": None}, "finish_reason": "error"}
    handler.send(200, json.dumps({"choices": [choice]}).encode())


def hung_up(handler):
    handler.close_connection = True
    handler.connection.close()


def events(text, done=True):
    pieces = [text[i : i + 7] for i in range(0, len(text), 7)]
    lines = [json.dumps({"choices": [{"delta": {"content": piece}}]}) for piece in pieces]
    if done:
        lines.append(json.dumps({"choices": [{"delta": {}, "finish_reason": "stop"}]}))
        lines.append("[DONE]")
    return "".join(f"data: {line}\n\n" for line in lines).encode()


def endpoint(server, **options):
    waits = []
    made = Endpoint(
        server.url, "m", **{"timeout": 0.3, "tries": 12, "sleep": waits.append, **options}
    )
    return made, waits


def designer(generate):
    return ModelDesigner(generate, lakes.TEXTS, VARIANTS["V5"], source="endpoint", tries=1)


def test_a_design_in_spite_of_every_failure(monkeypatch, caplog, capfd):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    caplog.set_level(logging.DEBUG)
    acts = [too_slow, dripping, overloaded, failing, no_json, other_json, cut, hung_up]
    acts += [ended_in_an_error, answer]
    with Server(*acts) as server:
        ask, waits = endpoint(server)
        design = designer(ask)(RECORD, SPACE, seed=3)
    assert design.config == WANTED
    assert not design.kept_previous
    assert design.summary == "Less of what works."
    assert len(server.requests) == len(acts)
    doubled = [1, 2, 7, 8, 16, 32, 60, 60, 60]  # At least Retry-After.
    assert all(least <= wait <= 1.25 * least for least, wait in zip(doubled, waits, strict=True))
    path, headers, body = server.requests[-1]
    assert path == "/v1/chat/completions"
    assert headers["Authorization"] == f"Bearer {KEY}"
    assert body["model"] == "m"
    assert body["messages"] == compose(VARIANTS["V5"], RECORD, lakes.TEXTS)
    told = caplog.text + "".join(capfd.readouterr()) + repr(ask) + json.dumps(design.to_dict())
    assert KEY not in told


def test_streams(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    def whole(handler):
        handler.send(200, events(ANSWER))

    def broken_off(handler):
        handler.send(200, events(ANSWER, done=False))

    def cut_event(handler):
        handler.send(200, events(ANSWER)[:-60])

    def without_deltas(handler):
        choices = {"index": 0}, {"delta": None, "finish_reason": "stop"}
        lines = "".join(f"data: {json.dumps({'choices': [choice]})}\n\n" for choice in choices)
        handler.send(200, events(ANSWER, done=False) + lines.encode())

    with Server(broken_off, cut_event, cut, whole, without_deltas, answer) as server:
        ask, waits = endpoint(server, stream=True)
        assert [ask(HI, 0) for _ in range(3)] == [ANSWER] * 3  # The last ignores `stream`.
    assert len(waits) == 3
    assert server.requests[0][2]["stream"] is True
    assert "Authorization" not in server.requests[0][1]


def test_streams_break_lines_where_the_protocol_does(monkeypatch):
    text = "one\u2028two\u2029three\x85four\x0bfive"
    whole = json.dumps({"choices": [{"delta": {"content": text}}]}, ensure_ascii=False)
    halves = [r"""{"choices": [{"delta": {"content": "\ud83d"}}]}"""]
    halves += [r"""{"choices": [{"delta": {"content": "\ude00 \udc00"}}]}""", "[DONE]"]
    for end in ("\r\n", "\n", "\r"):
        raw = "".join(f"data: {line}{end}{end}" for line in (whole, *halves)).encode()
        with Server(lambda handler, raw=raw: handler.send(200, raw)) as server:
            given = endpoint(server, stream=True)[0](HI, 0)
        assert given == text + "\U0001f600 \ufffd"


def test_a_repeated_key_is_masked_and_lone_surrogates_are_healed(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with Server(lambda handler: answer(handler, f"your {KEY}, \ud800!")) as server:
        assert endpoint(server)[0](HI, 0) == "your ***, \ufffd!"
    said = completion(ANSWER)
    said["choices"][0]["finish_reason"] = f"{KEY}\ud800"
    with Server(lambda handler: handler.send(200, json.dumps(said).encode())) as server:
        assert endpoint(server)[0].ask(HI, 0).finish == "***\ufffd"


def test_parts_are_joined_and_errors_with_status_200_are_told(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    said = completion("")
    parts = [{"type": "thinking", "text": "hm"}, *({"type": "text", "text": x} for x in ("a", "b"))]
    said["choices"][0]["message"]["content"] = parts
    with Server(lambda handler: handler.send(200, json.dumps(said).encode())) as server:
        assert endpoint(server)[0](HI, 0) == "ab"
    error = json.dumps({"error": {"message": f"overloaded, {KEY}"}}).encode()
    with (
        Server(lambda handler: handler.send(200, error)) as server,
        pytest.raises(NoAnswerError, match=r"the server says: .*overloaded, \*\*\*"),
    ):
        endpoint(server, tries=1)[0](HI, 0)


def test_counts_that_cannot_be_are_ignored():
    for count, taken in ((7, 7), (0, 0), (int("9" * 400), None), (-1, None), (True, None)):
        reply = completion("yes") | {"usage": {"prompt_tokens": count, "completion_tokens": 3}}
        raw = json.dumps(reply).encode()
        with Server(lambda handler, raw=raw: handler.send(200, raw)) as server:
            given = endpoint(server)[0].ask(HI, 0)
        assert (given.prompt_tokens, given.completion_tokens) == (taken, 3)
    with (
        Server(lambda handler: handler.send(200, b'{"choices": [], "usage": 5}')) as server,
        pytest.raises(NoAnswerError, match="no chat completion"),
    ):
        endpoint(server, tries=1)[0](HI, 0)


def test_a_reply_without_end_is_cut(monkeypatch):
    monkeypatch.setattr("engineer.endpoint.MAX_BYTES", 10_000)

    def endless(handler):
        handler.send_response(200)
        handler.end_headers()
        while True:
            handler.wfile.write(b" " * 1_000)

    with Server(endless) as server, pytest.raises(NoAnswerError, match="longer than 10000 bytes"):
        endpoint(server, tries=1, timeout=5.0)[0](HI, 0)


def drip(head, status=b"200 OK"):
    """After `head`, a byte from time to time."""

    def act(handler):
        handler.wfile.write(b"HTTP/1.1 " + status + b"\r\n" + head)
        while True:
            handler.wfile.write(b"1")
            handler.wfile.flush()
            time.sleep(0.02)

    return act


def endless_continue(handler):
    while True:
        handler.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        time.sleep(0.001)


@pytest.mark.parametrize(
    "act",
    [
        drip(b"Content-Length: 9999\r\n\r\n"),
        drip(b"Content-Length: 9999\r\n\r\n", b"401 No"),
        drip(b"Transfer-Encoding: chunked\r\n\r\n4;extension="),
        drip(b"X-Header: "),
        drip(b"", b"200 "),
        endless_continue,
    ],
    ids=["body", "error", "chunk extension", "header", "status", "continue"],
)
def test_dripping_bytes_do_not_extend_the_time(act):
    with Server(act) as server:
        ask, _ = endpoint(server, tries=1, timeout=0.3)
        start = time.monotonic()
        with pytest.raises(NoAnswerError, match=r"no answer within 0\.3 s"):
            ask(HI, 0)
        assert time.monotonic() - start < 2.0  # The bytes would never end.


def test_within_an_event_loop():
    async def main(ask):
        return ask(HI, 0)

    with Server(answer) as server:
        assert asyncio.run(main(endpoint(server)[0])) == ANSWER


def test_only_a_server_that_has_answered_keeps_the_previous_configuration():
    with Server(failing) as server:
        ask, _ = endpoint(server, tries=2)
        with pytest.raises(NoAnswerError, match="status 500; status 500"):
            ask(HI, 0)
        with pytest.raises(NoAnswerError, match="status 500; status 500"):
            dataclasses.replace(designer(ask), tries=2)(RECORD, SPACE, seed=0)
        assert len(server.requests) == 2 + 2 * 2
    with Server(lambda handler: answer(handler, "I do not know."), failing) as server:
        ask, _ = endpoint(server, tries=1)
        design = dataclasses.replace(designer(ask), tries=2)(RECORD, SPACE, seed=0)
    assert design.kept_previous
    assert design.config == RECORD.config
    assert design.raw_texts == ("I do not know.",)
    assert "status 500" in design.reason
    nobody = Endpoint("http://127.0.0.1:9", "m", tries=1, timeout=1.0)
    with pytest.raises(NoAnswerError, match="no connection"):
        nobody(HI, 0)


def test_the_time_counts_from_the_first_to_the_last_byte():
    def stalled(handler):
        time.sleep(0.4)
        handler.send_response(200)
        handler.send_header("Content-Length", "99")
        handler.end_headers()
        time.sleep(1.0)

    with Server(stalled) as server:
        ask, _ = endpoint(server, tries=1, timeout=0.5)
        start = time.monotonic()
        with pytest.raises(NoAnswerError, match=r"no answer within 0\.5 s"):
            ask(HI, 0)
        assert time.monotonic() - start < 0.8  # not 0.4 and then 0.5 again


def test_a_refusal_is_told_at_once_and_without_the_key(monkeypatch):
    monkeypatch.setenv("OTHER_KEY", KEY)

    def refuse(handler):
        handler.send(401, f"your key {KEY} is not known".encode())

    def redirect(handler):
        handler.send(302, b"", [("Location", f"{server.url}/elsewhere")])

    for act in (refuse, redirect):
        with Server(act) as server:
            ask, waits = endpoint(server, key_variable="OTHER_KEY")
            with pytest.raises(RefusedError, match=r"key from OTHER_KEY \(set\): refused") as error:
                ask(HI, 0)
        assert KEY not in str(error.value)
        assert (len(server.requests), waits) == (1, [])
    monkeypatch.setenv("OTHER_KEY", f"{KEY}\n")
    with pytest.raises(RefusedError, match="OTHER_KEY: the key must be of printable") as error:
        ask(HI, 0)
    assert KEY not in str(error.value)


def unsupported(field):
    text = f"Unsupported parameter: '{field}' is not supported with this model. Use another."
    return lambda handler: handler.send(400, json.dumps({"error": {"message": text}}).encode())


def test_fields_that_a_server_has_not_are_left_out(caplog):
    acts = [unsupported("max_tokens"), unsupported("temperature"), overloaded, too_slow]
    acts += [*[hung_up] * 4, unsupported("seed"), answer]
    with Server(*acts) as server:
        ask, waits = endpoint(
            server, max_tokens=9, temperature=0.5, tries=8, extra='{"reasoning_effort": "low"}'
        )
        assert ask(HI, 3) == ANSWER
        assert ask(HI, 4) == ANSWER  # It asks as it has learnt to.
    assert len(waits) == 6
    assert len(server.requests) == len(acts) + 1
    bodies = [body for _, _, body in server.requests]
    asked = {"model": "m", "messages": HI, "reasoning_effort": "low"}
    assert bodies[0] == asked | {"seed": 3, "temperature": 0.5, "max_tokens": 9}
    assert bodies[1] == asked | {"seed": 3, "temperature": 0.5, "max_completion_tokens": 9}
    assert bodies[2] == bodies[8] == asked | {"seed": 3, "max_completion_tokens": 9}
    assert bodies[9] == bodies[10] == asked | {"max_completion_tokens": 9}
    assert [one.message.partition(": ")[2] for one in caplog.records] == [
        f"asked without {name} from now on" for name in ("max_tokens", "temperature", "seed")
    ]


def test_a_wrong_value_of_a_field_is_refused():
    def too_large(handler):
        handler.send(400, b"max_tokens: 9 is too large, this model supports at most 8")

    with Server(too_large) as server:
        ask, _ = endpoint(server, max_tokens=9)
        with pytest.raises(RefusedError, match="refused with status 400: max_tokens: 9 is too"):
            ask(HI, 0)


def test_a_server_may_ask_to_wait_longer_or_until_a_date():
    def until(seconds):
        date = email.utils.formatdate(time.time() + seconds, usegmt=True)
        return lambda handler: handler.send(429, b"", [("Retry-After", date)])

    def for_long(handler):
        handler.send(503, b"", [("Retry-After", "100000")])

    with Server(until(90), until(-90), for_long, answer) as server:
        ask, waits = endpoint(server)
        assert ask(HI, 0) == ANSWER
    assert waits == [pytest.approx(90, abs=3), pytest.approx(2.25, abs=0.25), 600]


@pytest.mark.parametrize(
    "line",
    [
        b"[]",
        b"3",
        b"\0" * 16,
        b"\xff\xfe",
        b'{"url": "URL", "model": "m"}',
        b'{"url": "URL", "model": "m", "prompt_tokens": 5}',
        b'{"url": "URL", "model": "m", "prompt_tokenz": 5, "completion_tokens": 5}',
        b'{"url": "URL", "model": "m", "prompt_tokens": -5, "completion_tokens": 5}',
        b'{"url": "URL", "model": "m", "prompt_tokens": NaN, "completion_tokens": 5}',
        b'{"url": "URL", "model": "m", "prompt_tokens": 5, "completion_tokens": Infinity}',
        b'{"url": "URL", "model": "m", "prompt_tokens": 5, "completion_tokens": null}',
        b'{"url": "URL", "model": "m", "tokens": "9"}',
        b'{"url": "URL", "model": "m", "prompt_tokens": 1e400, "completion_tokens": 5}',
        b'{"url": "URL", "model": "m", "prompt_tokens": true, "completion_tokens": 5}',
        b'"\xff"',
        b"[" * 100_000,
    ],
)
def test_a_damaged_usage_file_is_refused_by_its_line(line, tmp_path):
    usage = tmp_path / "usage.jsonl"
    made = Endpoint("http://u", "m", usage=usage, token_limit=9, tries=1)
    whole = b'\n{"url": "URL", "model": "m", "tokens": 2}\n{"url": "cut\n' + line
    usage.write_bytes(whole.replace(b"URL", made.url.encode()))
    with pytest.raises(RefusedError, match=r"usage\.jsonl:4: damaged: allowed are JSON objects"):
        made(HI, 0)


def test_no_more_tokens_than_the_limit_over_several_starts(tmp_path):
    usage = tmp_path / "new" / "usage.jsonl"

    def counted(handler):
        told = {"prompt_tokens": 30, "completion_tokens": 12}
        handler.send(200, json.dumps({**completion(ANSWER), "usage": told}).encode())

    with Server(counted, counted, answer) as server:
        for _ in range(2):  # Each start has an object of its own.
            made, _ = endpoint(server, usage=usage, token_limit=60)
            assert made(HI, 0) == ANSWER
        made, _ = endpoint(server, usage=usage, token_limit=60)
        with pytest.raises(RefusedError, match=r"token_limit=60: 'm' at .* has used 84 tokens"):
            made(HI, 0)
        assert len(server.requests) == 2
        with usage.open("a") as file:
            file.write('\n{"url": "cut')  # By a kill.
        # A higher limit goes on; what this server does not count is guessed.
        made, _ = endpoint(server, usage=usage, token_limit=85)
        assert made(HI, 0) == ANSWER
        other, _ = endpoint(server, usage=usage, token_limit=85)
        with pytest.raises(RefusedError, match=f"has used {84 + len(ANSWER) // 3} tokens"):
            other(HI, 0)
        assert Endpoint(server.url, "n", usage=usage, token_limit=1)(HI, 0) == ANSWER


def test_no_higher_cost_than_the_limit(tmp_path):
    usage = tmp_path / "usage.jsonl"

    def counted(handler):
        told = {"prompt_tokens": 300_000, "completion_tokens": 120_000}
        handler.send(200, json.dumps({**completion(ANSWER), "usage": told}).encode())

    prices = {"prices": (2.0, 10.0)}  # 0.6 and 1.2 for each answer.
    with Server(counted) as server:
        # Of before prompts and completions were told apart; it costs 1.
        usage.write_text(json.dumps({"url": server.url, "model": "m", "tokens": 100_000}))
        ask, _ = endpoint(server, usage=usage, cost_limit=2.9, **prices)
        assert (ask(HI, 0), ask(HI, 1)) == (ANSWER, ANSWER)
        with pytest.raises(RefusedError, match=r"cost_limit=2\.9: 'm' .* has cost 4\.60; set a"):
            ask(HI, 2)
        assert len(server.requests) == 2
        assert dataclasses.replace(ask, cost_limit=4.7)(HI, 2) == ANSWER


def test_bad_fields_are_named():
    for options, message in (
        ({"url": "ftp://x"}, "url='ftp://x'"),
        ({"url": "http://x:99999/v1"}, "url='http://x:99999/v1': must be .* port below 65536"),
        ({"url": "http://x y/v1"}, "url='http://x y/v1': must be .* without spaces"),
        ({"url": "http://x%20y/v1"}, "url='http://x%20y/v1': must be .* without spaces"),
        ({"url": "http:// /v1"}, "without spaces"),
        ({"url": "http://x/v1?key=1"}, "url: must hold"),
        ({"url": "http://user:word@x/v1"}, "neither user nor password"),
        ({"model": ""}, "model=''"),
        ({"tries": 0}, "tries=0: must be an integer from 1 up"),
        ({"tries": 2.5}, "tries=2.5: must be an integer from 1 up"),
        ({"token_limit": -1}, "token_limit=-1: must be finite and at least 0"),
        ({"prices": (1.0, math.nan)}, r"prices=\(1.0, nan\): allowed are two finite numbers"),
        ({"prices": (1.0,)}, r"prices=\(1.0,\): allowed are two finite numbers"),
        ({"cost_limit": 5.0}, "cost_limit=5: needs prices above 0"),
        ({"extra": "{"}, "extra='{': a JSON object is needed"),
        ({"extra": "[1]"}, "a JSON object is needed"),
        ({"extra": '{"seed": 1}'}, r"extra: \['seed'\] cannot be among its fields"),
        *(
            ({"timeout": bad}, f"timeout={bad}: must be finite")
            for bad in (0, -1, math.inf, math.nan)
        ),
    ):
        with pytest.raises(ValueError, match=message):
            Endpoint(**{"url": "http://x/v1", "model": "m", **options})
