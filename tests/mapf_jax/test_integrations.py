"""The data set, and the reward as TRL, verl and verifiers call it, each against the real package.

What needs a package that is not installed is skipped and says which.
"""

import asyncio
import json
import math
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import mapf_jax
from mapf_jax import formats
from mapf_jax.answer_reward import RewardConfig
from mapf_jax.bridges import dataset
from mapf_jax.bridges import rewards as bridge
from mapf_jax.bridges.rewards import MapfReward, text_of
from mapf_jax.cli import main

ROOT = Path(__file__).parents[2]
TINY_MODEL = ROOT / "experiments" / "models" / "tiny"
CONFIG = RewardConfig(short_length=10, long_length=30, average_decay=0.75)


def made(count, sizes, hole_ratio, agents=2, seed=0):
    config = mapf_jax.EnvironmentConfig.uniform(sizes, hole_ratio, 0.5)
    return formats.to_records(mapf_jax.generate(jax.random.key(seed), config, count, agents)[0])


@pytest.fixture(scope="module")
def records():
    return made(6, (3, 5), 0.12, seed=3) + made(4, (4,), 0.1, agents=3, seed=4)


@pytest.fixture(scope="module")
def rows(records):
    return dataset.dataset_rows(records)


def slower(row):
    """A valid answer in which all agents first wait on their starts for a step, and its gap."""
    lines = row["answer"].splitlines()
    cells = [line.split(":")[1] for line in lines[1:-1]]
    cells = cells[:1] + cells
    answer = "\n".join([lines[0], *(f"{t}:{c}" for t, c in enumerate(cells)), lines[-1]])
    return answer, row["num_agents"]


# The data set


def read_back(row, record):
    """Holds a row against the record that it was made from."""
    assert [row[k] for k in ("id", "map", "starts", "goals", "cost", "makespan", "needs_wait")] == [
        record[k] for k in ("id", "map", "starts", "goals", "cost", "makespan", "needs_wait")
    ]
    assert formats.from_records([row]).solution.cost[0] == record["cost"]
    truth = json.loads(row["reward_model"]["ground_truth"])
    assert truth == {k: record[k] for k in ("id", "map", "starts", "goals", "cost")}
    (message,) = row["prompt"]
    assert message["role"] == "user"
    assert (
        f"Lake of {row['size']} x {row['size']}, {row['num_agents']} agents" in (message["content"])
    )


def test_exported_splits_load_with_the_right_types(tmp_path, records, capsys, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    parts = {"train": records[:7], "test": records[7:]}
    for split, part in parts.items():
        text = "".join(json.dumps(record) + "\n" for record in part)
        (tmp_path / f"{split}.jsonl").write_text(text)
    inputs = [str(tmp_path / f"{split}.jsonl") for split in parts]
    out = tmp_path / "out"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["export", *inputs, "--out=~/out", "--list-holes"]) == 0
    assert "train: 7 instances\ntest: 3 instances\n" in capsys.readouterr().err
    assert "| test | 3 | 4 x 4 | 3 |" in (out / "README.md").read_text()

    number, text, truth = map(datasets.Value, ("int32", "string", "bool"))
    expected = {
        **dict.fromkeys(dataset.COLUMNS, text),
        **dict.fromkeys(("num_agents", "size", "num_holes", "cost", "makespan"), number),
        "starts": [[number]],
        "goals": [[number]],
        "prompt": [{"role": text, "content": text}],
        "map": [text],
        "needs_wait": truth,
        "paths": [[[number]]],
        "reward_model": {"style": text, "ground_truth": text},
        "extra_info": {"split": text, "index": datasets.Value("int64")},
    }
    expected = datasets.Features(expected)
    loaded = datasets.load_dataset(str(out), cache_dir=str(tmp_path / "cache" / "loaded"))
    assert list(loaded) == ["train", "test"]
    for split, part in parts.items():
        assert loaded[split].features == expected
        for row, record in zip(loaded[split], part, strict=True):
            read_back(row, record)
            assert "\nHoles:" in row["prompt"][0]["content"]
            assert row["extra_info"]["split"] == split
    # The card alone, as the hub's pages read it, says the same.
    card = datasets.info.DatasetInfosDict.from_directory(str(out))
    assert next(iter(card.values())).features == expected
    # Others in the same folder are not what was loaded before.
    dataset.write_dataset(out, {"train": records[3:], "test": records[:3]})
    loaded = datasets.load_dataset(str(out), cache_dir=str(tmp_path / "cache" / "loaded"))
    for row, record in zip(loaded["train"], records[3:], strict=True):
        read_back(row, record)


