"""The engines that `experiments.speed.trainer` compares, each in a process of its own.

Same protocol as `sampler_engines`: `python trainer_engines.py ENGINE TASK.json`, "ready", then one
measurement as a line of JSON for every line of input.
"""

import queue
import threading
import time
from typing import Any

from experiments.speed.sampler_engines import Measure, Task, main


def reward(text: str) -> float:
    """The share of characters with an even number: as cheap for one engine as for the other."""
    return sum(ord(character) % 2 == 0 for character in text) / max(len(text), 1)


# This project's trainer -------------------------------------------------------


class _Prompts:
    """The task of the benchmark: given prompts, `reward`."""

    def __init__(self, prompts: list[str]) -> None:
        self._prompts = prompts

    def __len__(self) -> int:
        return len(self._prompts)

    def messages(self, index: int) -> Any:
        return [{"role": "user", "content": self._prompts[index]}]

    def score(self, indices: Any, answers: Any) -> Any:
        import numpy as np

        from learner.training.task import Scores

        del indices
        return Scores(np.array([reward(answer.text) for answer in answers], np.float32))

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: Any) -> None:
        del state


def _own(task: Task) -> tuple[Any, Any]:
    """(trainer, state) of the task's model and options."""
    import jax

    from experiments import allocator
    from learner import tokens
    from learner.devices import sharding
    from learner.qwen3 import model, weights
    from learner.qwen3.config import Qwen3Config
    from learner.training.train_state import OptimizerConfig
    from learner.training.trainer import GRPOConfig, GRPOTrainer

    allocator.keep_freed_memory()
    mesh = sharding.make_mesh()
    if "architecture" in task:
        config = Qwen3Config(**task["architecture"])
        params = model.init_params(jax.random.key(0), config)
    else:
        config = Qwen3Config.from_folder(task["folder"], scan_unroll=task["scan_unroll"])
        params = weights.load(task["folder"], config, mesh)
    training = GRPOConfig(
        prompts_per_step=task["num_prompts"],
        group_size=task["group_size"],
        completions_per_row=task["completions_per_row"],
        micro_batch_rows=task["micro_batch_rows"],
        length_multiple=task["length_multiple"],
        max_new_tokens=task["new_tokens"],
        degenerate_groups="keep",
        optimizer=OptimizerConfig(learning_rate=1e-6, moment_dtype=task["moment_dtype"]),
    )
    tokenizer = tokens.load_tokenizer(task["folder"])
    trainer = GRPOTrainer(training, config, mesh, tokenizer)
    return trainer, trainer.init_state(params, jax.random.key(0))


def own(task: Task) -> Measure:
    """Whole steps: sampling, scoring, update."""
    import jax

    trainer, state = _own(task)
    prompts, key, step = _Prompts(task["prompts"]), jax.random.key(1), 0

    def measure() -> dict[str, Any]:
        nonlocal state, step
        begin = time.perf_counter()
        result = trainer.step(state, prompts, key, step)
        seconds = time.perf_counter() - begin
        state, step = result.state, step + 1
        figures = result.metrics
        return {
            "seconds": seconds,
            "tokens": sum(answer.num_tokens for answer in result.answers),
            "sample_seconds": figures["machine/sample_seconds"],
            "update_seconds": figures["machine/update_seconds"],
        }

    return measure


def own_update(task: Task) -> Measure:
    """Only the update, on random answers of full length."""
    import jax
    import numpy as np

    from learner.training.rollout import Rollout
    from learner.training.task import Completion

    trainer, state = _own(task)
    rng = np.random.default_rng(0)
    ids = np.array(task["answers"], np.int32)
    count, length = ids.shape
    batch = Rollout(
        problems=np.arange(task["num_prompts"]),
        prompts=task["prompt_ids"],
        tokens=ids,
        logprobs=np.full((count, length), -8.0, np.float32),
        lengths=np.full(count, length, np.int32),
        truncated=np.ones(count, bool),
        completions=[Completion("", length, True)] * count,
        rewards=np.asarray(rng.uniform(size=count), np.float32),
    )

    def measure() -> dict[str, Any]:
        nonlocal state
        begin = time.perf_counter()
        updates, state = trainer.update(state, batch)
        seconds = time.perf_counter() - begin
        stats = jax.local_devices()[0].memory_stats() or {}
        peak = stats.get("peak_bytes_in_use")
        return {
            "seconds": seconds,
            "tokens": count * length,
            "grad_norm": float(updates[-1].grad_norm),
            "memory_gib": None if peak is None else peak / 2**30,
        }

    return measure


