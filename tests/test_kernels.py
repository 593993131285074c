"""Rules that every numba kernel keeps."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType

from numba.core.dispatcher import Dispatcher

import dpsqlp


def modules() -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages(dpsqlp.__path__, "dpsqlp."):
        if not found.name.endswith("__main__"):
            yield importlib.import_module(found.name)


def test_kernels_do_not_call_across_modules() -> None:
    """Numba's cache does not see a change in another module, and would run the old code."""
    for module in modules():
        for name, value in vars(module).items():
            if isinstance(value, Dispatcher):
                assert value.py_func.__module__ == module.__name__, f"{module.__name__}.{name}"


def test_kernels_release_the_lock_and_round_as_written() -> None:
    """Shards run in threads; no fastmath, or noise would differ between machines."""
    kernels = [v for m in modules() for v in vars(m).values() if isinstance(v, Dispatcher)]
    assert len(kernels) > 20
    for kernel in kernels:
        assert kernel.targetoptions.get("nogil"), kernel
        assert not kernel.targetoptions.get("fastmath"), kernel
