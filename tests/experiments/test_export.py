"""What a run has trained as a Hugging Face checkpoint: the same model, adapters added."""

import dataclasses
import shutil

import forward_pass
import jax
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from experiments import export
from experiments import settings as settings_lib
from experiments.configs import tiny
from experiments.run import store as files
from experiments.run.policy import load_params, load_policy
from experiments.text.errors import ended_in_one_line
from learner.training import lora, train_state
from learner.training.checkpoints import Checkpoints
from learner.training.lora import LoraConfig


@pytest.fixture
def settings():
    return settings_lib.from_config(tiny.get_config())


def save(root, settings, params, policy, steps):
    training = settings.training
    state = train_state.create_train_state(
        params, policy.config, training.optimizer, policy.mesh, training.lora
    )
    files.write_file(root / "config.json", settings.to_dict())
    with Checkpoints(root / "checkpoints") as checkpoints:
        for step in steps:
            checkpoints.save(step, dataclasses.replace(state, step=state.step + step), {})


def their_logits(folder, ids):
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return theirs(torch.tensor([ids])).logits[0].numpy()


def our_logits(params, config, ids):
    positions = np.arange(len(ids))[None]
    return forward_pass.logits(params, config, np.array([ids]), positions)[0]


def assert_refused(arguments, message, capsys):
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        export.main(arguments)
    error = str(ended.value)
    assert error.startswith("error: ")
    assert message in error
    assert "\n" not in error


def test_ctrl_c_ends_a_command_without_a_traceback():
    with pytest.raises(SystemExit) as ended, ended_in_one_line():
        raise KeyboardInterrupt
    assert ended.value.code == 130


def test_transformers_computes_what_was_trained(settings, tmp_path, capsys):
    root = tmp_path / "run"
    policy = load_policy(settings)
    params = jax.tree.map(lambda x: x * 1.1, load_params(settings, policy))
    kept = jax.tree.map(np.asarray, params)
    save(root, settings, params, policy, steps=(3, 7))
    out = tmp_path / "out"
    export.main([str(root), f"--out={out}"])
    assert capsys.readouterr().out == f"{root} after 7 training steps: {out}\n"
    ids = [5, 100, 7, 900, 42]
    np.testing.assert_allclose(
        their_logits(out, ids), our_logits(kept, policy.config, ids), atol=1e-4
    )
    tokenizer = AutoTokenizer.from_pretrained(out)
    chat = [{"role": "user", "content": "Plan."}]
    assert tokenizer.apply_chat_template(chat) == policy.tokenizer.apply_chat_template(chat)

    # Another step, devices and dtype; nothing that is there is written over.
    half = tmp_path / "half"
    given = ["--mesh=1x2x2", "--dtype=bfloat16", f"--out={half}"]
    export.main([f"{root}:3", *given])
    assert AutoModelForCausalLM.from_pretrained(half, dtype="auto").dtype == torch.bfloat16
    before = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    for arguments, message in (
        ([str(root), f"--out={out}"], "it exists and is not an empty folder"),
        (
            [f"{root}:4", f"--out={tmp_path / 'x'}"],
            "the run has no such checkpoint, but those of steps [",
        ),
        ([str(tmp_path), f"--out={tmp_path / 'x'}"], "no run is there; allowed are RUN, RUN:STEP"),
        ([str(root), f"--out={tmp_path / 'x'}", "--mesh=2"], "mesh is '2'; it must be data x"),
        ([str(root), f"--out={tmp_path / 'x'}", "--mesh=9x9x9"], "takes 729 devices; there are"),
        ([str(root), f"--out={tmp_path / 'x'}", "--mesh=1x1x8"], "num_attention_heads is 4"),
        ([str(root), f"--out={root / 'x'}"], "it lies in the folder of the run"),
    ):
        assert_refused(arguments, message, capsys)
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir()} == before
    assert not (tmp_path / "x").exists()


def test_options_and_models_that_cannot_be_read_are_named(settings, tmp_path, capsys):
    root, moved = tmp_path / "run", tmp_path / "moved"
    policy = load_policy(settings)
    save(root, settings, load_params(settings, policy), policy, steps=(1,))
    arguments = [str(root), f"--out={tmp_path / 'x'}"]
    kept = settings.to_dict()
    files.write_file(root / "config.json", {**kept, "model": {**kept["model"], "path": str(moved)}})
    assert_refused(arguments, f"'{moved}'", capsys)
    shutil.copytree(settings.model.folder, moved)
    (moved / "tokenizer.json").write_text("{}")
    assert_refused(arguments, f"the tokenizer in '{moved}' cannot be read", capsys)
    (moved / "tokenizer.json").unlink()
    assert_refused(arguments, "has none of tokenizer.json, vocab.json", capsys)
    (root / "config.json").write_text("{")
    assert_refused(arguments, "config.json is not JSON", capsys)
    assert not (tmp_path / "x").exists()


def test_adapters_are_added_to_their_base(settings, tmp_path):
    root = tmp_path / "run"
    adapters = LoraConfig(rank=2, targets=("q_proj", "down_proj"))
    training = dataclasses.replace(settings.training, lora=adapters)
    settings = dataclasses.replace(settings, training=training)
    policy = load_policy(settings)
    trained = jax.tree.map(
        lambda x: x + 0.02, lora.init(jax.random.key(0), adapters, policy.config)
    )
    base = load_params(settings, policy)
    want = jax.tree.map(np.asarray, lora.merge(lora.attach(base, trained, adapters)))
    save(root, settings, trained, policy, steps=(1,))
    export.main([str(root), f"--out={tmp_path / 'out'}"])
    ids = [5, 100, 7, 900, 42]
    got = their_logits(tmp_path / "out", ids)
    np.testing.assert_allclose(got, our_logits(want, policy.config, ids), atol=1e-4)
    assert np.abs(got - our_logits(base, policy.config, ids)).max() > 0.01
