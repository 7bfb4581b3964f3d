"""Complete one chat message on the terminal, as the completion is generated.

    python -m learner.generate --model=Qwen/Qwen3-0.6B --prompt="Why is the sky blue?" --thinking

The completion goes to standard output; why it ended, and how fast it was, to standard error.
"""

import argparse
import io
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

import jax

from learner import checks, tokens
from learner.decoder import hub, weights
from learner.decoder.attention import choose
from learner.decoder.config import DTYPES, DecoderConfig
from learner.devices import draws, sharding
from learner.sampling.completer import Completer
from learner.sampling.sampler import Chunk, FinishReason, SamplingParams

# Tokens generated before the host prints them: few, so that the text flows.
_SEGMENT_TOKENS = 8
_DEFAULT_NEW_TOKENS = 1024


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m learner.generate", description="Complete one chat message."
    )
    add = parser.add_argument
    add("--model", required=True, help="a checkpoint folder, or a name on the Hugging Face hub")
    add("--prompt", required=True, help="the user's message; - reads it from standard input")
    add("--system", help="the system message")
    add("--thinking", action="store_true", help="let the model think before it answers")
    add("--thinking_tokens", type=int, help="the most tokens of thought; no limit by default")
    add("--max_new_tokens", type=int, help=f"budget; {_DEFAULT_NEW_TOKENS} or what fits by default")
    for name, kind, text in (
        ("temperature", float, "0 takes the most likely token"),
        ("top_k", int, "candidates; 0 is off"),
        ("top_p", float, "nucleus; 1 is off"),
        ("min_p", float, "least fraction of the likeliest token's probability; 0 is off"),
    ):
        add(f"--{name}", type=kind, help=f"{text}; the checkpoint's own value by default")
    add("--seed", type=int, default=0)
    add("--dtype", choices=DTYPES, help="bfloat16 by default, on CPUs float32")
    add("--tensor", type=int, default=1, help="devices to split the model over")
    return parser


def sampling_params(
    arguments: argparse.Namespace, defaults: dict[str, Any], tokenizer: Any, capacity: int
) -> SamplingParams:
    """Options of the command line, else of the checkpoint's `generation_config.json`.

    Args:
        capacity: tokens that the model's window leaves for the completion.
    """
    chosen = {
        name: value if (value := getattr(arguments, name)) is not None else defaults.get(name)
        for name in ("temperature", "top_k", "top_p", "min_p")
    }
    for name, value in chosen.items():
        if value is not None and not isinstance(value, int | float):
            raise ValueError(f"{weights.GENERATION_FILE}: {name} is {value!r}; it must be a number")
    if arguments.temperature is None and defaults.get("do_sample") is False:
        chosen["temperature"] = 0.0
    limit = arguments.thinking_tokens
    if limit is not None and not arguments.thinking:
        raise ValueError(f"thinking_tokens is {limit}; it is for --thinking only")
    if limit is not None and limit < 1:
        raise ValueError(f"thinking_tokens is {limit}; it must be at least 1")
    budget = arguments.max_new_tokens
    if budget is None:
        budget = max(1, min(_DEFAULT_NEW_TOKENS, capacity))
    return SamplingParams(
        max_new_tokens=budget,
        thinking=tokens.thinking_budget(tokenizer, limit or 0, budget),
        **{name: value for name, value in chosen.items() if value is not None},
    )


def readable(tokenizer: Any, chunks: Iterator[Chunk]) -> Iterator[tuple[str, Chunk]]:
    """The text that each chunk adds; a character waits until all of its bytes are there."""
    ids: list[int] = []
    shown = ""
    for chunk in chunks:
        ids += chunk.tokens.tolist()
        text = tokens.decode(tokenizer, ids)
        if chunk.finish is None:
            text = text.rstrip("\ufffd")
        yield text[len(shown) :], chunk
        shown = text


def run(arguments: argparse.Namespace, out: TextIO, log: TextIO) -> None:
    """Load, complete, report.

    Raises:
        ValueError: an argument is invalid, or there is no such model.
    """
    checks.seeds(arguments, "seed")
    folder = hub.model_folder(arguments.model)
    dtype = arguments.dtype or ("float32" if jax.default_backend() == "cpu" else "bfloat16")
    config = DecoderConfig.from_folder(folder, dtype=dtype, param_dtype=dtype)
    tokenizer = tokens.load_tokenizer(folder)
    prompt = sys.stdin.read() if arguments.prompt == "-" else arguments.prompt
    messages = [{"role": "user", "content": prompt}]
    if arguments.system is not None:
        messages.insert(0, {"role": "system", "content": arguments.system})
    ids = tokens.encode_chat(tokenizer, messages, arguments.thinking)
    mesh = sharding.make_mesh(tensor=arguments.tensor)
    defaults = weights.read_generation_config(folder) or {}
    if unused := weights.unused_generation_config(defaults, "min_p"):
        print(f"[{unused}]", file=log)
    capacity = config.max_position_embeddings - len(ids)
    sampling = sampling_params(arguments, defaults, tokenizer, capacity)
    sampler = Completer(
        config,
        mesh,
        tokenizer,
        sampling,
        sampling_slots=1,
        thinking=arguments.thinking,
        segment_tokens=_SEGMENT_TOKENS,
    ).sampler
    params = weights.load(folder, config, mesh)

    begin = time.perf_counter()
    first, count, finish = begin, 0, FinishReason.LENGTH
    chunks = sampler.stream(params, [ids], jax.random.key(arguments.seed)[None])
    for text, chunk in readable(tokenizer, chunks):
        out.write(text)
        out.flush()
        if not count:
            first, early = time.perf_counter(), len(chunk.tokens)
        count += len(chunk.tokens)
        finish = finish if chunk.finish is None else chunk.finish
    seconds = time.perf_counter() - first
    out.write("\n")
    rest = count - early
    speed = f", then {rest / seconds:.1f} tokens/s" if rest else ""
    print(
        f"[{finish.name.lower().replace('_', ' ')}; {count} tokens after a prompt of {len(ids)}; "
        f"first {early} after {first - begin:.2f} s, compilation included{speed}; "
        f"{jax.devices()[0].device_kind}, {dtype}, {choose(config).name} attention]",
        file=log,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    draws.pin()
    parsed = _parser().parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):  # Its encoding may lack what a model writes.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        run(parsed, sys.stdout, sys.stderr)
    except (ValueError, OSError) as error:
        print(f"error: {checks.one_line(error)}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