def test_unsolved_records_are_not_exported(tmp_path, records, capsys):
    pytest.importorskip("datasets")
    unsolved = {k: records[0][k] for k in ("id", "map", "starts", "goals")}
    (tmp_path / "bad.jsonl").write_text(json.dumps(unsolved) + "\n")
    assert main(["export", str(tmp_path / "bad.jsonl"), "--out", str(tmp_path / "bad")]) == 2
    error = capsys.readouterr().err
    assert error == f"error: {unsolved['id']}: cost: missing, solve the instances first\n"
    assert not (tmp_path / "bad").exists()


# The reward


def test_scores_against_the_formula(rows):
    short_fraction = 0.7  # So the weights are 0.65 and 0.35.
    records, texts, tokens, accuracy = [], [], [], []
    for i, row in enumerate(rows):
        longer, gap = slower(row)
        for text, expected in (
            (row["answer"], 1.0),
            (f"Well: {longer}", 1 - 0.7 * gap / (2 * row["cost"])),
            (row["answer"].replace("0:", "1:", 1), 0.0),
            ("no idea", 0.0),
        ):
            records.append(row)
            texts.append(text)
            tokens.append(5 + i * 7)
            accuracy.append(expected)
    scores = bridge.score(records, texts, tokens, short_fraction, CONFIG)
    length = [-min(max((n - 10) / 20, 0), 1) for n in tokens]
    np.testing.assert_allclose(scores["reward_accuracy"], accuracy, rtol=1e-6)
    np.testing.assert_allclose(scores["reward_length"], length, atol=1e-6)
    total = 0.65 * np.array(accuracy) + 0.35 * np.array(length)
    np.testing.assert_allclose(scores["reward"], total, atol=1e-6)
    np.testing.assert_allclose(scores["weight_accuracy"], 0.65)
    assert scores["valid"].tolist() == [True, True, False, False] * len(rows)
    assert scores["optimal"].tolist() == [True, False, False, False] * len(rows)
    # Each alone gives what all give together.
    for i in range(0, len(texts), 5):
        alone = bridge.score(records[i : i + 1], texts[i : i + 1], [tokens[i]], 0.7, CONFIG)
        assert {n: c[0] for n, c in alone.items()} == {n: c[i] for n, c in scores.items()}
    wrong = [*records[:4], {**records[4], "cost": records[4]["cost"] + 1}]
    told = rf"{wrong[4]['id']}: cost: {wrong[4]['cost']} is stored as the optimum, but .* costs "
    with pytest.raises(ValueError, match=f"{told}{records[4]['cost']}"):
        bridge.score(wrong, texts[:5], tokens[:5], 0.7, CONFIG)


def test_text_of_completions():
    for completion, text in (
        ("plain", "plain"),
        ([{"role": "assistant", "content": "chat"}], "chat"),
        ([{"content": "first"}, {"content": "last"}], "last"),
        ([{"role": "assistant", "content": None}], ""),
        ([{"role": "assistant", "tool_calls": []}], ""),
        ([], ""),
        (
            [{"content": [{"type": "text", "text": "in "}, {"type": "text", "text": "parts"}]}],
            "in parts",
        ),
        ([{"content": [{"type": "image"}, {"type": "text", "text": "seen"}]}], "seen"),
        ([{"content": ["a", "b"]}], "ab"),
        ([{"content": {"text": "a"}}], "a"),
        ({"content": "x"}, "x"),
        (["x"], "x"),
        ([None], ""),
        ([{"content": [None]}], ""),
        ([{"content": [{"text": 5}, {"text": "a"}]}], "a"),
        ([{"content": 5}], ""),
        ([5], ""),
        (5, ""),
        (None, ""),
    ):
        assert text_of(completion) == text


