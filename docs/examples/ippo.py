"""Agents that learn to cross frozen lakes by independent PPO (arXiv 2011.09533), sharing weights.

Simulator, rollouts and updates are one compiled program. Draws the learning curve and an episode on
a lake that was not trained on: `python docs/examples/ippo.py --out=ippo`.
"""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

from mapf_jax import generator, render, verify
from mapf_jax.env import PoolAutoReset, make, rollout

SIZE, AGENTS, HOLES, ENVS, STEPS, EPOCHS, MINIBATCHES = 5, 2, 5, 256, 32, 2, 4
GAMMA, LAMBDA, CLIP, ENTROPY, RATE = 0.97, 0.95, 0.2, 0.01, 1e-3
ENV = make("MapfFrozenLakeBlock-v0", num_agents=AGENTS, size=SIZE, max_steps=32,
           observation="egocentric", window=2 * SIZE - 1)  # fmt: skip


def init(key: jax.Array, inputs: int) -> list[tuple[jax.Array, jax.Array]]:
    """Weights and biases of two hidden layers and of five logits beside a value."""
    shapes = zip(jax.random.split(key, 3), (inputs, 128, 128), (128, 128, 6), strict=True)
    draw = jax.nn.initializers.orthogonal(2**0.5)
    return [(draw(key, (rows, columns)), jnp.zeros(columns)) for key, rows, columns in shapes]


def actor_critic(params: Any, observed: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Logits of five moves and a value, from what one agent sees."""
    hidden = observed.reshape(*observed.shape[:-3], -1).astype(jnp.float32)
    *layers, (weights, biases) = params
    for inner, shift in layers:
        hidden = jax.nn.relu(hidden @ inner + shift)
    out = hidden @ weights + biases
    return out[..., :5], out[..., 5]


OPTIMIZER = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(RATE))


def lakes(seed: int, count: int) -> Any:
    """Lakes on which each agent can reach its goal."""
    drawn, connected = generator.draw(jax.random.key(seed), SIZE, HOLES, SIZE, count, AGENTS)
    return drawn[np.flatnonzero(connected)]


def log_prob(logits: jax.Array, actions: jax.Array) -> jax.Array:
    return jnp.take_along_axis(jax.nn.log_softmax(logits), actions[..., None], -1)[..., 0]


def loss(params: Any, batch: dict[str, jax.Array]) -> jax.Array:
    """The clipped objective of PPO (arXiv 1707.06347), a value loss and an entropy bonus."""
    logits, values = actor_critic(params, batch["observed"])
    ratio = jnp.exp(log_prob(logits, batch["actions"]) - batch["log_probs"])
    advantages = batch["advantages"]
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    clipped = jnp.clip(ratio, 1 - CLIP, 1 + CLIP)
    policy = -jnp.minimum(ratio * advantages, clipped * advantages).mean()
    entropy = -(jax.nn.softmax(logits) * jax.nn.log_softmax(logits)).sum(-1).mean()
    return policy + 0.5 * jnp.square(values - batch["returns"]).mean() - ENTROPY * entropy


def train(key: jax.Array, updates: int) -> tuple[Any, jax.Array]:
    """Weights, and the success rate of the episodes that ended in each update."""
    wrapper = PoolAutoReset(ENV, lakes(0, 4096))

    def act(carry: Any, key: jax.Array) -> tuple[Any, dict[str, jax.Array]]:
        params, states, observed = carry
        logits, values = actor_critic(params, observed)
        actions = jax.random.categorical(key, logits)
        states, after = jax.vmap(wrapper.step)(states, actions)
        # An episode that was cut off would have gone on: its last value stands for the rest.
        rest = actor_critic(params, after.final_observation)[1] * after.truncated[:, None]
        return (params, states, after.observation), {
            "observed": observed, "actions": actions, "log_probs": log_prob(logits, actions),
            "values": values, "rewards": after.reward + GAMMA * rest,
            "done": after.done, "won": after.info.success,
        }  # fmt: skip

    def gae(carry: Any, step: dict[str, jax.Array]) -> tuple[Any, jax.Array]:
        advantage, value = carry
        more = 1.0 - step["done"][:, None]
        advantage = step["rewards"] + GAMMA * more * (value + LAMBDA * advantage) - step["values"]
        return (advantage, step["values"]), advantage

    def sgd_step(batch: dict[str, jax.Array], carry: Any, part: jax.Array) -> tuple[Any, None]:
        params, moments = carry
        grads = jax.grad(loss)(params, {name: x[part] for name, x in batch.items()})
        change, moments = OPTIMIZER.update(grads, moments, params)
        return (optax.apply_updates(params, change), moments), None

    def update(carry: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        params, moments, states, observed = carry
        act_key, *epoch_keys = jax.random.split(key, 1 + EPOCHS)
        keys = jax.random.split(act_key, STEPS)
        (_, states, observed), steps = jax.lax.scan(act, (params, states, observed), keys)
        _, value = actor_critic(params, observed)
        _, advantages = jax.lax.scan(gae, (jnp.zeros_like(value), value), steps, reverse=True)
        batch = {**steps, "advantages": advantages, "returns": advantages + steps["values"]}
        names = ("observed", "actions", "log_probs", "advantages", "returns")
        batch = {name: batch[name].reshape(-1, *batch[name].shape[3:]) for name in names}
        for epoch_key in epoch_keys:
            parts = jax.random.permutation(epoch_key, advantages.size).reshape(MINIBATCHES, -1)
            (params, moments), _ = jax.lax.scan(partial(sgd_step, batch), (params, moments), parts)
        return (params, moments, states, observed), steps["won"].sum() / steps["done"].sum()

    @jax.jit
    def run(key: jax.Array) -> tuple[Any, jax.Array]:
        init_key, reset_key, key = jax.random.split(key, 3)
        states, first = jax.vmap(wrapper.reset)(jax.random.split(reset_key, ENVS))
        params = init(init_key, first.observation[0, 0].size)
        carry = params, OPTIMIZER.init(params), states, first.observation
        (params, *_), rates = jax.lax.scan(update, carry, jax.random.split(key, updates))
        return params, rates

    return run(key)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("ippo"))
    parser.add_argument("--updates", type=int, default=60)
    args = parser.parse_args()
    params, rates = train(jax.random.key(0), args.updates)
    others = lakes(1, 1000)

    def policy(key: jax.Array, observed: jax.Array) -> jax.Array:
        return jax.random.categorical(key, actor_critic(params, observed)[0])

    plans = jax.jit(jax.vmap(lambda lake: rollout(ENV, lake, policy, jax.random.key(1))))(others)
    won = np.asarray(verify(others, plans).valid)
    print(f"success {rates[0]:.0%} -> {rates[-1]:.0%}, on other lakes {won.mean():.0%}")
    args.out.mkdir(parents=True, exist_ok=True)
    plt.figure(figsize=(5, 3), layout="constrained")
    plt.plot(STEPS * ENVS / 1000 * np.arange(1, len(rates) + 1), 100 * rates)
    plt.gca().set(xlabel="thousand steps", ylabel="episodes that succeed, percent")
    plt.savefig(args.out / "curve.png", dpi=150)
    steps = np.where(won, plans.num_steps, 0)
    one = int(np.argsort(steps)[-len(steps) // 10])  # A long one that succeeded.
    render.save(args.out / "episode.gif", others[one], plans[one])


if __name__ == "__main__":
    main()
