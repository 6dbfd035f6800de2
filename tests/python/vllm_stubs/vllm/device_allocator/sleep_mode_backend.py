import abc
import importlib


class SleepModeBackend(abc.ABC):
    def __init__(self):
        self._state = "RUNNING"

    @abc.abstractmethod
    def suspend(self, level=1): ...

    @abc.abstractmethod
    def resume(self, tags=None): ...

    def state(self):
        return self._state

    def discard(self, tags):
        raise RuntimeError("no discard")

    @classmethod
    def is_supported(cls):
        return True

    @classmethod
    def preserves_communicators(cls):
        return False

    @classmethod
    def preserves_compiled_artifacts(cls):
        return False

    @classmethod
    def preserves_graphs_with_communicators(cls):
        return False

    @classmethod
    def supports_durable_storage(cls):
        return False


class SleepModeBackendFactory:
    _classes = {}

    @classmethod
    def register_backend(cls, name, module_path, class_name):
        if name in cls._classes:
            raise ValueError(f"{name} is registered")
        cls._classes[name] = (module_path, class_name)

    @classmethod
    def create_backend(cls, model_config):
        name = model_config.sleep_mode_backend
        if name not in cls._classes:
            raise ValueError(f"no backend {name}")
        module, class_name = cls._classes[name]
        backend = getattr(importlib.import_module(module), class_name)
        if not backend.is_supported():
            raise ValueError(f"{name} is not supported")
        return backend()
