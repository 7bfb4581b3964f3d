"""A small training run that continues from its folder; `hostile/test_kills.py` kills it.

Every step ends with a checkpoint in the background, so most moments are within a save. The final
state goes to FOLDER/final.npz.
"""

import jax
import micro_model
import numpy as np

from experiments.run import store
from learner import tokens
from learner.decoder import model
from learner.devices import sharding
from learner.training import metrics
from learner.training.checkpoints import Checkpoints
from learner.training.task import Scores
from learner.training.train_state import OptimizerConfig, abstract_train_state
from learner.training.trainer import GRPOConfig, GRPOTrainer


class Vowels:
    """Rewards vowels, the more the less of them there were on average: a task with a state."""

    average = 0.0

    def __len__(self):
        return 7

    def messages(self, index):
        return [{"role": "user", "content": "abcdefg"[index]}]

    def score(self, indices, completions):
        share = np.array(
            [sum(c in "ae" for c in completion.text) / 4 for completion in completions]
        )
        self.average = 0.9 * self.average + 0.1 * float(share.mean())
        return Scores((share * (1 - self.average)).astype(np.float32))

    def state(self):
        return {"average": self.average}

    def restore(self, state):
        self.average = state["average"]


def main(folder, cache, steps):
    """Runs to the end, in a process of its own that keeps what it compiles in `cache`."""
    jax.config.update("jax_num_cpu_devices", 1)
    jax.config.update("jax_compilation_cache_dir", str(cache))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    folder.mkdir(exist_ok=True)
    mesh, tokenizer, task = sharding.make_mesh(), tokens.character_tokenizer("abcdefg"), Vowels()
    config = micro_model.config(
        head_dim=16, vocab_size=8, num_attention_heads=2, max_position_embeddings=64
    )
    training = GRPOConfig(
        prompts_per_step=4,
        group_size=4,
        max_new_tokens=4,
        micro_batch_size=8,
        updates_per_step=2,
        degenerate_groups="keep",  # One shape, so every process compiles the same few programs.
        optimizer=OptimizerConfig(learning_rate=1e-2, decay="linear", total_steps=2 * steps),
    )
    trainer = GRPOTrainer(training, config, mesh, tokenizer)
    key, start = jax.random.key(3), 0
    with Checkpoints(folder / "checkpoints") as checkpoints:
        if checkpoints.latest_step() is None:
            state = trainer.init_state(model.init_params(jax.random.key(0), config), key)
        else:
            state, record = checkpoints.restore(
                abstract_train_state(config, training.optimizer, mesh)
            )
            task.restore(record["task"])
            start = int(state.step)
        log = folder / "train.jsonl"
        store.open_steps(log, start)
        for result in trainer.run(state, task, key, start, steps):
            state = result.state
            figures = result.metrics.items()
            kept = {k: v for k, v in figures if not k.startswith(metrics.MACHINE)}
            store.append_log(log, [{"step": result.step, **kept}])
            checkpoints.save(result.step + 1, state, {"task": task.state()})
            (folder / "alive").touch()
    leaves = {str(i): np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(state))}
    np.savez(folder / "final.npz", average=task.average, **leaves)
