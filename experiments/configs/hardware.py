"""The publication's budget on accelerators: a model and a slice of chips, with what fits on it.

`--config=experiments/configs/hardware.py:Qwen3-4B@v5p-64`, for any pair in `hardware.json`, which

    python -m learner.plan --config=Qwen3-0.6B,Qwen3-1.7B,Qwen3-4B --max_new_tokens=4096 \\
        --json=experiments/configs/hardware.json

derives; `cards.json` and `adapters.json` are for single cards of 16 to 40 GB, made by the commands
in docs/scaling.md.
Needs the checkpoint's folder: `--config.model.path=/models/Qwen3-4B`.
"""

import json
from pathlib import Path

import ml_collections

from experiments.configs import qwen3_0_6b, qwen3_4b
from learner.devices import sharding

_PLANS = [
    json.loads(Path(__file__).with_name(f"{name}.json").read_text(encoding="utf-8"))
    for name in ("hardware", "cards", "adapters")
]

#: Model and chips -> the mesh and batch sizes that go with them, and what is trained how.
LAYOUTS = {
    f"{target['config']}@{target['chip']}": plan["work"] | target
    for plan in _PLANS
    for target in plan["targets"]
}


def get_config(name: str = "Qwen3-0.6B@h200") -> ml_collections.ConfigDict:
    """As `qwen3_0_6b.py` or, for larger models, `qwen3_4b.py`, with what fits each device.

    Raises:
        ValueError: the name is none of `LAYOUTS`.
    """
    if name not in LAYOUTS:
        raise ValueError(f"hardware configuration {name!r}: allowed are {', '.join(LAYOUTS)}")
    layout = LAYOUTS[name]
    data, fsdp, tensor = sharding.mesh_size(layout["mesh"])
    base = qwen3_0_6b if layout["config"] == "Qwen3-0.6B" else qwen3_4b
    config = base.get_config()
    config.model.path = layout["config"]
    config.mesh.data, config.mesh.fsdp, config.mesh.tensor = data, fsdp, tensor
    config.training.micro_batch_size = layout["sequences"] * data * fsdp
    config.training.sampling_slots = layout["completions"] * data * fsdp
    config.training.cache_fraction = layout["cache_fraction"]
    config.model.dtype = layout["dtype"]
    config.model.remat = layout.get("remat", "full")
    config.training.optimizer.moment_dtype = layout["moment_dtype"]
    config.training.lora.rank = layout["lora_rank"]
    return config
