"""Three-digit sums, a task of its own: `python docs/task_example/sums.py` (see docs/tasks.md)."""

import jax
import numpy as np

from learner import tokens
from learner.decoder import config, model
from learner.devices import sharding
from learner.sampling import completer, sampler
from learner.training import sft, task, trainer
from learner.training.train_state import OptimizerConfig, create_train_state


class Sums(task.Task):  # Prompts like "123+456", completed with "975": the last digit first.
    def __init__(self, pairs):
        self.questions = [f"{a}+{b}" for a, b in pairs]
        self.answers = [str(a + b)[::-1] for a, b in pairs]

    def __len__(self):
        return len(self.questions)

    def messages(self, index):
        return [{"role": "user", "content": self.questions[index]}]

    def score(self, indices, completions):  # The reward is the fraction of digits that are right.
        pairs = [(c.text, self.answers[i]) for i, c in zip(indices, completions, strict=True)]
        rewards = [sum(map(str.__eq__, *pair)) / max(map(len, pair)) for pair in pairs]
        right = [a == b for a, b in pairs]
        return task.Scores(np.float32(rewards), {"right": np.mean(right)})


def main(warm_up=400, steps=1001, count=60_000):
    keys, mesh = jax.random.split(jax.random.key(0), 4), sharding.make_mesh()
    numbers = np.random.default_rng(0).integers(100, 1000, (count, 2))
    seen, trained, unseen = map(Sums, np.split(numbers, [count - 20_512, count - 512]))
    coder = tokens.character_tokenizer("0123456789+")
    tiny = config.DecoderConfig(vocab_size=12, hidden_size=64, intermediate_size=256, head_dim=32,
                              num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                              initializer_range=0.1, tie_word_embeddings=True,
                              scan_unroll=2)  # fmt: skip
    warm = sft.SFTConfig(256, 256, 16, optimizer=OptimizerConfig(3e-3, 20, b2=0.99))
    state = create_train_state(model.init_params(keys[0], tiny), tiny, warm.optimizer, mesh)
    pairs = [(seen.messages(i), answer) for i, answer in enumerate(seen.answers)]
    lessons = sft.encode_examples(coder, pairs)
    teacher = sft.SFTTrainer(warm, tiny, mesh, tokens.pad_id(coder))
    for result in teacher.run(state, lessons, keys[1], 0, warm_up):
        if result.metrics["loss"] < 0.5:  # It knows the digits, but seldom what is carried over.
            break
    optimizer = OptimizerConfig(1e-3, 0, "linear", steps, b2=0.99)
    grpo = trainer.GRPOConfig(64, 8, micro_batch_size=64, max_new_tokens=6, optimizer=optimizer)
    training = trainer.GRPOTrainer(grpo, tiny, mesh, coder)
    state = training.init_state(result.state.params, keys[2])
    complete = completer.Completer(tiny, mesh, coder, sampler.SamplingParams(max_new_tokens=6), 512)
    chats, rows = [unseen.messages(i) for i in range(len(unseen))], range(len(unseen))
    for result in training.run(state, trained, keys[3], 0, steps):
        if result.step % 50 == 0:
            scores = unseen.score(rows, complete(result.state.params, chats, keys[1]))
            print(f"step {result.step}: {scores.metrics['right']:.1%} of unseen sums are right")


if __name__ == "__main__":
    main()
