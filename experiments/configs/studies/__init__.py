"""One file for each study: `get_config()` is what its variants have in common, `STUDY` what differs.

`python -m experiments.study --config=experiments/configs/studies/NAME.py --workdir=studies/NAME`;
options of the base change for all variants, such as `--config.model.path=/models/Qwen3-4B`.
"""
