"""Solvers that answer a benchmark: local models, models behind a server, and oracles."""

import abc
import argparse
import dataclasses
import functools
import hashlib
import itertools
import multiprocessing.pool
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from engineer.designers import NoAnswerError
from engineer.endpoint import Endpoint, RefusedError
from experiments import settings as settings_lib
from experiments.benchmark.oracles import ORACLES
from experiments.benchmark.questions import BenchmarkQuestions
from experiments.configs import tiny
from experiments.run import versions
from experiments.run.checkpoint import RunCheckpoint, find_checkpoint
from experiments.run.policy import Policy, load_params, load_policy
from experiments.settings import MeshSettings, ModelSettings, Settings
from experiments.text.errors import UserError, user_errors
from learner import tokens
from learner.decoder import hub, weights
from learner.decoder.config import DecoderConfig
from learner.sampling.completer import Completer
from learner.sampling.sampler import SamplingParams
from learner.training.grpo_config import GRPOConfig
from mapf_jax.padding import BLOCK

ENDPOINT = "endpoint:"
START = "start"
"""RUN@START is the initial model of a run, with the run's options for sampling."""
# Estimate for servers with an unknown tokenizer; prompts are mostly numbers and single letters.
_CHARACTERS_PER_TOKEN = 3
_CONSECUTIVE_FAILURES = 20
_FAILURES_AT_FIRST = 3  # For a server that has never answered: wrong address, or it is down.

Options = argparse.Namespace
"""The options of the command; its `--help` explains each.

None selects the default of the model's run, checkpoint or server.
"""


@dataclasses.dataclass(frozen=True)
class Given:
    """The result of asking one question.

    Attributes:
      question: its index.
      text: the answer; None if there is none, which does not count as a wrong answer.
      tokens: length of the answer, reasoning included; None if unknown.
      prompt_tokens: length of the question; None if unknown.
      truncated: the answer ran out of budget; None if unknown.
      note: why there is no answer, or a remark on it.
      refused: there is no answer because the server refused the request itself.
    """

    question: int
    text: str | None
    tokens: int | None = None
    prompt_tokens: int | None = None
    truncated: bool | None = None
    note: str = ""
    refused: bool = False


class Solver(abc.ABC):
    """Answers questions.

    Attributes:
      options: everything that its answers depend on except the instances, JSON-able.
    """

    options: dict[str, Any]

    def forecast(self, questions: BenchmarkQuestions, indices: np.ndarray) -> list[str]:
        """Lines for people before the answers, such as an estimate of the cost where it is known.

        Raises:
          UserError: the cost may exceed the limit.
        """
        return []

    def generate(self, chat: Sequence[Mapping[str, str]], seed: int) -> str:
        """One answer to any chat.

        Raises:
          NoAnswerError: there is none.
          UserError: this solver answers no chats, or not with these options.
        """
        raise UserError(f"model={self.options['model']}: it answers nothing but the benchmark")

    @abc.abstractmethod
    def answer(self, questions: BenchmarkQuestions, indices: np.ndarray) -> Iterator[list[Given]]:
        """Yields the results of the questions in `indices` (int[n]) as they arrive, in any order.

        Raises:
          UserError: the model cannot be used with these options.
        """


def make_solver(spec: str, options: Options) -> Solver:
    """The solver that a `--model` names.

    Args:
      spec: an oracle's name, "endpoint:URL#MODEL", "tiny", a run's folder, "RUN:STEP",
        "RUN@ROUND", or a checkpoint's folder or name on the hub.
      options: of the command.

    Raises:
      UserError: there is no such model, or it does not accept the options.
    """
    if spec in ORACLES:
        return OracleSolver(spec, options)
    if spec.startswith(ENDPOINT):
        return EndpointSolver(spec, options)
    return LocalSolver(spec, options)


