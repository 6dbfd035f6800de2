"""Torpor in vLLM: the sleep-mode backend `torpor` (--enable-sleep-mode --sleep-mode-backend
torpor).

vLLM loads this module in each of its processes through the entry point vllm.general_plugins and
calls register(). Neither starts anything, opens a session or touches the GPU.
"""

import functools
import importlib.metadata
import logging
import types

from torpor.vllm import _hook

BACKEND = "torpor"
# Below vLLM's own logger, so that its configuration shows what is logged here.
_logger = logging.getLogger("vllm.torpor")


def register() -> None:
    """Registers the backend, and has workers that choose it allocate from Torpor. Call it as
    often as you like. Where vLLM has no sleep-mode backends it logs a warning and does nothing
    else."""
    try:
        from vllm.device_allocator.sleep_mode_backend import SleepModeBackendFactory
    except ImportError:
        _logger.warning(
            "vLLM %s has no sleep-mode backends (vllm.device_allocator.sleep_mode_backend), so"
            " there is no --sleep-mode-backend %s; everything else works as without Torpor",
            _vllm_version(), BACKEND,
        )
        return
    try:
        SleepModeBackendFactory.register_backend(
            BACKEND, "torpor.vllm.backend", "TorporSleepModeBackend"
        )
    except ValueError:
        _logger.debug("the sleep-mode backend %s is registered already", BACKEND)
    _hook.after_import("vllm.v1.worker.worker_base", _watch_workers)


def _watch_workers(worker_base: types.ModuleType) -> None:
    """Has workers put Torpor's allocator in the place of vLLM's as soon as they know their
    configuration. vLLM asks for its backend only at the first sleep, long after the weights are
    loaded, and its allocator for no configuration at all."""
    worker = getattr(worker_base, "WorkerBase", None)
    if worker is None:
        _logger.warning("vLLM %s has no WorkerBase in %s: call torpor.vllm.allocator.install()"
                        " before the model is loaded", _vllm_version(), worker_base.__name__)
        return
    if getattr(worker.__init__, "torpor_watches", False):
        return
    construct = worker.__init__

    @functools.wraps(construct)
    def construct_and_install(self, *arguments, **named):
        construct(self, *arguments, **named)
        model = getattr(getattr(self, "vllm_config", None), "model_config", None)
        if (
            getattr(model, "enable_sleep_mode", False)
            and getattr(model, "sleep_mode_backend", None) == BACKEND
        ):
            from torpor.vllm import allocator

            allocator.install()

    construct_and_install.torpor_watches = True
    worker.__init__ = construct_and_install


def _vllm_version() -> str:
    try:
        return importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"
