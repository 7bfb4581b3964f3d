"""Any model behind an OpenAI-compatible server, as a function that answers chats.

Whatever a server does, a call ends within its time and tries with a text, with `NoAnswerError`
(asking again may help), or with a `RefusedError` that names what was refused. The key is read from
the environment when it is needed; it is sent to the configured server only, and never appears in a
message, text or attribute.

The package `openai` (3.57 was tried) does not keep this promise, on any client given to it: a reply
of 200 MB is held whole, and a compressed one outlasts the deadline while it is unpacked; a stream
that breaks off ends like a whole answer; a cut JSON object or a wrong byte raises an error of the
decoder, without a retry; a Retry-After above two minutes is an error.
"""

import asyncio
import contextlib
import dataclasses
import email.utils
import functools
import json
import logging
import math
import multiprocessing
import os
import random
import re
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import httpx

from engineer.designers import NoAnswerError

MAX_BYTES = 16 << 20
"""Longest accepted reply; a longer one counts as broken."""
_MAX_TOKENS = 1 << 53
_TRANSIENT = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529})
_DETAIL = 200
_LONGEST_WAIT, _LONGEST_RETRY_AFTER = 60.0, 600.0
_UNWANTED = frozenset({400, 422})  # Statuses that may be about a field of the request.
_UNKNOWN_FIELD = re.compile(
    "unsupported|not support|unrecogni[sz]ed|unknown|unexpected|not permitted|not allowed",
    re.IGNORECASE,
)
_BUDGET_FIELDS = ("max_tokens", "max_completion_tokens")
_CHARACTERS = 3  # Per token, where a server does not count.
_LINE_END = re.compile(r"\r\n|\n|\r")
_certificates = functools.cache(ssl.create_default_context)
"""Uses the system's certificates, which may include a company's own."""


class RefusedError(ValueError):
    """The server refuses the request itself: its address, key, model or parameters are wrong."""


@dataclasses.dataclass(frozen=True)
class Reply:
    """One answer with its metadata.

    Attributes:
      text: the answer.
      finish: the server's finish reason, such as "stop", or "length" if the budget was used up;
        empty if it gives none.
      prompt_tokens: tokens of the prompt as the server counts them; None if not credible.
      completion_tokens: likewise of the answer, reasoning included.
    """

    text: str
    finish: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _FieldError(Exception):
    """The server does not know these optional fields of the request."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(", ".join(names))
        self.names = names


class _TransientError(Exception):
    """This attempt failed; the server asks to wait for `wait` seconds."""

    def __init__(self, reason: str, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.wait = wait


@dataclasses.dataclass(frozen=True)
class Server:
    """A server that speaks OpenAI's chat completions protocol.

    Attributes:
      url: base address, such as "http://127.0.0.1:8000/v1".
      model: the server's name for the model.
      key_variable: environment variable that holds the key; it is read when it is needed and
        written nowhere. If it is not set no key is sent, as local servers expect.
      timeout: seconds that one request may take, from connecting to the last byte.
      tries: requests for one answer, at least 1.
      stream: ask for the answer as a stream of events, which keeps connections alive during long
        reasoning.
      extra: further fields of every request, a JSON object such as {"reasoning_effort": "low"}.
      token_limit: tokens of prompts and completions, as the server counts them, after which a run
        sends no more requests; 0 is no limit. A run that it stopped resumes with a higher one.
      cost_limit: the same for their cost, in the currency of the prices.
      prices: of a million prompt tokens and of a million completion tokens, for `cost_limit`.

    Raises:
      ValueError: a field is out of its range.
    """

    url: str = ""
    model: str = ""
    key_variable: str = "OPENAI_API_KEY"
    timeout: float = 300.0
    tries: int = 8
    stream: bool = False
    extra: str = "{}"
    token_limit: int = 0
    cost_limit: float = 0.0
    prices: tuple[float, ...] = (0.0, 0.0)

    def __post_init__(self) -> None:
        for name in ("token_limit", "cost_limit"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}={getattr(self, name)}: must be finite and at least 0")
        if len(self.prices) != 2 or not all(0 <= price < math.inf for price in self.prices):
            raise ValueError(
                f"prices={self.prices}: allowed are two finite numbers from 0 up, for prompt and "
                "completion tokens"
            )
        if self.cost_limit and not self.cost(1, 1):
            raise ValueError(f"cost_limit={self.cost_limit:g}: needs prices above 0")
        if type(self.tries) is not int or self.tries < 1:
            raise ValueError(f"tries={self.tries!r}: must be an integer from 1 up")
        if not 0 < self.timeout < math.inf:
            raise ValueError(f"timeout={self.timeout}: must be finite and above 0")
        own = {"model", "messages", "seed", "temperature", "stream", *_BUDGET_FIELDS}
        if taken := sorted(own & self.extra_fields.keys()):
            raise ValueError(
                f"extra: {taken} cannot be among its fields, they have their own place"
            )

    @property
    def extra_fields(self) -> dict[str, Any]:
        """The further fields of a request.

        Raises:
          ValueError: `extra` is no JSON object.
        """
        fields = None
        with contextlib.suppress(ValueError, RecursionError):
            fields = json.loads(self.extra)
        if not isinstance(fields, dict):
            raise ValueError(f"extra={self.extra!r}: a JSON object is needed")
        return fields

    def cost(self, prompt_tokens: int, completion_tokens: int) -> float:
        """What tokens cost at the server's prices."""
        of_prompts, of_completions = self.prices
        return (prompt_tokens * of_prompts + completion_tokens * of_completions) / 1e6