class OracleSolver(Solver):
    """A planner that reads the instances directly; it uses no option except the seed."""

    def __init__(self, name: str, options: Options) -> None:
        self._oracle, self._seed = ORACLES[name], options.seed
        self.options = {"kind": "oracle", "model": name}
        if self._oracle.random:
            self.options |= {"seed": options.seed}

    def answer(self, questions: BenchmarkQuestions, indices: np.ndarray) -> Iterator[list[Given]]:
        """Yields blocks of answers."""
        for first in range(0, len(indices), BLOCK):
            block = indices[first : first + BLOCK]
            texts = self._oracle.answers(
                questions.instances[block], questions.keys(self._seed, block)
            )
            yield [Given(int(question), text) for question, text in zip(block, texts, strict=True)]


class LocalSolver(Solver):
    """A model on this machine, sampled as in the validation of a run.

    Args:
      spec: "tiny", a run's folder, "RUN:STEP", "RUN@ROUND", "RUN@start", or a checkpoint's folder.
      options: of the command; None selects the run's option or the checkpoint's recommendation.

    Raises:
      UserError: there is no such model, or a value is not allowed.
    """

    def __init__(self, spec: str, options: Options) -> None:
        self._checkpoint: RunCheckpoint | None = None
        settings, source = self._read(spec)
        validation, training = settings.validation, settings.training
        recommended: Mapping[str, Any] = {}
        if source["kind"] == "folder":
            with user_errors():
                recommended = weights.read_generation_config(settings.model.folder) or {}
            if recommended.get("do_sample") is False:
                recommended = {"temperature": 0.0}
        chosen = {
            "list_holes": settings.lakes.list_holes,
            "thinking_tokens": validation.thinking_tokens,
            "max_new_tokens": validation.max_new_tokens,
            "temperature": recommended.get("temperature", validation.temperature),
            "top_p": recommended.get("top_p", 1.0),
            "top_k": recommended.get("top_k", 0),
            "dtype": settings.model.dtype,
            "mesh": settings.mesh,
            "slots": training.sampling_slots,
        }
        given = vars(options)
        chosen |= {name: given[name] for name in chosen if given[name] is not None}
        with user_errors():
            self._settings = dataclasses.replace(
                settings,
                model=dataclasses.replace(settings.model, dtype=chosen["dtype"]),
                mesh=chosen.pop("mesh"),
                training=dataclasses.replace(training, sampling_slots=chosen.pop("slots")),
            )
            names = ("max_new_tokens", "temperature", "top_p", "top_k")
            self._sampling = SamplingParams(**{name: chosen[name] for name in names})
        self.options = {**source, "seed": options.seed, **chosen}

    def _read(self, spec: str) -> tuple[Settings, dict[str, Any]]:
        """The model's settings, and the options that identify its weights."""
        run, _, which = spec.rpartition("@")
        kept = Path(run, "rounds", which, "weights")
        if spec == settings_lib.TINY_MODEL:
            kind, settings = "tiny", settings_lib.from_config(tiny.get_config())
        elif run and (which == START or kept.is_dir()):
            kind = "weights"
            settings = settings_lib.of_run(Path(run))
            if which != START:
                model = dataclasses.replace(settings.model, path=str(kept))
                settings = dataclasses.replace(settings, model=model)
        elif checkpoint := find_checkpoint(spec):
            self._checkpoint = checkpoint
            options = (checkpoint.run / "config.json").read_bytes()
            return checkpoint.settings, {
                "kind": "run",
                "model": str(checkpoint.run),
                "step": checkpoint.step,
                "config": hashlib.sha256(options).hexdigest(),
            }
        elif Path(spec, "config.json").is_file() or hub.is_fetched(spec):
            kind = "folder"
            with user_errors():
                settings = Settings(model=ModelSettings(path=spec))
                # Fetches what is not there yet.
                DecoderConfig.from_folder(hub.model_folder(spec))
        else:
            raise UserError(
                f"model={spec}: neither a run's folder (or RUN:STEP, RUN@ROUND) nor a "
                f"checkpoint's folder or hub name; allowed are also {settings_lib.TINY_MODEL!r}, "
                f"{ENDPOINT}URL#MODEL and the oracles {', '.join(ORACLES)}"
            )
        model, digest = settings.model, hashlib.sha256()
        for name, of_file in versions.model_files(model.folder).items():
            if name.endswith(".safetensors"):
                digest.update(bytes.fromhex(of_file))
        return settings, {"kind": kind, "model": model.path, "weights": digest.hexdigest()}

    def forecast(self, questions: BenchmarkQuestions, indices: np.ndarray) -> list[str]:
        """What the folder of the model, or of the one it was trained from, recommends in vain."""
        with user_errors():
            recommended = weights.read_generation_config(self._settings.model.folder)
        unused = weights.unused_generation_config(recommended)
        return [f"{self.options['model']}: {unused}"] if unused else []

    def answer(self, questions: BenchmarkQuestions, indices: np.ndarray) -> Iterator[list[Given]]:
        """Yields what does not fit, then answers as they finish, longest prompts first."""
        options = self.options
        completer, params = self._loaded
        chats = [questions.chat(int(question), options["list_holes"]) for question in indices]
        fits = np.array([completer.fits(chat) for chat in chats], bool)
        note = "the prompt and a whole answer do not fit the model's window"
        yield [
            Given(int(question), "", 0, truncated=True, note=note) for question in indices[~fits]
        ]
        asked = indices[fits]
        chats = [chat for chat, fit in zip(chats, fits, strict=True) if fit]
        for i, answer in completer.stream(params, chats, questions.keys(options["seed"], asked)):
            question = int(asked[i])
            yield [Given(question, answer.text, answer.num_tokens, truncated=answer.truncated)]

    @functools.cached_property
    def _loaded(self) -> tuple[Completer, Any]:
        """The completer and the parameters."""
        settings, options = self._settings, self.options
        with user_errors():
            policy, completer = _load(
                settings.model,
                settings.mesh,
                self._sampling,
                settings.training,
                options["thinking_tokens"],
            )
            if self._checkpoint is None:
                return completer, load_params(settings, policy)
            return completer, self._checkpoint.load(policy)

    def generate(self, chat: Sequence[Mapping[str, str]], seed: int) -> str:
        """Samples as for the benchmark; no answer if the chat does not fit the window."""
        completer, params = self._loaded
        if not completer.fits(chat):
            raise NoAnswerError("the chat and a whole answer do not fit the model's window")
        (completion,) = completer(params, [chat], jax.random.key(seed))
        return completion.text


