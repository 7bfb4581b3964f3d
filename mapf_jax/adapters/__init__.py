"""The simulator behind other libraries' interfaces; import the module of the one you have.

* `mapf_jax.adapters.gymnasium_env`: `MapfGymEnv`, `MapfVectorEnv` (extra `gymnasium`)
* `mapf_jax.adapters.pettingzoo_env`: `MapfParallelEnv` (extra `pettingzoo`)
"""