@dataclasses.dataclass(frozen=True)
class Endpoint(Server):
    """A `Generate` that asks a server.

    Retries back off exponentially from 1 to 60 seconds with up to 25 % jitter. A longer Retry-After
    of the server takes precedence, up to 600 seconds.

    If the server does not know the seed or the temperature, later requests leave them out; if it
    does not know the budget, they send it under the other of its two usual names. A warning says
    so.

    Attributes:
      max_tokens: budget of an answer; None leaves it to the server.
      temperature: of sampling; None leaves it to the server.
      usage: JSON lines file with the tokens of every reply, for the limits; None counts nothing.
      sleep: waits between requests; tests replace it.

    Raises:
      ValueError: a field is out of its range, or there is no address or model.
    """

    max_tokens: int | None = None
    temperature: float | None = None
    usage: Path | None = None
    sleep: Callable[[float], None] = time.sleep
    _refused: set[str] = dataclasses.field(default_factory=set, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            url = httpx.URL(self.url)
        except httpx.InvalidURL as error:
            raise ValueError(f"url={self.url!r}: {error}") from None
        if url.userinfo or url.query or url.fragment:
            raise ValueError("url: must hold neither user nor password, query nor fragment")
        named = url.host and not re.search(r"\s|%20", url.host) and (url.port or 0) < 1 << 16
        if url.scheme not in ("http", "https") or not named:
            raise ValueError(
                f"url={self.url!r}: must be http(s)://HOST without spaces, with a port below 65536"
            )
        if not self.model:
            raise ValueError("model='': the name of a model is needed")

    def __call__(self, messages: Sequence[Mapping[str, str]], seed: int) -> str:
        """The text of one answer to a chat.

        Raises:
          NoAnswerError: every try failed for a transient reason (time-out, overload, broken reply).
          RefusedError: the server refuses the request itself (address, key, model, parameters).
        """
        return self.ask(messages, seed).text

    def ask(self, messages: Sequence[Mapping[str, str]], seed: int) -> Reply:
        """One answer to a chat, with its metadata; thread-safe.

        Raises:
          NoAnswerError, RefusedError: as in `__call__`.
        """
        reasons: list[str] = []
        if self.usage is not None:  # Before there is a reply to note, which may have cost.
            self.usage.parent.mkdir(parents=True, exist_ok=True)
        self._check_limits()
        while True:
            body = self._body(messages, seed)
            try:
                reply = self._request(body)
                self._note(messages, reply)
                return reply
            except _FieldError as error:
                self._refused.update(error.names)
                logging.warning("%s: asked without %s from now on", self.url, error)
            except _TransientError as error:
                reasons.append(str(error))
                if len(reasons) == self.tries:
                    raise NoAnswerError(
                        f"{self.url} gave no answer: {'; '.join(reasons)}"
                    ) from None
                wait = min(2.0 ** min(len(reasons) - 1, 60), _LONGEST_WAIT)
                wait *= random.uniform(1.0, 1.25)
                self.sleep(max(wait, min(error.wait, _LONGEST_RETRY_AFTER)))

    def _check_limits(self) -> None:
        """Raises a `RefusedError` if what this model has used reaches a limit."""
        asked, given = self._used()
        tokens, cost = asked + given, self.cost(asked, given)
        for name, used, told in (
            ("token_limit", tokens, f"used {tokens:,} tokens"),
            ("cost_limit", cost, f"cost {cost:,.2f}"),
        ):
            limit = getattr(self, name)
            if limit and used >= limit:
                raise RefusedError(
                    f"{name}={limit}: {self.model!r} at {self.url} has {told}; set a higher "
                    "limit to go on"
                )

    def _used(self) -> tuple[int, int]:
        """Prompt and completion tokens of all replies of this model, from the usage file.

        Raises:
          RefusedError: the file is damaged, so that it cannot hold a limit.
        """
        asked = given = 0
        if self.usage is None or not self.usage.exists():
            return asked, given
        for number, line in enumerate(self.usage.read_bytes().splitlines(), 1):
            try:
                noted = json.loads(line) if line.strip() else {}
                if (noted.get("url"), noted.get("model")) != (self.url, self.model):
                    continue
                counts: Any = noted.get("prompt_tokens"), noted.get("completion_tokens")
                if "tokens" in noted:  # Older: one number for both counts as the dearer kind.
                    counts = 0, noted["tokens"]
                if not all(type(count) is int and 0 <= count < 1 << 63 for count in counts):
                    raise ValueError(counts)
            except (ValueError, AttributeError, RecursionError) as error:
                if isinstance(error, json.JSONDecodeError) and line.startswith(b"{"):
                    continue  # A kill may truncate a line.
                raise RefusedError(
                    f"{self.usage}:{number}: damaged: allowed are JSON objects with the tokens of "
                    "a reply; mend or remove the line"
                ) from error
            asked, given = asked + counts[0], given + counts[1]
        return asked, given

    def _note(self, messages: Sequence[Mapping[str, str]], reply: Reply) -> None:
        if self.usage is None:
            return
        counts = [reply.prompt_tokens, reply.completion_tokens]
        texts = ["".join(message["content"] for message in messages), reply.text]
        asked, given = (
            len(text) // _CHARACTERS if count is None else count
            for count, text in zip(counts, texts, strict=True)
        )
        used = {"prompt_tokens": asked, "completion_tokens": given}
        noted = {"url": self.url, "model": self.model, **used}
        with self.usage.open("a", encoding="utf-8") as file:
            file.write("\n" + json.dumps(noted))  # Not behind a truncated line.

    def _body(self, messages: Sequence[Mapping[str, str]], seed: int) -> dict[str, Any]:
        """The fields of a request, without those that the server has refused."""
        budget = next((field for field in _BUDGET_FIELDS if field not in self._refused), None)
        optional = {"seed": seed % (1 << 31), "temperature": self.temperature}
        if budget is not None:
            optional[budget] = self.max_tokens
        return {
            **self.extra_fields,
            "model": self.model,
            "messages": [dict(message) for message in messages],
            **{
                name: value
                for name, value in optional.items()
                if value is not None and name not in self._refused
            },
            **({"stream": True} if self.stream else {}),
        }

    def _request(self, body: Mapping[str, Any]) -> Reply:
        key = os.environ.get(self.key_variable, "")
        if not (key.isascii() and key.isprintable() and key == key.strip()):
            raise RefusedError(
                f"{self.key_variable}: the key must be of printable ASCII characters"
            )
        try:
            # The exchange keeps the deadline; the extra second is for what cannot be cancelled.
            with ThreadPool(1) as pool:  # The caller may run an event loop of its own.
                exchange = pool.apply_async(asyncio.run, [self._exchange(body, key)])
                status, headers, raw = exchange.get(self.timeout + 1.0)
        except (TimeoutError, multiprocessing.TimeoutError):
            raise _TransientError(f"no answer within {self.timeout:g} s") from None
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise _TransientError(f"no connection ({type(error).__name__})") from None
        except (httpx.HTTPError, OSError) as error:
            raise _TransientError(f"the reply broke off ({type(error).__name__})") from None
        if status in _TRANSIENT:
            raise _TransientError(f"status {status}", _seconds(headers.get("Retry-After", "")))
        if not 200 <= status < 300:
            said = raw.decode("utf-8", "replace")
            if status in _UNWANTED and _UNKNOWN_FIELD.search(said):
                spare = ("seed", "temperature", *_BUDGET_FIELDS)
                named = [one for one in spare if one in body and one in said]
                if named:
                    raise _FieldError(named)
            detail = " ".join(_masked(said, key).split())[:_DETAIL]
            raise RefusedError(
                f"endpoint {self.url}, model {self.model!r}, key from {self.key_variable} "
                f"({'set' if key else 'not set'}): refused with status {status}: {detail}"
            )
        reply = _read(raw, self.stream, key)
        finish = _masked(_healed(reply.finish), key)
        return dataclasses.replace(reply, text=_masked(_healed(reply.text), key), finish=finish)

    async def _exchange(
        self, body: Mapping[str, Any], key: str
    ) -> tuple[int, httpx.Headers, bytes]:
        """Status, headers and body, all within the time-out, even if bytes trickle in."""
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        # No redirects or proxies: they would send the key to another address.
        client = httpx.AsyncClient(verify=_certificates(), trust_env=False, timeout=None)
        address = self.url.rstrip("/") + "/chat/completions"
        asked = client.stream("POST", address, content=json.dumps(body), headers=headers)
        raw = bytearray()
        async with asyncio.timeout(self.timeout), client, asked as reply:
            async for part in reply.aiter_raw():
                raw += part
                if len(raw) > MAX_BYTES:
                    raise _TransientError(f"the reply is longer than {MAX_BYTES} bytes")
        return reply.status_code, reply.headers, bytes(raw)


def _healed(text: str) -> str:
    """The text without lone surrogates, such as the JSON escape \\ud83d."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _masked(text: str, key: str) -> str:
    """The text without the key, which a server may echo."""
    return text.replace(key, "***") if key else text


def _read(raw: bytes, stream: bool, key: str) -> Reply:
    """The reply in a body: one JSON object, or server-sent events. Errors leave out the key."""
    stream = stream and not raw.lstrip().startswith(b"{")  # Some servers stream nothing.
    events: Sequence[str | bytes] = [raw]
    finished = not stream
    if stream:
        lines = _LINE_END.split(raw.decode("utf-8", "replace"))
        data = [line.removeprefix("data:").strip() for line in lines if line.startswith("data:")]
        events = [one for one in data if one not in ("", "[DONE]")]
        finished = "[DONE]" in data
    texts, finish = [], ""
    used: tuple[int | None, int | None] = (None, None)
    try:
        for event in map(json.loads, events):
            if event.get("usage"):
                used = _count(event["usage"], "prompt"), _count(event["usage"], "completion")
            if stream and event.get("choices") == []:
                continue  # an event with the usage alone
            if (error := event.get("error")) and not event.get("choices"):  # With status 200.
                raise _TransientError(f"the server says: {_masked(str(error), key)[:_DETAIL]}")
            choice = event["choices"][0]
            message = (choice.get("delta") or {}) if stream else choice["message"]
            content = message.get("content")
            if isinstance(content, list):  # Parts; those of other types are not of the answer.
                content = "".join(part["text"] for part in content if part["type"] == "text")
            texts.append("" if content is None else content)
            finish = choice.get("finish_reason") or finish
        text = "".join(texts)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise _TransientError("the reply is no chat completion") from None
    if not (finished or finish):
        raise _TransientError("the stream broke off")
    if finish == "error":  # an error behind the server, as routers report them
        raise _TransientError("the answer ended in an error")
    return Reply(text, finish if isinstance(finish, str) else "", *used)


def _count(usage: Any, of: str) -> int | None:
    """Tokens as the server counts them; None if not credible."""
    count = usage.get(f"{of}_tokens") if isinstance(usage, dict) else None
    return count if type(count) is int and 0 <= count < _MAX_TOKENS else None


def _seconds(retry_after: str) -> float:
    """Retry-After, a number of seconds or a date (RFC 9110, 10.2.3), in seconds."""
    with contextlib.suppress(ValueError):
        return max(float(retry_after), 0.0)
    with contextlib.suppress(ValueError, OverflowError):
        return max(email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time(), 0.0)
    return 0.0
