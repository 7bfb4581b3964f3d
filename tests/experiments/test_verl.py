"""Rounds that are designed inside verl's trainer: driven as it drives a data set, and by itself."""

import asyncio
import collections
import json
import re
import types
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from whole_runs import ROOT, python

from engineer import curricula, designers
from engineer.context import DEFAULT_VARIANT, VARIANTS
from engineer.designers import Design, ModelDesigner, NoAnswerError
from experiments.bridges.verl import TRAINING, VALIDATION, Plan
from experiments.families.family import NoProblemError
from experiments.families.loading import FamilySettings

MODEL = ROOT / "experiments" / "models" / "tiny"
WIDTH, BATCH, COPIES = 8, 4, 2
CONFIG = {"train_batch_size": BATCH, "dataloader_num_workers": 0}


@pytest.fixture(scope="module")
def sums():
    return FamilySettings("words:sums").load_family()


@pytest.fixture(scope="module")
def tokenizer():
    return transformers.AutoTokenizer.from_pretrained(MODEL)


@pytest.fixture
def planned(sums, tmp_path):
    """Makes plans of two rounds of three steps; an option may differ."""

    def plan(**options):
        chosen = {"rounds": 2, "steps_per_round": 3, "num_instances": 12, "num_validation": 6}
        rule = curricula.BY_RULE["mastery"]
        return Plan(sums, **{**chosen, "designer": rule, "file": tmp_path / "r.jsonl", **options})

    return plan


def written(plan):
    return [json.loads(line) for line in Path(plan.file).read_text().splitlines()]


def only_short(problem):
    """What the model solves: sums of one digit."""
    return problem["group"] == "1"


def responses(plan, truths, tokenizer, solves):
    """Token numbers and masks [N, WIDTH] of fake answers: right, wrong, or cut off."""
    ids, mask = torch.zeros(2, len(truths), WIDTH, dtype=torch.int64)
    for i, truth in enumerate(truths):
        problem = json.loads(truth["ground_truth"])
        text = plan.family.solutions([problem])[0] if solves(problem) else "no idea of any kind"
        tokens = tokenizer(text, add_special_tokens=False).input_ids
        tokens = [*tokens, tokenizer.eos_token_id][:WIDTH]
        ids[i, : len(tokens)] = torch.tensor(tokens)
        mask[i, : len(tokens)] = 1
    return ids, mask


def train(plan, dataset, tokenizer, steps, solves=only_short):
    """Does what `RayPPOTrainer.fit` does with a data set; returns the scores of each step."""
    loader = torch.utils.data.DataLoader(
        dataset, BATCH, shuffle=True, drop_last=True, num_workers=0, collate_fn=list
    )
    scores, order = [], np.random.default_rng(0)
    while True:
        for problems in loader:
            problems = [problem for problem in problems for _ in range(COPIES)]
            order.shuffle(problems)  # verl balances the workers' load.
            ids, mask = responses(plan, [p["reward_model"] for p in problems], tokenizer, solves)
            scores.append(
                [
                    plan.compute_score(
                        data_source=problem["data_source"],
                        solution_str=tokenizer.decode(own[used], skip_special_tokens=True),
                        ground_truth=problem["reward_model"]["ground_truth"],
                        extra_info={**problem["extra_info"], "num_turns": 1},
                    )
                    for problem, own, used in zip(problems, ids, mask.bool(), strict=True)
                ]
            )
            if len(scores) == steps:
                return scores
            infos = np.array([problem["extra_info"] for problem in problems], dtype=object)
            batch = {"responses": ids, "response_mask": mask}
            step = types.SimpleNamespace(batch=batch, non_tensor_batch={"extra_info": infos})
            dataset.on_batch_end(batch=step)


def groups(dataset):
    truths = [dataset[i]["reward_model"]["ground_truth"] for i in range(len(dataset))]
    return collections.Counter(json.loads(truth)["group"] for truth in truths)