def test_trl_reward_keeps_the_average(rows):
    logged = {}
    reward = MapfReward(CONFIG, short_fraction=0.5)
    columns = {name: [row[name] for row in rows] for name in ("id", "map", "starts", "goals")}
    columns |= {"cost": [row["cost"] for row in rows], "unknown": [None] * len(rows)}
    ids = [[0] * 10] * 4 + [[0] * 30] * (len(rows) - 4)
    chats = [[{"role": "assistant", "content": row["answer"]}] for row in rows]
    first = reward(
        prompts=None,
        completions=chats,
        completion_ids=ids,
        log_metric=logged.__setitem__,
        **columns,
    )
    assert first == pytest.approx([0.5] * 4 + [0.0] * (len(rows) - 4))
    assert reward.short_fraction == pytest.approx(0.75 * 0.5 + 0.25 * 4 / len(rows))
    assert logged["valid"] == logged["optimal"] == 1.0
    assert logged["reward_length"] == pytest.approx(-(len(rows) - 4) / len(rows))
    # The second call uses the average that the first one left.
    reward.short_fraction = 0.9
    plain = [row["answer"] for row in rows]
    second = reward(completions=plain, completion_ids=ids, **columns)
    assert second == pytest.approx([0.8] * 4 + [0.6] * (len(rows) - 4))
    # Rows of another task get no reward, and the average does not count them.
    foreign = [i % 2 for i in range(len(rows))]
    mixed = {
        n: [None if f else v for v, f in zip(c, foreign, strict=True)] for n, c in columns.items()
    }
    reward.short_fraction = 0.9
    third = reward(
        completions=[[] if f else p for p, f in zip(plain, foreign, strict=True)],
        completion_ids=ids,
        **mixed,
    )
    assert third == [None if f else one for one, f in zip(second, foreign, strict=True)]
    for empty in (
        {"map": []},
        {"map": "", "starts": "", "goals": "", "cost": ""},
        {"map": [], "starts": [], "goals": [], "cost": 0},
        {"cost": float("nan")},
        {"cost": np.float32("nan")},
    ):
        filled = {
            n: [empty.get(n, v) if f else v for v, f in zip(c, foreign, strict=True)]
            for n, c in columns.items()
        }
        reward.short_fraction = 0.9
        assert reward(completions=plain, completion_ids=ids, **filled) == third
    before = reward.short_fraction
    nobody = {name: [None] for name in columns}
    assert reward(completions=["?"], completion_ids=[[0]], **nobody) == [None]
    assert reward.short_fraction == before
    with pytest.raises(ValueError, match=r"columns: \['goals', 'cost'\] missing"):
        reward(completions=plain, completion_ids=ids, map=[], starts=[])
    with pytest.raises(ValueError, match="cost: missing, the reward needs the optimum"):
        reward(completions=plain, completion_ids=ids, status=["feasible"] * len(rows), **columns)


@pytest.mark.slow
def test_trl_trains_with_it(tmp_path, records):
    """One step of the real trainer: its rewards and logs are those of the verifier."""
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(TINY_MODEL)
    model = transformers.AutoModelForCausalLM.from_pretrained(TINY_MODEL, dtype=torch.float32)
    rows = dataset.dataset_rows(made(4, (3, 4), 0.15), list_holes=True)
    calls = []

    class Recording(MapfReward):
        def __call__(self, **arguments):
            rewards = super().__call__(**arguments)
            calls.append((arguments, rewards))
            return rewards

    trainer = trl.GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=Recording(RewardConfig(48, 64)),
        train_dataset=datasets.Dataset.from_list(rows),
        args=trl.GRPOConfig(
            output_dir=str(tmp_path),
            per_device_train_batch_size=16,
            num_generations=8,
            max_completion_length=64,
            max_steps=1,
            learning_rate=1e-5,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            disable_tqdm=True,
        ),
    )
    trainer.train()
    ((arguments, rewards),) = calls
    columns = ("map", "completions", "completion_ids")
    lakes, completions, ids = (arguments[name] for name in columns)
    by_map = {json.dumps(row["map"]): row for row in rows}
    verdicts = [
        judged_alone(by_map[json.dumps(lake)], text_of(completion))
        for lake, completion in zip(lakes, completions, strict=True)
    ]
    for lake, tokens, verdict, value in zip(lakes, ids, verdicts, rewards, strict=True):
        accuracy, most = 0.0, 2 * by_map[json.dumps(lake)]["cost"]
        if verdict["valid"]:
            gap = verdict["plan_cost"] - most // 2
            accuracy = 1 - 0.7 * gap / most if gap <= most else 0.3
        length = -min(max((len(tokens) - 48) / 16, 0), 1)
        assert value == pytest.approx(0.5 * accuracy + 0.5 * length, abs=1e-6)
    assert len(rewards) == 16
    log = trainer.state.log_history[0]
    assert log["valid"] == pytest.approx(np.mean([verdict["valid"] for verdict in verdicts]))
    assert log["reward"] == pytest.approx(np.mean(rewards), abs=1e-5)
    assert math.isfinite(log["grad_norm"])


def judged_alone(row, text):
    """What the command line says of one answer."""
    record = {name: row[name] for name in ("id", "map", "starts", "goals")}
    plans = mapf_jax.plans_from_texts([text], row["num_agents"])
    verdict = mapf_jax.verify(formats.from_records([record]), plans)
    return formats.verdict_fields(jax.tree.map(lambda leaf: leaf[0], verdict))


