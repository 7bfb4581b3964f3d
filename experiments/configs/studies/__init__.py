"""One file for each study: `STUDY` holds its variants, `get_config` what they have in common.

`python -m experiments.study --config=experiments/configs/studies/NAME.py --workdir=studies/NAME`
trains the tiny model; with `--config=.../NAME.py:qwen3_4b --config.model.path=/models/Qwen3-4B` the
same variants start from Qwen3-4B. Options of the base change for all variants.
"""
