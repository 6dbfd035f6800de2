"""Whether a vLLM has the interface that the plugin is written for, by its source: nothing is
run."""

import ast
import pathlib
import re
import tempfile
import zipfile

from torpor.vllm import allocator as ours
from torpor.vllm import backend

BACKEND = "vllm/device_allocator/sleep_mode_backend.py"
CUMEM = "vllm/device_allocator/cumem.py"
DEVICE_ALLOCATOR = "vllm/device_allocator/__init__.py"
WORKER_BASE = "vllm/v1/worker/worker_base.py"
GPU_WORKER = "vllm/v1/worker/gpu_worker.py"
EXECUTOR = "vllm/v1/executor/abstract.py"
PLUGINS = "vllm/plugins/__init__.py"
MODEL_CONFIG = "vllm/config/model.py"
VLLM_CONFIG = "vllm/config/vllm.py"
ARGUMENTS = "vllm/engine/arg_utils.py"

FLAGS = [
    "is_supported",
    "preserves_communicators",
    "preserves_compiled_artifacts",
    "preserves_graphs_with_communicators",
    "supports_durable_storage",
]
# Of vLLM's allocator: what its C extension calls.
INTERNAL = {"python_malloc_callback", "python_free_callback"}


class Source:
    """The Python files of a vLLM, parsed as they are asked for."""

    def __init__(self, root, version):
        self.root = pathlib.Path(root)
        self.version = version
        self._trees = {}

    @classmethod
    def of_wheel(cls, wheel):
        """Unpacks what is Python in it; `wheel` may also be a folder in which that has been
        done."""
        wheel = pathlib.Path(wheel)
        if wheel.is_dir():
            (info,) = wheel.glob("vllm-*.dist-info")
            return cls(wheel, info.name.split("-")[1].removesuffix(".dist"))
        folder = tempfile.TemporaryDirectory(prefix="vllm-")
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(".py")]
            archive.extractall(folder.name, names)
        source = cls(folder.name, wheel.name.split("-")[1])
        source._folder = folder  # lives as long
        return source

    def tree(self, path):
        if path not in self._trees:
            self._trees[path] = ast.parse((self.root / path).read_text(encoding="utf-8"))
        return self._trees[path]

    def files_with(self, word):
        for path in sorted((self.root / "vllm").rglob("*.py")):
            if word in path.read_text(encoding="utf-8"):
                yield str(path.relative_to(self.root))

    def classes(self, path):
        return {node.name: node for node in self.tree(path).body if isinstance(node, ast.ClassDef)}


def methods(node):
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {part.name: part for part in node.body if isinstance(part, kinds)}


def parameters(function):
    """Names without self or cls."""
    names = [argument.arg for argument in function.args.posonlyargs + function.args.args]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def decorators(function):
    return {ast.unparse(decorator) for decorator in function.decorator_list}


def fields(node):
    """Attributes that a class has in its body or that its __init__ sets on self."""
    names = {part.target.id for part in node.body if isinstance(part, ast.AnnAssign)}
    for part in node.body:
        if isinstance(part, ast.Assign):
            names.update(target.id for target in part.targets if isinstance(target, ast.Name))
    made = methods(node).get("__init__")
    for part in ast.walk(made) if made else ():
        if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store):
            if isinstance(part.value, ast.Name) and part.value.id == "self":
                names.add(part.attr)
    return names


def calls(node):
    """The text of what is called anywhere below, without arguments."""
    return {ast.unparse(part.func) for part in ast.walk(node) if isinstance(part, ast.Call)}


def constants(node):
    return {part.value for part in ast.walk(node) if isinstance(part, ast.Constant)}


def problems(source):
    """What vLLM lacks or does in another way, as text; nothing if the interface is there."""
    found = []

    def check(good, text):
        if not good:
            found.append(text)

    for part in (
        _backend_class, _factory, _allocator, _allocator_users, _worker, _tags, _options,
    ):
        try:
            part(source, check)
        except (KeyError, OSError, SyntaxError, StopIteration) as error:
            found.append(f"{part.__name__}: {type(error).__name__} {error}")
    return found


