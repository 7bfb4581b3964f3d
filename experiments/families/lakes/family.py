"""Frozen lakes as a family of environments, over `mapf_jax`."""

import dataclasses
import hashlib
import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

import mapf_jax
from engineer.space import Configuration
from experiments.families.family import Family, Generated, GeneratedRow, Problem
from experiments.families.lakes import tiny_tokenizer
from experiments.families.lakes.options import HIGHEST_HOLE_RATIO, LakesOptions
from experiments.families.lakes.texts import FAILURES, REWARD, TEXTS, TEXTS_BY_AGENTS, lake_space
from learner.chat import Completion, Message
from learner.devices import distributed
from learner.training.task import Scores
from mapf_jax import formats
from mapf_jax.answer_reward import answer_rewards, next_short_fraction
from mapf_jax.draw import render
from mapf_jax.draw.story import tell
from mapf_jax.draw.svg import svg
from mapf_jax.environment_config import PARAMETERS, max_hole_ratio
from mapf_jax.generator import apportion
from mapf_jax.text import FROZEN, HOLE, letters_of

_LESSON_HOLE_RATIOS, _LESSON_CANDIDATES = (0.0, 0.1, 0.2, 0.3, 0.4), 1 << 18
_LESSON_AGENTS = (2, 3)  # Those of the benchmark's small set.
_VOCAB_LIMIT = 1024
# Colours that the page, light or dark, does not define.
_COLOURS = "--ice: light-dark(#edf4f9, #1d2b38); --hole: light-dark(#27384a, #7d8b99)"
_QUESTION = ("map", "starts", "goals")