def test_a_rule_designs_the_second_round(planned, tokenizer):
    plan = planned()
    dataset = plan.dataset_class()(TRAINING, tokenizer, CONFIG, max_samples=-1)
    assert groups(dataset) == {"1": 4, "2": 4, "3": 4}
    scores = train(plan, dataset, tokenizer, 6)
    (past,), (design,) = dataset.history, dataset.designs
    # Three steps are an epoch here, so each problem was answered twice.
    counted = {row.name: (row.answers, row.valid) for row in past.breakdown.by_group}
    assert counted == {"1": (8, 8), "2": (8, 0), "3": (8, 0)}
    assert [row.truncated for row in past.breakdown.by_group] == [0, 8, 8]
    assert past.breakdown.by_group[1].length.mean == WIDTH
    assert sum(score["acc"] for step in scores[:3] for score in step) == 8
    # The rule divides the set over the mastered sums and the next ones.
    assert groups(dataset) == {"1": 6, "2": 6}
    assert dataset.config == design.config
    lines = written(plan)
    assert [line["round"] for line in lines] == [0, 1]
    assert lines[0]["design"] is None
    assert Design.from_dict(lines[1]["design"]) == design
    assert lines[1]["evidence"] == past.evidence.to_dict()


def test_problems_have_what_verl_reads(planned, tokenizer):
    plan = planned()
    made = plan.dataset_class()
    training = made(TRAINING, tokenizer, CONFIG)
    validation = made([VALIDATION], tokenizer, CONFIG, processor=None, max_samples=-1)
    assert (len(training), len(validation)) == (12, 6)
    for dataset, source in ((training, TRAINING), (validation, VALIDATION)):
        read = dataset[5]
        problem = json.loads(read["reward_model"]["ground_truth"])
        chat = [{"role": "user", "content": plan.family.prompt(problem)}]
        assert (read["raw_prompt"], read["data_source"]) == (chat, source)
        assert read["extra_info"] == {"index": 5, "round": 0}
        assert read["index"] == 5
        assert read["tools_kwargs"] == read["interaction_kwargs"] == {}
        assert read["dummy_tensor"].dtype == torch.uint8
    apart = [
        {d[i]["reward_model"]["ground_truth"] for i in range(6)} for d in (training, validation)
    ]
    assert apart[0].isdisjoint(apart[1])


def test_a_row_without_answers_keeps_its_evidence(planned, tokenizer):
    """Else the rule would take what it does not train on for half mastered."""
    plan = planned(rounds=4)
    dataset = plan.dataset_class()(TRAINING, tokenizer, CONFIG)
    train(plan, dataset, tokenizer, 7, solves=lambda problem: False)
    assert groups(dataset) == {"1": 12}
    by_name = {row.name: row for row in dataset.history[1].breakdown.by_group}
    assert {name: row.answers for name, row in by_name.items()} == {"1": 24, "2": 8, "3": 8}
    assert dataset.history[1].config != dataset.history[0].config


def test_a_function_designs(planned, sums, tokenizer):
    """A model's answer is read and projected as in a run; its context holds the evidence."""
    asked = []

    def generate(chat, seed):
        asked.append(chat)
        return "1: {fraction: 0}\n2: {fraction: 0.75}\n3: {fraction: 0.25}"

    designer = ModelDesigner(generate, sums.texts, VARIANTS[DEFAULT_VARIANT])
    plan = planned(designer=designer)
    dataset = plan.dataset_class()(TRAINING, tokenizer, CONFIG)
    train(plan, dataset, tokenizer, 4)
    assert len(asked) == 1
    assert "failed" in asked[0][0]["content"]
    assert dataset.designs[0].nothing == "", dataset.designs[0]
    assert groups(dataset) == {"2": 9, "3": 3}


def test_training_goes_on_without_an_answer_or_problems(planned, sums, tokenizer, monkeypatch):
    def silent(record, space, seed):
        raise NoAnswerError("the server sleeps")

    plan = planned(designer=silent, rounds=3)
    dataset = plan.dataset_class()(TRAINING, tokenizer, CONFIG)
    before, generate = dataset.config, type(sums).generate
    train(plan, dataset, tokenizer, 4)
    assert dataset.config == before
    assert dataset.designs[0].reason == "the server sleeps"

    def refusing(family, key, config, *others):
        if config != before:
            raise NoProblemError("none")
        return generate(family, key, config, *others)

    monkeypatch.setattr(type(sums), "generate", refusing)
    object.__setattr__(plan, "designer", designers.random)
    train(plan, dataset, tokenizer, 4)
    assert dataset.config == before != dataset.designs[1].config