class EndpointSolver(Solver):
    """A model behind a server that speaks OpenAI's chat completions protocol, asked zero-shot.

    Args:
      spec: "endpoint:URL#MODEL".
      options: of the command.

    Raises:
      UserError: the address is invalid, or an option applies only to local models.
    """

    def __init__(self, spec: str, options: Options) -> None:
        url, _, model = spec.removeprefix(ENDPOINT).partition("#")
        for name in ("thinking_tokens", "top_p", "top_k"):
            if getattr(options, name) is not None:
                raise UserError(
                    f"{name}={getattr(options, name)}: not for {spec}, which takes what it knows "
                    "of that by --extra; models on this machine go into a start of their own"
                )
        budget = options.max_new_tokens or settings_lib.ValidationSettings().max_new_tokens
        self._options, self._budget = options, budget
        self._list_holes = bool(options.list_holes)
        with user_errors():
            self._endpoint = Endpoint(
                url,
                model,
                key_variable=options.key_variable,
                timeout=options.timeout,
                tries=options.tries,
                max_tokens=budget,
                temperature=options.temperature,
                extra=options.extra,
                prices=(options.price_in or 0.0, options.price_out or 0.0),
            )
        self.options = {
            "kind": "endpoint",
            "model": model,
            "url": url,
            "seed": options.seed,
            "list_holes": self._list_holes,
            "max_new_tokens": budget,
            "temperature": options.temperature,
            "extra": self._endpoint.extra_fields,
        }

    def forecast(self, questions: BenchmarkQuestions, indices: np.ndarray) -> list[str]:
        """Upper bounds on tokens and, if prices are known, on cost; excludes failed requests."""
        chats = (questions.chat(int(question), self._list_holes) for question in indices)
        characters = sum(len(chat[0]["content"]) for chat in chats)
        asked, given = characters // _CHARACTERS_PER_TOKEN, len(indices) * self._budget
        lines = [
            f"{len(indices):,} questions to {self._endpoint.model}: about {asked:,} prompt tokens "
            f"(one for every {_CHARACTERS_PER_TOKEN} characters), at most {given:,} answer tokens "
            f"({self._budget:,} each)"
        ]
        price_in, price_out = self._options.price_in, self._options.price_out
        if price_in is None or price_out is None:
            return [*lines, "  the price of a token is not known: --price_in, --price_out"]
        cost, most = self._endpoint.cost(asked, given), self._options.max_cost
        if most is not None and cost > most:
            raise UserError(
                f"max_cost={most:g}: {len(indices)} answers may cost {cost:,.2f}; allow that, or "
                "take a smaller --max_new_tokens, --limit or --per_cell"
            )
        return [
            *lines,
            f"  at most about {cost:,.2f} at {price_in:g} and {price_out:g} a million tokens; "
            "tries that fail come on top if the server counts them",
        ]

    def answer(self, questions: BenchmarkQuestions, indices: np.ndarray) -> Iterator[list[Given]]:
        """Sends several requests at a time and yields each answer as it arrives.

        Raises:
          UserError: the server refuses before its first answer, or too many consecutive requests
            fail.
        """
        seeds = jax.vmap(jax.random.bits)(questions.keys(self._options.seed, indices)).tolist()
        ask = functools.partial(self._ask, questions)
        # If an earlier start has answers, the rest may be exactly the questions it refuses.
        known, failures = len(indices) < len(questions), 0
        asked = zip(indices.tolist(), seeds, strict=True)
        # Its threads are daemons, so that an interrupt does not wait for pending requests.
        with multiprocessing.pool.ThreadPool(self._options.concurrency) as pool:

            def replies() -> Iterator[Given]:
                """Sends the first request alone if no answer is known: the server may refuse."""
                yield from map(ask, itertools.islice(asked, 0 if known else 1))
                yield from pool.imap_unordered(ask, asked)

            for given in replies():
                if given.refused and not known:
                    raise UserError(f"model={ENDPOINT}{self._endpoint.url}: {given.note}")
                known = known or given.text is not None
                failures = 0 if given.text is not None else failures + 1
                yield [given]
                if failures == (_CONSECUTIVE_FAILURES if known else _FAILURES_AT_FIRST):
                    raise UserError(
                        f"model={ENDPOINT}{self._endpoint.url}: {failures} consecutive requests "
                        f"have failed, the last one: {given.note}; what was answered is kept"
                    )

    def generate(self, chat: Sequence[Mapping[str, str]], seed: int) -> str:
        """Sends the chat with the same options as for the benchmark."""
        with user_errors():
            return self._endpoint(chat, seed)

    def _ask(self, questions: BenchmarkQuestions, question_and_seed: tuple[int, int]) -> Given:
        question, seed = question_and_seed
        try:
            reply = self._endpoint.ask(questions.chat(question, self._list_holes), seed)
        except (NoAnswerError, RefusedError) as error:
            return Given(question, None, note=str(error), refused=isinstance(error, RefusedError))
        truncated = reply.finish == "length" if reply.finish else None
        return Given(question, reply.text, reply.completion_tokens, reply.prompt_tokens, truncated)


@functools.lru_cache(maxsize=1)
def _load(
    model: ModelSettings,
    mesh: MeshSettings,
    sampling: SamplingParams,
    training: GRPOConfig,
    thinking_tokens: int,
) -> tuple[Policy, Completer]:
    """A model and its completer, cached because the next checkpoint needs the same programs."""
    policy = load_policy(Settings(model=model, mesh=mesh))
    budget = tokens.thinking_budget(policy.tokenizer, thinking_tokens, sampling.max_new_tokens)
    sampling = dataclasses.replace(sampling, thinking=budget)
    return policy, policy.completer(sampling, training, thinking=thinking_tokens > 0)