class Lakes(Family):
    """Several agents cross a frozen lake full of holes without meeting.

    Args:
      options: which lakes, and how they are rewarded.
    """

    validation_options = (
        "sizes",
        "agents",
        "exclude",
        "max_candidates",
        "validation_hole_ratios",
        "validation_wait_ratio",
    )

    def __init__(self, options: LakesOptions) -> None:
        self.options = options
        self.texts = TEXTS_BY_AGENTS if len(options.agents) > 1 else TEXTS
        bounds = {
            options.row(size, agents): (
                0.0,
                min(HIGHEST_HOLE_RATIO, max_hole_ratio(size, agents)),
            )
            for size in options.sizes
            for agents in options.agents
        }
        self.space = lake_space(bounds, hole_bounds=bounds)
        path = options.exclude
        try:
            self._excluded = _fingerprints(list(formats.read_jsonl(path)) if path else ())
        except ValueError as error:
            raise ValueError(f"lakes.exclude={path!r}: {error}") from error

    def generate(
        self, key: jax.Array, config: Configuration, count: int, exclude: Sequence[Problem]
    ) -> Generated:
        """Solvable instances, each with an optimal plan; solving is split over processes."""
        seen = self._excluded | _fingerprints(exclude)
        table, counts = config.to_dict(), self.options.agents
        chosen = {
            agents: {size: table[self.options.row(size, agents)] for size in self.options.sizes}
            for agents in counts
        }
        parts = [1.0]
        if len(counts) > 1:
            parts = [
                math.fsum(row["data_ratio"] for row in rows.values()) for rows in chosen.values()
            ]
        records, made, notes = [], {}, []
        for agents, part, number in zip(counts, parts, apportion(count, parts), strict=True):
            if number == 0:
                continue
            wanted = {
                size: row | {"data_ratio": row["data_ratio"] / part}
                for size, row in chosen[agents].items()
            }
            try:
                instances, report = mapf_jax.generate(
                    jax.random.fold_in(key, agents) if len(counts) > 1 else key,
                    mapf_jax.EnvironmentConfig.from_dict(wanted),
                    number,
                    agents,
                    exclude=seen,
                    max_candidates=self.options.max_candidates,
                    spread=distributed.sharded_map,
                )
            except mapf_jax.NoInstanceError as error:
                notes.append(str(error))
                continue
            records += [formats.to_record(instances[i], "") for i in range(len(instances))]
            for row in report.to_dict()["sizes"]:
                made[self.options.row(row["size"], agents)] = row
                if row["made"] < row["asked"] or row["made_wait"] < row["asked_wait"]:
                    notes.append(
                        f"{row['size']}x{row['size']} with {agents} agents: "
                        f"{row['made']} of {row['asked']} instances, "
                        f"{row['made_wait']} of {row['asked_wait']} that need a wait, "
                        f"from {row['candidates']} lakes"
                    )
        if len(counts) > 1:
            order = np.asarray(jax.random.permutation(key, len(records)))
            records = [records[i] for i in order]
        rows = {}
        for name, row in made.items():
            achieved = {
                "data_ratio": round(row["made"] / len(records), 4),
                "hole_ratio": round(row["holes"] / row["size"] ** 2, 4),
                "wait_ratio": row["achieved_wait_ratio"],
            }
            rows[name] = GeneratedRow(row["asked"], row["made"], achieved, row)
        return Generated([r | {"id": str(i)} for i, r in enumerate(records)], rows, notes)

    def task(self, problems: Sequence[Problem]) -> "LakesTask":
        """Prompts whose answers are paths of all agents, verified by the rules."""
        return LakesTask(problems, self.options)

    @property
    def validation(self) -> Configuration:
        """Equally many instances of every row."""
        options = self.options
        return self._mixture(options.mean_hole_ratio, options.validation_wait_ratio)

    def validation_set(
        self, key: jax.Array, count: int, exclude: Sequence[Problem] = ()
    ) -> Generated:
        """Of all `validation_hole_ratios`, if there are several."""
        ratios, wait_ratio = self.options.validation_hole_ratios, self.options.validation_wait_ratio
        if len(ratios) == 1:
            return super().validation_set(key, count, exclude)
        problems: list[Problem] = []
        parts = []
        for i, part in enumerate(apportion(count, [1 / len(ratios)] * len(ratios))):
            config = self._mixture(ratios[i], wait_ratio)
            seen = [*exclude, *problems]
            parts.append(self.generate(jax.random.fold_in(key, i), config, part, seen))
            problems += parts[-1].problems
        order = np.asarray(jax.random.permutation(key, len(problems)))
        return Generated(
            [problems[i] | {"id": str(n)} for n, i in enumerate(order)],
            {
                row: _joined([part.rows[row] for part in parts if row in part.rows])
                for row in self.space.rows
                if any(row in part.rows for part in parts)
            },
            [note for part in parts for note in part.notes],
        )

    def _mixture(self, *ratios: float) -> Configuration:
        rows = self.space.rows
        cells = dict(zip(PARAMETERS, (1 / len(rows), *ratios), strict=True))
        return Configuration.from_dict(dict.fromkeys(rows, cells))

    def lessons(self, key: jax.Array, count: int, exclude: Sequence[Problem]) -> Sequence[Problem]:
        """Lakes of all sizes and `_LESSON_HOLE_RATIOS`; a quarter of them need a wait.

        Equally many have each number of agents: those of the options and `_LESSON_AGENTS`.
        """
        agents = tuple(sorted({*self.options.agents, *_LESSON_AGENTS}))
        lakes = Lakes(
            dataclasses.replace(self.options, agents=agents, max_candidates=_LESSON_CANDIDATES)
        )
        problems: list[Problem] = []
        for i, hole_ratio in enumerate(_LESSON_HOLE_RATIOS):
            config = lakes._mixture(hole_ratio, 0.25)
            part = -(-count // len(_LESSON_HOLE_RATIOS))
            problems += lakes.generate(jax.random.fold_in(key, i), config, part, exclude).problems
        return problems

    def solutions(self, problems: Sequence[Problem]) -> Sequence[str]:
        """The exact solver's plans."""
        plans = [np.swapaxes(problem["paths"], 0, 1) for problem in problems]
        return [mapf_jax.render_answer(plan, len(plan) - 1) for plan in plans]

    @property
    def constants(self) -> Sequence[str]:
        """The rules as well."""
        return mapf_jax.text.RULES, *super().constants

    def new_tokenizer(self, texts: Sequence[str]) -> Any:
        """A byte-pair encoding with cells, times and numbers as tokens of their own."""
        return tiny_tokenizer.train_tokenizer(texts, _VOCAB_LIMIT)

    @property
    def reward(self) -> str:
        """Accuracy and length, and how they are weighted."""
        return REWARD.format(**dataclasses.asdict(self.options.reward))

    def failure(self, check: str) -> str:
        """In words, such as "hole entered"."""
        return FAILURES[check]

    def draw(self, problem: Problem, completion: str) -> str:
        """The lake with the animated plan and its outcome, as markup without scripts."""
        instance, plan = _drawn(problem, completion)
        digest = hashlib.sha256(f"{problem['id']}\n{completion}".encode()).hexdigest()
        lines = "<br>".join(html.escape(text) for text, _ in tell(instance, plan).captions)
        drawn = svg(instance, plan, f"lake-{digest[:12]}")
        return f'<div style="{_COLOURS}">{drawn}</div><p>{lines}</p>'

    def text(self, problem: Problem, completion: str) -> str:
        """Every time step of a plan; the lake and the completion if it is no plan."""
        instance, plan = _drawn(problem, completion)
        if plan.parsable and plan.num_agents == instance.starts.shape[-2]:
            return "\n\n".join(render.ascii_frames(instance, plan))
        return f"{render.ascii_instance(instance)}\n\n{completion}"

    def example(self, problem: Problem, completion: str) -> str:
        """The lake at the first broken rule, else at the end, with a sentence and a legend.

        If there is no plan to draw: the lake with the starts, and the completion.
        """
        instance, plan = _drawn(problem, completion)
        story = tell(instance, plan)
        starts, goals = zip(*map(letters_of, story.agents.tolist()), strict=True)
        size = int(instance.size)
        if len(story.positions):
            broken = story.kinds.any(axis=1)
            time = int(broken.argmax()) if broken.any() else len(story.positions) - 1
            rows = render.ascii_frames(instance, plan)[time].splitlines()[1 : size + 1]
            answer = []
            marks = [str(agent % 10) for agent in story.agents]
            legend = f"agents: {' '.join(marks)}; goals: {' '.join(goals)}; broken rule: #"
        else:
            rows = render.ascii_instance(instance).splitlines()
            answer = [f"answer: {completion}"]
            legend = f"starts: {' '.join(starts)}; goals: {' '.join(goals)}"
        said = [text for text, _ in story.captions]
        legend += f"; hole: {HOLE}; ice: {FROZEN}; cells: (row,column)"
        return "\n".join([*rows, *answer, *said, legend])


class LakesTask:
    """Prompts about solved instances, scored by the verifier.

    Its state is the moving average of the fraction of short completions, which weights the two
    parts of the reward. It is updated after each scored list of completions.

    Args:
      problems: with solutions.
      options: of their lakes.
    """

    def __init__(self, problems: Sequence[Problem], options: LakesOptions) -> None:
        self._instances, self._reward = _instances(problems), options.reward
        agents = np.asarray(self._instances.active).sum(-1).tolist()
        sizes = np.asarray(self._instances.size).tolist()
        self._groups = list(map(options.row, sizes, agents))
        several = len(options.validation_hole_ratios) > 1
        self._many_holes = options.mean_hole_ratio if several else math.inf
        self._prompts = [
            mapf_jax.prompt(self._instances[i], options.list_holes) for i in range(len(problems))
        ]
        self._short_fraction = 0.0

    def __len__(self) -> int:
        return len(self._prompts)

    def messages(self, index: int) -> Sequence[Message]:
        """One user message that poses instance `index`."""
        return [{"role": "user", "content": self._prompts[index]}]

    def score(self, indices: np.ndarray, completions: Sequence[Completion]) -> Scores:
        """R = w_acc R_acc + w_len R_len of every completion; verification is split over processes.

        Records also have the cost of a valid plan and the optimum, and the features "needs wait"
        and, with several hole ratios in the validation set, "many holes".
        """
        chosen = self._instances[np.asarray(indices)]
        assert chosen.solution is not None

        def verdicts(part: np.ndarray) -> mapf_jax.Verdict:
            texts = [completions[i].text for i in part]
            plans = mapf_jax.plans_from_texts(texts, chosen.starts.shape[-2])
            return jax.tree.map(np.asarray, mapf_jax.verify(chosen[part], plans))

        verdict = distributed.sharded_map(verdicts, len(completions))
        optimum = np.asarray(chosen.solution.cost)
        free = np.sum(~np.asarray(chosen.blocked), axis=(1, 2)) / np.asarray(chosen.size) ** 2
        having = {
            "needs wait": np.asarray(chosen.solution.needs_wait),
            "many holes": 1 - free > self._many_holes,
        }
        num_tokens = np.array([completion.num_tokens for completion in completions])
        rewards = answer_rewards(verdict, optimum, num_tokens, self._short_fraction, self._reward)
        self._short_fraction = next_short_fraction(self._short_fraction, num_tokens, self._reward)
        metrics = {
            "reward_accuracy": float(np.mean(rewards.accuracy)),
            "reward_length": float(np.mean(rewards.length)),
            "weight_accuracy": rewards.accuracy_weight,
            "short_fraction": self._short_fraction,
        }
        records = []
        for i in range(len(completions)):
            found = formats.verdict_fields(verdict[i])
            records.append(
                {
                    "group": self._groups[indices[i]],
                    "valid": found["valid"],
                    "optimal": bool(verdict.optimal[i]),
                    "failed": [name for name, holds in found["checks"].items() if not holds],
                    "violation_time": found["violation"] and found["violation"]["time"],
                    "gap": found["gap"],
                    "features": [name for name, those in having.items() if those[i]],
                    "accuracy": float(rewards.accuracy[i]),
                    "cost": found["plan_cost"],
                    "optimum": int(optimum[i]),
                }
            )
        return Scores(rewards=rewards.total, metrics=metrics, records=records)

    def state(self) -> dict[str, Any]:
        """The moving average."""
        return {"short_fraction": self._short_fraction}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes back what `state` returned."""
        self._short_fraction = float(state["short_fraction"])


def _fingerprints(problems: Sequence[Problem]) -> set[bytes]:
    """Fingerprints of instances; labels are left out, to avoid verifying them."""
    bare = [{name: p[name] for name in _QUESTION if name in p} for p in problems]
    return set(mapf_jax.fingerprints(_instances(bare))) if bare else set()


def _instances(problems: Sequence[Problem]) -> mapf_jax.Instance:
    return formats.from_records([{"id": "", **problem} for problem in problems])


def _drawn(problem: Problem, completion: str) -> tuple[mapf_jax.Instance, mapf_jax.Plan]:
    instance = _instances([problem])[0]
    return instance, mapf_jax.plans_from_texts([completion], instance.starts.shape[-2])[0]


def _joined(rows: Sequence[GeneratedRow]) -> GeneratedRow:
    """The report of one row whose problems were made in several parts."""
    made = [row.made for row in rows]
    achieved = {}
    for name in rows[0].achieved:
        total = float(np.dot([row.achieved[name] for row in rows], made))
        achieved[name] = round(total / max(sum(made), 1), 4)
    details = {"parts": [row.details for row in rows]}
    return GeneratedRow(sum(row.asked for row in rows), sum(made), achieved, details)
