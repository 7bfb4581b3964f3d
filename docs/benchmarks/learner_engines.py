"""The engines that `sampler.py`, `trainer.py` and `pretrained.py` compare."""

import json
import pathlib
import time
import types
from typing import Any

from runner import Measurements, Task, timed


def _loaded(task: Task) -> tuple[Any, Any, Any]:
    """Loads the task's model into this project: (configuration, mesh, parameters)."""
    import jax

    from learner.decoder import weights
    from learner.decoder.config import DecoderConfig
    from learner.devices import sharding

    jax.config.update("jax_num_cpu_devices", task["devices"])
    options = {"scan_unroll": task["scan_unroll"], "remat": task.get("remat", "none")}
    config = DecoderConfig.from_folder(task["folder"], **options)
    mesh = sharding.make_mesh(data=task["devices"])
    return config, mesh, weights.load(task["folder"], config, mesh)


def own_sampler(task: Task) -> Measurements:
    """This project's `Sampler`, greedy, with sequences split over the CPU's devices."""
    import jax

    from learner.sampling.sampler import Sampler, SamplingParams

    config, mesh, params = _loaded(task)
    prompts, samples = task["prompts"], task["samples"]
    sampling = SamplingParams(max_new_tokens=task["new_tokens"], temperature=0.0)
    sampler = Sampler(config, mesh, sampling, 0, sampling_slots=len(prompts) * samples)
    keys = jax.random.split(jax.random.key(0), len(prompts))

    def work() -> dict[str, Any]:
        ids = sampler(params, prompts, keys, samples).tokens
        return {"tokens": ids.size, "ids": ids.tolist()}

    return timed(work)


def transformers(task: Task) -> Measurements:
    """`generate` of transformers on torch, greedy."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(task["folder"], dtype=torch.float32).eval()
    prompts = torch.tensor(task["prompts"]).repeat_interleave(task["samples"], dim=0)
    new = task["new_tokens"]
    options = {"do_sample": False, "max_new_tokens": new, "min_new_tokens": new}
    options |= {"eos_token_id": None, "pad_token_id": 0}

    def work() -> dict[str, Any]:
        with torch.inference_mode():
            out = model.generate(prompts, attention_mask=torch.ones_like(prompts), **options)
        ids = out[:, prompts.shape[1] :]
        return {"tokens": ids.numel(), "ids": ids.tolist()}

    return timed(work)


def tunix(task: Task) -> Measurements:
    """The sampler of google-tunix, greedy, with heads and widths split over the CPU's devices.

    Splitting sequences and parameters instead, by its mesh axis `fsdp`, is slower.
    """
    import jax
    import numpy as np
    from tunix.generate.sampler import CacheConfig, Sampler
    from tunix.models.qwen3 import model as qwen3
    from tunix.models.qwen3 import params as qwen3_params

    raw = json.loads((pathlib.Path(task["folder"]) / "config.json").read_text(encoding="utf-8"))
    config = qwen3.ModelConfig(
        num_layers=raw["num_hidden_layers"],
        vocab_size=raw["vocab_size"],
        embed_dim=raw["hidden_size"],
        hidden_dim=raw["intermediate_size"],
        num_heads=raw["num_attention_heads"],
        head_dim=raw["head_dim"],
        num_kv_heads=raw["num_key_value_heads"],
        rope_theta=int(raw["rope_theta"]),
        norm_eps=raw["rms_norm_eps"],
        use_tied_embedding=raw["tie_word_embeddings"],
    )
    jax.config.update("jax_num_cpu_devices", task["devices"])
    types_of_axes = (jax.sharding.AxisType.Auto,) * 2
    mesh = jax.make_mesh((1, task["devices"]), ("fsdp", "tp"), axis_types=types_of_axes)
    prompts, new = task["prompts"], task["new_tokens"]
    longest = max(map(len, prompts))
    numbers = types.SimpleNamespace(  # Stands in for a tokenizer: the text of an id is its number.
        encode=lambda text, **_: [int(word) for word in text.split()],
        decode=lambda ids, **_: " ".join(map(str, ids)),
        bos_id=lambda: 0,
        eos_id=lambda: -1,
        pad_id=lambda: 0,
    )
    shape = config.num_layers, config.num_kv_heads, config.head_dim
    with mesh:
        model = qwen3_params.create_model_from_safe_tensors(task["folder"], config, mesh)
        sampler = Sampler(model, numbers, CacheConfig(longest + new + 1, *shape))
    texts = [" ".join(map(str, prompt)) for prompt in prompts]

    def work() -> dict[str, Any]:
        with mesh:
            out = sampler(texts, max_generation_steps=new, max_prompt_length=longest)
        ids = [np.asarray(sequence).tolist() for sequence in out.tokens]
        return {"tokens": sum(map(len, ids)), "ids": ids}

    return timed(work)


def own_update(task: Task) -> Measurements:
    """Updates of this project's `SFTTrainer`, all sequences in one micro-batch."""
    from experiments.run import process
    from learner.training import sft, train_state
    from learner.training.train_state import OptimizerConfig

    process.keep_freed_memory()
    config, mesh, params = _loaded(task)
    optimizer = OptimizerConfig(learning_rate=1e-6, weight_decay=0.01, moment_dtype="float32")
    examples = [sft.Example(*map(tuple, pair)) for pair in task["examples"]]
    options = sft.SFTConfig(
        batch_size=len(examples),
        micro_batch_size=len(examples),
        max_completion_tokens=max(len(each.completion) for each in examples),
        optimizer=optimizer,
    )
    trainer = sft.SFTTrainer(options, config, mesh, 0)
    state = train_state.create_train_state(params, config, optimizer, mesh)
    for step in range(task["steps"]):
        begin = time.perf_counter()
        state, metrics = trainer.step(state, examples, step)
        if step > 1:  # The first one compiles, the second one's buffers are new.
            yield {
                "seconds": time.perf_counter() - begin,
                "tokens": sum(len(one) for each in examples for one in each),
                "loss": metrics["loss"],
            }