def problems_of_stand_ins(folder):
    """The same of the tests' own vllm, as far as it goes."""
    found = []

    def check(good, text):
        if not good:
            found.append(text)

    source = Source(folder, "stand-in")
    for part in (_backend_class, _factory, _worker):
        part(source, check)
    return found


def _backend_class(source, check):
    base = methods(source.classes(BACKEND)["SleepModeBackend"])
    mine = backend.TorporSleepModeBackend
    for name, expected in (
        ("suspend", ["level"]), ("resume", ["tags"]), ("discard", ["tags"]), ("state", []),
    ):
        check(name in base and parameters(base[name]) == expected, f"SleepModeBackend.{name}")
    for name in FLAGS:
        check(
            name in base and "classmethod" in decorators(base[name]) and not parameters(base[name]),
            f"SleepModeBackend.{name} is no class method without parameters",
        )
    for name in base:
        check(name.startswith("_") or hasattr(mine, name), f"a backend has {name}, ours has not")
    check(parameters(base["__init__"]) == [], "SleepModeBackend() takes arguments")


def _factory(source, check):
    factory = methods(source.classes(BACKEND)["SleepModeBackendFactory"])
    register = factory["register_backend"]
    check(
        parameters(register) == ["name", "module_path", "class_name"]
        and "classmethod" in decorators(register),
        "SleepModeBackendFactory.register_backend",
    )
    raised = [part for part in ast.walk(register) if isinstance(part, ast.Raise)]
    check(
        any("ValueError" in ast.unparse(part) for part in raised),
        "a backend that is registered twice is no ValueError",
    )
    text = ast.unparse(factory["create_backend"])
    check("sleep_mode_backend" in text and "is_supported()" in text, "create_backend")


def _allocator(source, check):
    theirs = source.classes(CUMEM)["CuMemAllocator"]
    mine = ours.CuMemAllocator
    mine_has = set(dir(mine)) | set(vars(mine()))
    for name in fields(theirs) | set(methods(theirs)):
        if not name.startswith("_") and name not in INTERNAL:
            check(name in mine_has, f"CuMemAllocator has {name}, ours has not")
    for name, function in methods(theirs).items():
        if name.startswith("_") or not hasattr(mine, name):
            continue
        code = getattr(mine, name)
        code = getattr(code, "__wrapped__", code).__code__
        names = [n for n in code.co_varnames[: code.co_argcount] if n != "self"]
        check(names == parameters(function), f"CuMemAllocator.{name}{tuple(parameters(function))}")
    record = source.classes(DEVICE_ALLOCATOR)["AllocationData"]
    missing = fields(record) - set(ours.AllocationData.__dataclass_fields__)
    check(not missing, f"AllocationData has {missing}")


def _allocator_users(source, check):
    """Everybody has to look the class up when it is used, so that another can be in its place."""
    for path in source.files_with("CuMemAllocator"):
        if path == CUMEM:
            continue
        for node in source.tree(path).body:
            if isinstance(node, ast.ImportFrom):
                names = {alias.name for alias in node.names}
                check("CuMemAllocator" not in names, f"{path} imports CuMemAllocator for good")
    get = next(
        node
        for node in source.tree(DEVICE_ALLOCATOR).body
        if isinstance(node, ast.FunctionDef) and node.name == "get_mem_allocator_instance"
    )
    check("CuMemAllocator.get_instance" in calls(get), "get_mem_allocator_instance")
    allowed = {*dir(ours.CuMemAllocator), *vars(ours.CuMemAllocator())}
    for path in source.files_with("get_mem_allocator_instance"):
        for name in _used_of_allocator(source.tree(path)):
            check(name in allowed, f"{path} uses {name} of the allocator")


