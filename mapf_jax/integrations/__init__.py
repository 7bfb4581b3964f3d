"""MAPF-FrozenLake for people who train with another stack; import the module of the one you have.

* `mapf_jax.integrations.dataset`: prompts, instances and labels as a data set of the Hugging Face
  hub's form; `python -m mapf_jax export` (extra `datasets` for Parquet)
* `mapf_jax.integrations.trl_reward`: `MapfReward` for TRL's `GRPOTrainer` (extra `trl`)
* `mapf_jax.integrations.verl_reward`: `compute_score` and `compute_scores` for verl (extra `verl`)
* `mapf_jax.integrations.verifiers_env`: `load_environment` for verifiers before 0.4, a
  `SingleTurnEnv` with its `Rubric`
* `mapf_jax.integrations.verifiers_taskset`: `MapfTaskset` for verifiers from 0.4 on (extra
  `verifiers`)

All of them give the reward of `mapf_jax.answer_reward` and judge answers by `mapf_jax.verify`.
"""