def torch_update(task: Task) -> Measurements:
    """The same updates in plain PyTorch, with logits of the completions only."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(task["folder"], dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.01)
    prompts, completions = map(torch.tensor, zip(*task["examples"], strict=True))
    ids = torch.cat([prompts, completions], dim=1)
    for step in range(task["steps"]):
        begin = time.perf_counter()
        hidden = model.model(ids).last_hidden_state[:, prompts.shape[1] - 1 : -1]
        logits = model.lm_head(hidden).flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, completions.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        value = loss.item()
        if step > 1:
            yield {"seconds": time.perf_counter() - begin, "tokens": ids.numel(), "loss": value}


def own_policy_update(task: Task) -> Measurements:
    """Updates of this project's `GRPOTrainer` on the same completions."""
    import jax
    import numpy as np

    from experiments.run import process
    from learner import tokens
    from learner.chat import Completion
    from learner.training.grpo import ObjectiveConfig
    from learner.training.rollout import Rollout
    from learner.training.train_state import OptimizerConfig
    from learner.training.trainer import GRPOConfig, GRPOTrainer

    process.keep_freed_memory()
    config, mesh, params = _loaded(task)
    completions = np.array(task["completions"])
    sequences, new = completions.shape
    training = GRPOConfig(
        prompts_per_step=len(task["prompts"]),
        group_size=sequences // len(task["prompts"]),
        micro_batch_size=task["micro_batch_groups"],
        max_new_tokens=new,
        # No sampler gave these tokens; as unlikely as below, each has the weight of the cap.
        objective=ObjectiveConfig(importance_correction="token", importance_cap=1.0),
        optimizer=OptimizerConfig(learning_rate=1e-6, weight_decay=0.01),
    )
    trainer = GRPOTrainer(training, config, mesh, tokens.load_tokenizer(task["folder"]))
    state = trainer.init_state(params, jax.random.key(0))
    rollout = Rollout(
        indices=np.arange(len(task["prompts"])),
        prompts=task["prompts"],
        tokens=completions,
        logprobs=np.full(completions.shape, -1e3, np.float32),
        lengths=np.full(sequences, new),
        lost=np.zeros(sequences, np.int32),
        truncated=np.zeros(sequences, bool),
        completions=[Completion("", new, False)] * sequences,
        rewards=np.array(task["rewards"], np.float32),
    )
    for step in range(task["steps"]):
        begin = time.perf_counter()
        (result,), state = trainer.update(state, rollout)
        if step > 1:
            seconds = time.perf_counter() - begin
            norm = float(result.grad_norm)
            yield {"seconds": seconds, "tokens": completions.size, "norm of the gradient": norm}