@pytest.mark.parametrize(
    ("files", "config", "message"),
    [
        ("train.parquet", {}, r"data_files=\['train.parquet'\]: allowed are 'rounds'"),
        ([TRAINING, VALIDATION], {}, "data_files="),
        (TRAINING, {"dataloader_num_workers": 8}, "dataloader_num_workers=8: allowed is 0"),
        (TRAINING, {"train_batch_size": 13}, "train_batch_size=13: allowed are 1 to"),
        (TRAINING, {"gen_batch_size": 24}, "train_batch_size=24"),
    ],
)
def test_what_does_not_go_together_is_refused(planned, files, config, message):
    plan = planned()
    with pytest.raises(ValueError, match=message):
        plan.dataset_class()(files, None, {**CONFIG, **config})
    assert not Path(plan.file).exists()


def test_a_training_that_is_resumed_is_refused(planned):
    made = planned().dataset_class()
    made(TRAINING, None, CONFIG)
    made(VALIDATION, None, CONFIG)
    with pytest.raises(ValueError, match="do not go on from a checkpoint"):
        made(TRAINING, None, CONFIG)
    with pytest.raises(ValueError, match="max_samples=5"):
        made(TRAINING, None, CONFIG, max_samples=5)


def test_plans_are_checked(planned, sums):
    with pytest.raises(ValueError, match="steps_per_round=0: allowed is 1"):
        planned(steps_per_round=0)
    with pytest.raises(ValueError, match="designer='mastery': allowed are functions"):
        planned(designer="mastery")
    costly = FamilySettings("words:sums", token_cost=0.01).load_family()
    with pytest.raises(ValueError, match=r"tokenizer=None: token_cost=0\.01"):
        Plan(costly, 2, 3, 12, designers.fixed, "file")
    plan = Plan(costly, 2, 3, 12, designers.fixed, "file", tokenizer=str(MODEL))
    problem = {"group": "2", "operands": [17, 16]}
    score = plan.compute_score("rounds", "33", json.dumps(problem), {})
    tokens = len(transformers.AutoTokenizer.from_pretrained(MODEL)("33").input_ids)
    assert score == {"score": pytest.approx(1 - 0.01 * tokens), "acc": 1.0}


def test_trainers_without_the_hook_or_that_sample_ahead_are_noticed(planned, tokenizer):
    dataset = planned(steps_per_round=1, rounds=3).dataset_class()(TRAINING, tokenizer, CONFIG)
    for _ in range(2):
        groups(dataset)
    with pytest.raises(RuntimeError, match=r"trainer\.use_v1=False"):
        dataset[0]
    infos = [{"index": 0, "round": 1}]
    step = types.SimpleNamespace(batch={}, non_tensor_batch={"extra_info": infos})
    with pytest.raises(ValueError, match="round=1: the answers of this step"):
        dataset.on_batch_end(step)


def test_the_module_needs_no_trainer_of_ours():
    program = (
        "import sys; sys.modules.update(dict.fromkeys(('flax', 'optax', 'orbax', 'verl')))\n"
        "import experiments.bridges.verl"
    )
    python("-c", program)


def program_of_the_page(tmp_path):
    page = (ROOT / "docs" / "other_trainers.md").read_text()
    (text,) = (
        block
        for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL)
        if "bridges.verl" in block
    )
    path = tmp_path / "my_rounds.py"
    path.write_text(text)
    words = re.search(r"main_ppo ((?:.*\\\n)*.*)\n```", page)[1].replace("\\\n", " ").split()
    return path, words


def test_the_program_of_the_page(tmp_path, monkeypatch, tokenizer):
    path, words = program_of_the_page(tmp_path)
    monkeypatch.chdir(tmp_path)
    space = {"__name__": "page"}
    exec(compile(path.read_text(), "other_trainers.md", "exec"), space)
    plan, options = space["plan"], dict(word.split("=", 1) for word in words)
    config = {"train_batch_size": int(options["data.train_batch_size"])}
    dataset = space["DataSet"](options["data.train_files"], tokenizer, config)
    assert len(dataset) == plan.num_instances
    assert len(space["DataSet"](options["data.val_files"], tokenizer, config)) == 64
    assert int(options["trainer.total_training_steps"]) == plan.rounds * plan.steps_per_round
    truth = dataset[0]["reward_model"]["ground_truth"]
    assert space["compute_score"]("rounds", "?", truth)["score"] == 0.0