# Hugging Face -----------------------------------------------------------------


def trl(task: Task) -> Measure:
    """Whole steps of TRL's GRPOTrainer: the same model, prompts, groups, lengths, reward."""
    import datasets
    import torch
    import transformers
    import trl as library

    model = transformers.AutoModelForCausalLM.from_pretrained(task["folder"], dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(task["folder"])
    rows = task["num_prompts"] * task["group_size"]
    config = library.GRPOConfig(
        output_dir=task["scratch"],
        per_device_train_batch_size=task["peer_micro_batch_rows"],
        gradient_accumulation_steps=rows // task["peer_micro_batch_rows"],
        num_generations=task["group_size"],
        max_completion_length=task["new_tokens"],
        generation_kwargs={"min_new_tokens": task["new_tokens"]},
        temperature=1.0,
        beta=0.0,
        loss_type="dapo",
        epsilon=0.2,
        epsilon_high=0.28,
        learning_rate=1e-6,
        lr_scheduler_type="constant",
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=not torch.cuda.is_available(),
        save_strategy="no",
        report_to=[],
        logging_steps=10_000,
        max_steps=10_000,
        disable_tqdm=True,
    )
    requests: queue.Queue[None] = queue.Queue()
    results: queue.Queue[dict[str, Any]] = queue.Queue()

    class Turns(transformers.TrainerCallback):
        """Lets the trainer take one step for each request."""

        def on_step_begin(self, *args: Any, **more: Any) -> None:
            del args, more
            requests.get()
            self.begin = time.perf_counter()

        def on_step_end(self, *args: Any, **more: Any) -> None:
            del args, more
            seconds = time.perf_counter() - self.begin
            results.put({"seconds": seconds, "tokens": rows * task["new_tokens"]})

    end = tokenizer.eos_token
    trainer = library.GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **_: [reward(text) for text in completions],
        args=config,
        train_dataset=datasets.Dataset.from_dict(
            {"prompt": [prompt + end for prompt in task["prompts"]]}
        ),
        processing_class=tokenizer,
        callbacks=[Turns()],
    )
    failure: list[BaseException] = []

    def work() -> None:
        try:
            trainer.train()
        except BaseException as error:
            failure.append(error)
            raise

    threading.Thread(target=work, daemon=True).start()

    def measure() -> dict[str, Any]:
        requests.put(None)
        while True:
            try:
                return results.get(timeout=1.0)
            except queue.Empty:
                if failure:
                    raise RuntimeError("the trainer of TRL failed") from failure[0]

    return measure


def torch_update(task: Task) -> Measure:
    """The same update in plain torch: transformers' Qwen3 with sdpa, autograd, fused AdamW."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(task["folder"], dtype=torch.float32)
    model.train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-6, betas=(0.9, 0.95), weight_decay=0.0, fused=True
    )
    group = task["group_size"]
    answers = torch.tensor(task["answers"])
    prompts = torch.tensor(task["prompt_ids"]).repeat_interleave(group, dim=0)
    count, length = answers.shape
    inputs = torch.cat([prompts, answers], dim=1)
    generator = torch.Generator().manual_seed(0)
    rewards = torch.rand(count, generator=generator).reshape(-1, group)
    centred = rewards - rewards.mean(dim=1, keepdim=True)
    advantages = (centred / (rewards.std(dim=1, keepdim=True, correction=0) + 1e-6)).reshape(-1)
    old = torch.full((count, length), -8.0)
    rows = task["peer_micro_batch_rows"]

    def measure() -> dict[str, Any]:
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        for first in range(0, count, rows):
            part = slice(first, first + rows)
            logits = model(inputs[part], logits_to_keep=length + 1, use_cache=False).logits[:, :-1]
            chosen = logits.gather(-1, answers[part, :, None])[..., 0]
            normaliser = logits.logsumexp(dim=-1)
            ratio = torch.exp(chosen - normaliser - old[part])
            advantage = advantages[part, None]
            gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage)
            (-gain.sum() / (count * length)).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seconds = time.perf_counter() - begin
        return {"seconds": seconds, "tokens": count * length, "grad_norm": float(norm)}

    return measure


ENGINES = {engine.__name__: engine for engine in (own, own_update, trl, torch_update)}

if __name__ == "__main__":
    main(ENGINES)