def torch_policy_update(task: Task) -> Measurements:
    """The same updates in plain PyTorch: each completion in a sequence with its prompt."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(task["folder"], dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.01)
    prompts, completions = torch.tensor(task["prompts"]), torch.tensor(task["completions"])
    size = len(completions) // len(prompts)
    rewards = torch.tensor(task["rewards"]).view(-1, size)
    spread = rewards.std(dim=1, keepdim=True, unbiased=False)
    advantages = ((rewards - rewards.mean(dim=1, keepdim=True)) / spread).flatten()
    ids = torch.cat([prompts.repeat_interleave(size, dim=0), completions], dim=1)
    for step in range(task["steps"]):
        begin = time.perf_counter()
        optimizer.zero_grad()
        for part in torch.arange(len(ids)).split(size * task["micro_batch_groups"]):
            hidden = model.model(ids[part]).last_hidden_state[:, prompts.shape[1] - 1 : -1]
            chosen = torch.nn.functional.cross_entropy(
                model.lm_head(hidden).flatten(0, 1), completions[part].flatten(), reduction="none"
            ).view(len(part), -1)
            ratio = torch.exp(chosen.detach() - chosen)  # On-policy: its value is 1.
            loss = -(ratio * advantages[part, None]).sum() / completions.numel()
            loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
        optimizer.step()
        if step > 1:
            seconds = time.perf_counter() - begin
            yield {"seconds": seconds, "tokens": completions.numel(), "norm of the gradient": norm}


def reward(text: str) -> float:
    """The fraction of characters with an even code point, equally cheap for all engines."""
    return sum(ord(character) % 2 == 0 for character in text) / max(len(text), 1)


def own_trainer(task: Task) -> Measurements:
    """Whole steps of this project's `GRPOTrainer`: sampling, scoring, update."""
    import jax

    from experiments.families import ProblemTask
    from experiments.run import process
    from learner import tokens
    from learner.training.train_state import OptimizerConfig
    from learner.training.trainer import GRPOConfig, GRPOTrainer

    process.keep_freed_memory()
    config, mesh, params = _loaded(task)
    training = GRPOConfig(
        prompts_per_step=len(task["prompts"]),
        group_size=task["group_size"],
        micro_batch_size=task["micro_batch_size"],
        max_new_tokens=task["new_tokens"],
        degenerate_groups="keep",
        optimizer=OptimizerConfig(learning_rate=1e-6, moment_dtype="float32"),
    )
    trainer = GRPOTrainer(training, config, mesh, tokens.load_tokenizer(task["folder"]))
    state = trainer.init_state(params, jax.random.key(0))
    prompts = ProblemTask(
        [{"prompt": prompt} for prompt in task["prompts"]],
        lambda problem: problem["prompt"],
        lambda problem, text: {"failed": [], "reward": reward(text)},
    )
    steps = trainer.run(state, prompts, jax.random.key(1), 0, 2)

    def work() -> dict[str, Any]:
        result = next(steps)
        return {
            "tokens": sum(each.num_tokens for each in result.completions),
            "seconds of sampling": result.metrics["machine/sample_seconds"],
            "seconds of the update": result.metrics["machine/update_seconds"],
        }

    return timed(work)


def trl(task: Task) -> Measurements:
    """Whole steps of TRL's `GRPOTrainer` with the same model, prompts, groups, lengths, reward."""
    import datasets
    import torch
    import transformers
    import trl as library

    model = transformers.AutoModelForCausalLM.from_pretrained(task["folder"], dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(task["folder"])
    sequences = len(task["prompts"]) * task["group_size"]
    config = library.GRPOConfig(
        output_dir=f"{task['folder']}/scratch",
        per_device_train_batch_size=task["peer_micro_batch_size"],
        gradient_accumulation_steps=sequences // task["peer_micro_batch_size"],
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
        use_cpu=True,
        save_strategy="no",
        report_to=[],
        logging_steps=10_000,
        max_steps=2,
        disable_tqdm=True,
    )
    begins: list[float] = []
    ends: list[float] = []

    class Clock(transformers.TrainerCallback):
        """Records when steps begin and end."""

        def on_step_begin(self, *args: Any, **more: Any) -> None:
            begins.append(time.perf_counter())

        def on_step_end(self, *args: Any, **more: Any) -> None:
            ends.append(time.perf_counter())

    trainer = library.GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **_: [reward(text) for text in completions],
        args=config,
        train_dataset=datasets.Dataset.from_dict(
            {"prompt": [prompt + tokenizer.eos_token for prompt in task["prompts"]]}
        ),
        processing_class=tokenizer,
        callbacks=[Clock()],
    )
    trainer.train()
    yield {"seconds": ends[1] - begins[1], "tokens": sequences * task["new_tokens"]}
