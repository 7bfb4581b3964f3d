"""Studies to start from: `STUDY` holds a file's variants, `get_config` what they have in common.

`python -m experiments.study --config=studies/NAME --workdir=studies/NAME` trains the tiny model;
with `--config=studies/NAME:qwen3_4b --config.model.path=/models/Qwen3-4B` the same variants start
from Qwen3-4B. Options of the base change for all variants. Finished studies stand beside their
results, in docs/studies.
"""
