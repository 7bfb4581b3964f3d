"""Any model behind an OpenAI-compatible server, as something that answers chats.

The chat completions protocol over HTTP, with the standard library alone. Whatever a server does,
a call ends within its time and tries, with a text, with `NoAnswerError` (asking again may help),
or with a `RefusedError` that names what was refused. The key is read from the environment when it
is needed; it is sent to the configured server only, stands in no message and in no attribute.
"""

import contextlib
import dataclasses
import email.utils
import http.client
import json
import os
import socket
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from engineer.designers import NoAnswerError

MAX_BYTES = 16 << 20
"""Longest reply that is read; a longer one counts as broken."""
_CHUNK = 1 << 16
_TRANSIENT = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529})
_DETAIL = 200
_LONGEST_WAIT, _LONGEST_RETRY_AFTER = 60.0, 600.0


class RefusedError(ValueError):
    """The server refuses the request itself: address, key, model or parameters are not its own."""


@dataclasses.dataclass(frozen=True)
class Reply:
    """One answer, with what the server says about it.

    Attributes:
      text: the answer.
      finish: why it ended: "stop", "length" if its budget was used up, or what else the server
        says; empty if it says nothing.
      prompt_tokens, completion_tokens: what they count as at the server, reasoning included; None
      if
        it says nothing.
    """

    text: str
    finish: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _TransientError(Exception):
    """This attempt failed; `wait` is what the server asked for, in seconds."""

    def __init__(self, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


@dataclasses.dataclass(frozen=True)
class Endpoint:
    """A `Generate` that asks a server.

    Attributes:
      url: base address, such as "http://127.0.0.1:8000/v1".
      model: name that the server knows the model by.
      key_variable: environment variable that holds the key; without such a variable no key is
        sent, which is what local servers want.
      timeout: seconds that one request may take from first to last byte. Only the head of a reply
        may take longer, if its pieces come so long after each other.
      tries: requests for one answer, at least 1.
      backoff: seconds before the second request; doubled before each further one, up to 60. A
        server's Retry-After counts instead if it is longer, up to 600.
      max_tokens: budget of an answer; None leaves it to the server.
      budget_field: the field of a request that holds it; "max_completion_tokens" for servers that
        want that instead.
      temperature: of sampling; None leaves it to the server.
      stream: ask for the answer piece by piece, which keeps connections alive under long
        reasoning.
      extra: further fields of every request, such as {"reasoning_effort": "low"}.
      sleep: waits; a test may replace it.

    Raises:
      ValueError: a field is out of its range.
    """

    url: str
    model: str
    key_variable: str = "OPENAI_API_KEY"
    timeout: float = 300.0
    tries: int = 5
    backoff: float = 1.0
    max_tokens: int | None = None
    budget_field: str = "max_tokens"
    temperature: float | None = None
    stream: bool = False
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    sleep: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        parts = urllib.parse.urlsplit(self.url)
        try:
            _ = parts.port
        except ValueError as error:
            raise ValueError(f"url={self.url!r}: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url={self.url!r}: an address with http:// or https:// is needed")
        if parts.username or parts.password or parts.query:
            raise ValueError("url: must hold neither user nor password nor query")
        if not self.model:
            raise ValueError("model='': the name of a model is needed")
        if self.tries < 1 or not self.timeout > 0 or self.backoff < 0:
            raise ValueError(
                f"tries={self.tries}, timeout={self.timeout}, backoff={self.backoff}: allowed are "
                "tries from 1, a timeout above 0, and a backoff from 0"
            )
        own = {"model", "messages", "seed", "temperature", "stream", self.budget_field}
        if taken := sorted(own & self.extra.keys()):
            raise ValueError(
                f"extra: {taken} cannot be among its fields, they have their own place"
            )

    def __call__(self, messages: Sequence[Mapping[str, str]], count: int, seed: int) -> list[str]:
        """`count` answers to one chat, each from a request with a seed of its own.

        Raises:
          NoAnswerError: every try failed for a passing reason (time-out, overload, a broken reply).
          RefusedError: the server refuses the request itself (address, key, model, parameters).
        """
        return [self.ask(messages, seed + i).text for i in range(count)]

    def ask(self, messages: Sequence[Mapping[str, str]], seed: int) -> Reply:
        """One answer to one chat; may be called from several threads.

        Raises:
          NoAnswerError, RefusedError: as a call.
        """
        body: dict[str, Any] = {
            **self.extra,
            "model": self.model,
            "messages": [dict(message) for message in messages],
            "seed": seed % (1 << 31),
        }
        for name, value in (
            (self.budget_field, self.max_tokens),
            ("temperature", self.temperature),
        ):
            if value is not None:
                body[name] = value
        if self.stream:
            body["stream"] = True
        reasons = []
        for attempt in range(self.tries):
            try:
                return self._request(json.dumps(body).encode())
            except _TransientError as error:
                reasons.append(str(error))
                if attempt + 1 < self.tries:
                    wait = min(self.backoff * 2.0**attempt, _LONGEST_WAIT)
                    self.sleep(max(wait, min(error.wait or 0.0, _LONGEST_RETRY_AFTER)))
        raise NoAnswerError(f"{self.url} gave no answer: {'; '.join(reasons)}")

    def _request(self, body: bytes) -> Reply:
        key = os.environ.get(self.key_variable, "")
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        if not (key.isascii() and key.isprintable()):
            raise RefusedError(
                f"{self.key_variable}: the key must be of printable ASCII characters"
            )
        # Neither redirects nor proxies, which would carry the key to another address.
        address = urllib.parse.urlsplit(self.url)
        https = address.scheme == "https"
        connect = http.client.HTTPSConnection if https else http.client.HTTPConnection
        connection = connect(address.hostname or "", address.port, timeout=self.timeout)
        deadline = time.monotonic() + self.timeout
        connected = False
        try:
            with contextlib.closing(connection):
                connection.connect()
                connected, link = True, connection.sock
                link.settimeout(_left(deadline))
                path = address.path.rstrip("/") + "/chat/completions"
                connection.request("POST", path, body, headers)
                reply = connection.getresponse()
                if not 200 <= reply.status < 300:
                    raise self._refusal(reply, key)
                raw = _read(reply, link, deadline)
        except TimeoutError:
            raise _TransientError(f"no answer within {self.timeout:g} s") from None
        except (http.client.HTTPException, OSError) as error:
            what = "the reply broke off" if connected else "no connection"
            raise _TransientError(f"{what} ({type(error).__name__})") from None
        return _streamed(raw) if self.stream else _whole(raw)

    def _refusal(self, reply: http.client.HTTPResponse, key: str) -> Exception:
        """What an error status means; without the key, even if the server repeats it."""
        try:
            detail = reply.read(4096).decode("utf-8", "replace")
        except (http.client.HTTPException, OSError):
            detail = ""
        if key:
            detail = detail.replace(key, "***")
        detail = " ".join(detail.split())[:_DETAIL]
        if reply.status in _TRANSIENT:
            return _TransientError(f"status {reply.status}", _seconds(reply.headers))
        return RefusedError(
            f"endpoint {self.url}, model {self.model!r}, key from {self.key_variable} "
            f"({'set' if key else 'not set'}): refused with status {reply.status}: {detail}"
        )


def _left(deadline: float) -> float:
    """Seconds up to the deadline, more than 0."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _read(reply: http.client.HTTPResponse, link: socket.socket, deadline: float) -> bytes:
    """The whole body, within the deadline: a server that drips byte by byte is no exception."""
    parts, size = [], 0
    while not reply.isclosed():
        link.settimeout(_left(deadline))
        part = reply.read1(_CHUNK)
        if not part:
            break
        parts.append(part)
        size += len(part)
        if size > MAX_BYTES:
            raise _TransientError(f"the reply is longer than {MAX_BYTES} bytes")
    if reply.length:  # bytes that were announced and did not come
        raise http.client.IncompleteRead(b"")
    return b"".join(parts)


def _whole(raw: bytes) -> Reply:
    reply = _json(raw)
    return _ended(_content(reply, "message"), _finish(reply), _usage(reply))


def _streamed(raw: bytes) -> Reply:
    """The answer in server-sent events; only one that says it is finished counts."""
    texts, finished, finish = [], False, ""
    used: tuple[int | None, int | None] = (None, None)
    for line in raw.decode("utf-8", "replace").splitlines():
        data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
        if data == "[DONE]":
            finished = True
        elif data:
            event = _json(data.encode())
            if isinstance(event, dict):
                used = _usage(event) if event.get("usage") else used
                if event.get("choices") == []:
                    continue  # an event with the usage alone
            texts.append(_content(event, "delta"))
            finish = _finish(event) or finish
            finished = finished or bool(finish)
    if not finished:
        raise _TransientError("the stream broke off")
    return _ended("".join(texts), finish, used)


def _ended(text: str, finish: str, used: tuple[int | None, int | None]) -> Reply:
    """A reply, unless what ended it is an error behind the server, as routers report them."""
    if finish == "error":
        raise _TransientError("the answer ended in an error")
    return Reply(text, finish, *used)


def _json(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        raise _TransientError("the reply is no JSON") from None


def _content(reply: Any, field: str) -> str:
    try:
        content = reply["choices"][0][field].get("content")
    except (KeyError, IndexError, TypeError, AttributeError):
        raise _TransientError("the reply has no choice with a message") from None
    if content is None:
        return ""
    if not isinstance(content, str):
        raise _TransientError("the content of the reply is no text")
    return content


def _finish(reply: Any) -> str:
    """Why the answer ended; after `_content` has found the choice."""
    finish = reply["choices"][0].get("finish_reason")
    return finish if isinstance(finish, str) else ""


def _usage(reply: Any) -> tuple[int | None, int | None]:
    """Tokens of the prompt and of the answer, where the server counts them."""
    usage = reply.get("usage")
    counts = usage if isinstance(usage, dict) else {}
    prompt, answer = counts.get("prompt_tokens"), counts.get("completion_tokens")
    return (
        prompt if isinstance(prompt, int) else None,
        answer if isinstance(answer, int) else None,
    )


def _seconds(headers: Any) -> float | None:
    """Retry-After in seconds, whether it is a number of them or a date (RFC 9110, 10.2.3)."""
    text = headers.get("Retry-After", "")
    with contextlib.suppress(ValueError):
        return max(float(text), 0.0)
    try:
        until = email.utils.parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None
    return max(until - time.time(), 0.0)