def test_verls_own_trainer(tmp_path, monkeypatch, tokenizer):
    """The whole `RayPPOTrainer.fit`, with its configuration, but without workers or GPUs."""
    pytest.importorskip("verl")
    ray_trainer = pytest.importorskip("verl.trainer.ppo.ray_trainer")
    from hydra import compose, initialize_config_module
    from omegaconf import OmegaConf
    from verl import DataProto
    from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager
    from verl.trainer.ppo.reward import get_custom_reward_fn

    path, words = program_of_the_page(tmp_path)
    monkeypatch.chdir(tmp_path)
    others = ["trainer.logger=console", "trainer.val_before_train=False", "trainer.test_freq=4"]
    steps = ["data.train_batch_size=4", "trainer.total_epochs=9", "trainer.total_training_steps=6"]
    others += [
        *steps,
        "trainer.save_freq=-1",
        "algorithm.adv_estimator=grpo",
        "critic.enable=False",
    ]
    others += [f"actor_rollout_ref.rollout.n={COPIES}", "actor_rollout_ref.actor.use_kl_loss=False"]
    text = path.read_text()
    for name, number in {"rounds": 2, "steps_per_round": 3, "num_instances": 12}.items():
        text = re.sub(rf"\b{name}=\d+", f"{name}={number}", text)
    rule = "\nimport dataclasses\nfrom engineer import curricula\n"
    rule += "plan = dataclasses.replace(plan, designer=curricula.BY_RULE['mastery'])\n"
    rule += "DataSet, compute_score = plan.dataset_class(), plan.compute_score\n"
    path.write_text(text + rule)
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=[*words, *others])
    OmegaConf.resolve(config)

    reward = NaiveRewardManager(config, tokenizer, get_custom_reward_fn(config))

    class Workers:
        """In place of the model: samples fake answers, and scores them as verl's workers do."""

        def generate_sequences(self, prompts):
            truths = prompts.non_tensor_batch["reward_model"]
            plan = trainer.train_dataset.plan
            ids, mask = responses(plan, truths, tokenizer, only_short)
            asked = torch.ones_like(ids)
            tensors = {"prompts": asked, "responses": ids, "response_mask": mask}
            tensors["input_ids"] = torch.cat([asked, ids], 1)
            tensors["attention_mask"] = torch.cat([asked, mask], 1)
            tensors["position_ids"] = tensors["attention_mask"].cumsum(1)
            data = DataProto.from_dict(tensors, {**prompts.non_tensor_batch})
            loop = asyncio.new_event_loop()
            reward.loop = loop
            found = [
                loop.run_until_complete(reward.run_single(data[i : i + 1])) for i in range(len(ids))
            ]
            scores = torch.zeros(ids.shape)
            scores[torch.arange(len(ids)), mask.sum(1) - 1] = torch.tensor(
                [one["reward_score"] for one in found]
            )
            told = {
                k: np.array([one["reward_extra_info"][k] for one in found])
                for k in ("score", "acc")
            }
            told["multi_modal_inputs"] = np.array([{} for _ in found], dtype=object)
            made = DataProto.from_dict({**tensors, "rm_scores": scores}, told)
            made.meta_info = {"timing": {}, "reward_extra_keys": ["score", "acc"]}
            return made

        def __getattr__(self, name):
            return lambda *args, **kwargs: None

    class Trainer(ray_trainer.RayPPOTrainer):
        def _compute_old_log_prob(self, batch):
            zeros = torch.zeros(batch.batch["responses"].shape)
            made = DataProto.from_dict({"old_log_probs": zeros, "entropys": zeros.clone()})
            return made, 0.0

        def _update_actor(self, batch):
            return DataProto(meta_info={"metrics": {}})

        def _load_checkpoint(self):
            pass

        def _balance_batch(self, batch, metrics, **others):
            batch.reorder(torch.randperm(len(batch)))

    role = ray_trainer.Role.ActorRollout
    pool = types.SimpleNamespace(get_n_gpus=lambda: 1)
    trainer = Trainer(config, tokenizer, {role: None}, pool, device_name="cpu")
    trainer.async_rollout_manager = trainer.checkpoint_manager = Workers()
    trainer.actor_rollout_wg = trainer.llm_server_manager = types.SimpleNamespace()
    trainer.fit()
    dataset = trainer.train_dataset
    counted = {row.name: (row.answers, row.valid) for row in dataset.history[0].breakdown.by_group}
    assert counted == {"1": (8, 8), "2": (8, 0), "3": (8, 0)}
    assert groups(dataset) == {"1": 6, "2": 6}
    assert len(dataset.history) == 1
    assert [line["round"] for line in written(dataset.plan)] == [0, 1]