def test_verl_scores(rows):
    truths = [row["reward_model"]["ground_truth"] for row in rows]
    texts = [slower(row)[0] for row in rows]
    sources = [row["data_source"] for row in rows]
    scores = bridge.compute_scores(
        data_sources=sources, solution_strs=texts, ground_truths=truths, extra_infos=[{}] * 10
    )
    for row, text, truth, score in zip(rows, texts, truths, scores, strict=True):
        accuracy = 1 - 0.7 * row["num_agents"] / (2 * row["cost"])
        assert score["score"] == score["reward_accuracy"] == pytest.approx(accuracy)
        assert (score["acc"], score["valid"], score["optimal"]) == (1.0, 1.0, 0.0)
        single = bridge.compute_score(
            data_source="any", solution_str=text, ground_truth=json.loads(truth), router=None
        )
        assert single == score
    # With a tokenizer lengths count: the tiny one has a token for most of what stands in answers.
    (score,) = bridge.compute_scores(
        solution_strs=texts[:1], ground_truths=truths[:1],
        tokenizer=str(TINY_MODEL), short_fraction=0.5, short_length=1, long_length=2,
    )  # fmt: skip
    assert score["num_tokens"] > 5
    assert score["score"] == pytest.approx(0.5 * score["reward_accuracy"] - 0.5)


def test_verl_calls_it(rows, tmp_path):
    """The reward managers of verl, with its own data format and a real tokenizer."""
    pytest.importorskip("verl")
    import torch
    import transformers
    from tensordict import TensorDict
    from verl import DataProto
    from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager
    from verl.utils.import_utils import load_extern_object
    from verl.workers.reward_manager.batch import BatchRewardManager

    module = "pkg://mapf_jax.bridges.rewards"
    tokenizer = transformers.AutoTokenizer.from_pretrained(TINY_MODEL)
    pad = tokenizer.pad_token_id
    texts = [row["answer"] if i % 2 else "none" for i, row in enumerate(rows)]
    ids = [tokenizer(text, add_special_tokens=False).input_ids for text in texts]
    longest = max(map(len, ids))
    responses = torch.tensor([one + [pad] * (longest - len(one)) for one in ids])
    prompts = torch.full((len(rows), 3), pad)
    mask = torch.tensor([[1] * (3 + len(one)) + [0] * (longest - len(one)) for one in ids])
    columns = {
        name: np.array([row[name] for row in rows], dtype=object)
        for name in ("data_source", "reward_model", "extra_info")
    }
    batch = {"prompts": prompts, "responses": responses, "attention_mask": mask}
    data = DataProto(batch=TensorDict(batch, batch_size=len(rows)), non_tensor_batch=columns)
    expected = [float(i % 2) for i in range(len(rows))]

    async def one_by_one():
        compute_score = load_extern_object(module, "compute_score")
        manager = NaiveRewardManager(None, tokenizer, compute_score)
        return await asyncio.gather(
            *(manager.run_single(data[i : i + 1]) for i in range(len(rows)))
        )

    results = asyncio.run(one_by_one())
    assert [result["reward_score"] for result in results] == expected
    assert [result["reward_extra_info"]["acc"] for result in results] == expected

    manager = BatchRewardManager(tokenizer, 0, load_extern_object(module, "compute_scores"))
    rewards = manager(data, return_dict=True)
    assert rewards["reward_tensor"].sum(1).tolist() == expected
    assert rewards["reward_extra_info"]["optimal"] == expected


# Verifiers


def test_taskset(monkeypatch):
    """Tasks loaded by name, their own check, and the score of traces as the engine makes them."""
    vf = pytest.importorskip("verifiers.v1", reason="verifiers from 0.4 on is not installed")
    monkeypatch.syspath_prepend(str(ROOT / "mapf_jax" / "bridges"))
    monkeypatch.delitem(sys.modules, "verifiers_taskset", raising=False)
    task_options = {"short_fraction": 0.7, "short_length": 10, "long_length": 30}
    options = {"id": "verifiers_taskset", "num_instances": 4, "sizes": (3, 4), "task": task_options}
    config = vf.SingleAgentEnvConfig.model_validate({"taskset": options})
    environment = vf.load_environment(config)
    tasks = list(environment.taskset)
    assert len({task.key for task in tasks}) == 4
    for number, task in enumerate(tasks):
        assert asyncio.run(task.validate(None)) is True
        right = number % 2
        reply = task.data.answer if right else "I pass."
        trace = vf.Trace(
            task=vf.TraceTask(type="MapfTask", data=task.data),
            agent=vf.AgentInfo(config=vf.AgentConfig()),
            nodes=[
                vf.MessageNode(message=vf.UserMessage(content=task.data.prompt)),
                vf.MessageNode(parent=0, message=vf.AssistantMessage(content=reply), sampled=True),
            ],
            calls=[vf.ModelCall(node=1, usage=vf.Usage(prompt_tokens=9, completion_tokens=20))],
        )
        asyncio.run(task.score(trace))
        assert trace.reward == pytest.approx(0.65 * right + 0.35 * -0.5)
        assert trace.metrics["optimal"] == trace.metrics["valid"] == right
        assert trace.metrics["num_tokens"] == 20
