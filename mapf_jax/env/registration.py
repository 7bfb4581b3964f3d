"""Registers the names of `mapf_jax.env` with Gymnasium, whichever of both is imported first."""

import contextlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from mapf_jax.env.environment import registered_envs

_MODULE = "mapf_jax.env.gymnasium_env"


def register(gymnasium: Any) -> None:
    """Registers all names; the adapter itself is imported when an environment is made."""
    for name in registered_envs():
        gymnasium.register(
            name,
            f"{_MODULE}:made",
            kwargs={"name": name},
            vector_entry_point=f"{_MODULE}:made_vector",
        )


def register_on_import() -> None:
    """Registers all names at once if Gymnasium is loaded, or else as soon as it is.

    The package itself must not load it, and from 1.0 on Gymnasium reads no entry points.
    """
    if loaded := sys.modules.get("gymnasium"):
        register(loaded)
    else:
        sys.meta_path.insert(0, _Registering())


class _Registering:
    """Finds nothing but Gymnasium, until that is loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "gymnasium":
            return None
        sys.meta_path.remove(self)  # For this search; many only ask whether the module is there.
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_register(module: ModuleType) -> None:
                with contextlib.suppress(ValueError):  # An earlier search may have loaded it.
                    sys.meta_path.remove(self)
                execute(module)
                register(module)

            spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec
