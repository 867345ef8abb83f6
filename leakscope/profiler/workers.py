"""The environment of workers that a service starts, so that they record themselves."""

from __future__ import annotations


def worker_environment() -> dict[str, str]:
    """Variables that make a Python process record itself as a rank of the running `leakscope run`, where it trains.

    What a recorded script starts itself has them already. They are for workers that a service starts, as Ray's do, on
    a machine that has the run's folder: `ray.init(runtime_env={"env_vars": leakscope.worker_environment()})`.

    Returns:
        Name to value; nothing where this process is not recorded, or with `--no-follow`.

    """
    from leakscope.process.propagate import environment

    return environment()