def _used_of_allocator(tree):
    """Attributes of what get_mem_allocator_instance() gives, and of variables called allocator."""
    for part in ast.walk(tree):
        if isinstance(part, ast.Attribute):
            text = ast.unparse(part.value)
            if text in ("allocator", "get_mem_allocator_instance()", "CuMemAllocator.instance"):
                yield part.attr


def _worker(source, check):
    base = methods(source.classes(WORKER_BASE)["WorkerBase"])["__init__"]
    check("vllm_config" in parameters(base), "WorkerBase() takes no vllm_config")
    check(
        any(
            isinstance(part, ast.Attribute)
            and isinstance(part.ctx, ast.Store)
            and ast.unparse(part) == "self.vllm_config"
            for part in ast.walk(base)
        ),
        "WorkerBase does not keep vllm_config",
    )
    wrapper = methods(source.classes(WORKER_BASE)["WorkerWrapperBase"])["init_worker"]
    check("load_general_plugins" in calls(wrapper), "workers do not load the plugins")

    worker = source.classes(GPU_WORKER)["Worker"]
    check("WorkerBase" in {ast.unparse(b) for b in worker.bases}, "Worker is no WorkerBase")
    own = methods(worker)
    check("super().__init__" in calls(own["__init__"]), "Worker does not make a WorkerBase")
    for name, call in (("sleep", "suspend"), ("wake_up", "resume"), ("discard", "discard")):
        check(
            f"self.sleep_mode_backend.{call}" in calls(own[name]),
            f"Worker.{name} does not call the backend's {call}",
        )
    check(
        "SleepModeBackendFactory.create_backend" in calls(own["sleep_mode_backend"]),
        "Worker has its backend from elsewhere",
    )
    check(
        {"weights", "kv_cache"} <= constants(worker), "Worker has no tags weights and kv_cache"
    )


def _tags(source, check):
    value = next(
        node.value
        for node in source.tree(DEVICE_ALLOCATOR).body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "DEFERRABLE_TAGS"
    )
    check(ast.literal_eval(value) == ours.DEFERRABLE_TAGS, f"deferrable: {ast.unparse(value)}")
    suspend = methods(source.classes(BACKEND)["CuMemBackend"])["suspend"]
    words = {value for value in constants(suspend) if isinstance(value, str)}
    kept = {word for word in words if word.islower() and word.isidentifier()}
    check(kept == {"weights", *backend.KEPT}, f"vLLM's own backend keeps {sorted(kept)}")
    names = set()
    for path in source.files_with("use_memory_pool"):
        for part in ast.walk(source.tree(path)):
            if isinstance(part, ast.Call):
                names |= {
                    word.value.value
                    for word in part.keywords
                    if word.arg == "tag" and isinstance(word.value, ast.Constant)
                }
    for name in names - {None}:
        check(re.fullmatch(r"[A-Za-z0-9_.-]{1,63}", name), f"the tag {name!r} is none of Torpor's")


def _options(source, check):
    config = fields(source.classes(MODEL_CONFIG)["ModelConfig"])
    for name in ("enable_sleep_mode", "sleep_mode_backend"):
        check(name in config, f"ModelConfig has no {name}")
    options = constants(source.tree(ARGUMENTS))
    for name in ("--enable-sleep-mode", "--sleep-mode-backend"):
        check(name in options, f"no option {name}")
    check("load_general_plugins" in calls(source.tree(ARGUMENTS)), "no plugins at the start")
    check("vllm.general_plugins" in constants(source.tree(PLUGINS)), "vllm.general_plugins")
    # Graphs are captured into sleeping memory with vLLM's own backend only.
    config = methods(source.classes(VLLM_CONFIG)["VllmConfig"])["use_cumem_cudagraph_pool"]
    check(
        "sleep_mode_backend == 'cumem'" in ast.unparse(config), "use_cumem_cudagraph_pool changed"
    )
    executor = ast.unparse(source.tree(EXECUTOR))
    for name in ("sleep", "wake_up", "discard"):
        check(f"collective_rpc('{name}'" in executor, f"the executor does not call {name}")
