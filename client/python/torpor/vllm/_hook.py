"""Does something as soon as a module has been imported, without importing it."""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable, Sequence


def after_import(name: str, then: Callable[[types.ModuleType], None]) -> None:
    """Calls `then` with the module `name`: now, if it is imported, else right after its import. An
    exception of `then` fails that import."""
    module = sys.modules.get(name)
    if module is not None:
        then(module)
    else:
        sys.meta_path.insert(0, _Finder(name, then))


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, then: Callable[[types.ModuleType], None]) -> None:
        self._name = name
        self._then = then
        self._asks_others = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name or self._asks_others:
            return None
        self._asks_others = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._asks_others = False
        if spec is None or spec.loader is None:
            return None
        sys.meta_path.remove(self)
        execute = spec.loader.exec_module

        def execute_and_call(module: types.ModuleType) -> None:
            execute(module)
            self._then(module)

        # On this loader only, which stays what it is to whoever looks at the module's source.
        spec.loader.exec_module = execute_and_call  # type: ignore[method-assign]
        return spec
