"""What vllm_plugin_test.py runs, each scenario in a process of its own, beside daemons on the host
driver: vLLM's and PyTorch's stand-ins, the real plugin, the real library.

    vllm_scenarios.py SCENARIO
"""

import hashlib
import json
import logging
import os
import random
import subprocess
import sys
import threading
import time
import types

import torch

import torpor
import torpor.vllm

MIB = 1 << 20
SIZES = {
    "weights": 7 * MIB + 1,
    "buffer": 1000,
    "scratch": 5 * MIB,
    "runtime": 300_000,
    "kv_cache": 12 * MIB,
}


def config(backend="torpor"):
    model = types.SimpleNamespace(enable_sleep_mode=True, sleep_mode_backend=backend)
    return types.SimpleNamespace(model_config=model)


def ctl(command, *arguments, target=0, fails=False):
    """JSON of torporctl; its text if it `fails`."""
    socket = os.environ["TEST_CONTROL_SOCKETS"].split(",")[target]
    line = [os.environ["TEST_TORPORCTL"], f"--target={socket}", "--json", command, *arguments]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode != 0) == fails, (line, done.stdout, done.stderr)
    return done.stdout + done.stderr if fails else json.loads(done.stdout)


def free_bytes(target=0):
    return int(ctl("usage", target=target)["device"]["free_bytes"])


def tag_states(target=0):
    """{tag: its state}, of the only worker."""
    (worker,) = ctl("usage", target=target)["workers"]
    states = {}
    for tag in worker["tags"]:
        states[tag["tag"]] = "+".join(
            name
            for name in ("resident", "offloaded", "discarded")
            if int(tag.get(f"{name}_bytes", 0)) > 0
        )
    return states


def pattern(name, size):
    return random.Random(name).randbytes(size)


def fill(tensors):
    for name, tensor in tensors.items():
        tensor.write(pattern(name, tensor.nbytes))


def intact(name, tensor):
    return tensor.read() == pattern(name, tensor.nbytes)


def zero(tensor):
    return tensor.read() == bytes(tensor.nbytes)


def new_worker():
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    wrapper = WorkerWrapperBase()
    wrapper.init_worker(config(), local_rank=0, rank=0)
    worker = wrapper.worker
    worker.init_device()
    worker.load_model(SIZES)
    worker.initialize_kv_cache(SIZES)
    fill(worker.tensors)
    return worker


def allocator():
    from torpor.vllm.allocator import CuMemAllocator

    return CuMemAllocator.get_instance()


def raises(kind, function, *arguments):
    try:
        function(*arguments)
    except kind as error:
        return str(error)
    raise AssertionError(f"{function} did not raise {kind}")


# ---- Registration


def registers_and_starts_nothing():
    threads = threading.active_count()
    torpor.vllm.register()
    torpor.vllm.register()
    assert "vllm.device_allocator.cumem" not in sys.modules
    assert "vllm.v1.worker.worker_base" not in sys.modules
    assert "torpor.torch" not in sys.modules and "torpor.vllm.backend" not in sys.modules
    assert torpor._abi._library is None and threading.active_count() == threads
    assert not list(torpor.sessions())

    from vllm.device_allocator.sleep_mode_backend import SleepModeBackend, SleepModeBackendFactory

    backend = SleepModeBackendFactory.create_backend(config().model_config)
    assert isinstance(backend, SleepModeBackend) and backend.state() == "RUNNING"
    assert type(backend).__name__ == "TorporSleepModeBackend"
    flags = [
        getattr(type(backend), flag)()
        for flag in (
            "is_supported", "preserves_communicators", "preserves_compiled_artifacts",
            "preserves_graphs_with_communicators", "supports_durable_storage",
        )
    ]
    assert flags == [True, True, True, False, False], flags
    assert not list(torpor.sessions())
    # Nothing has been allocated: nothing to do.
    backend.suspend(1)
    assert backend.state() == "SUSPENDED"
    backend.resume()
    assert backend.state() == "RUNNING"
    raises(ValueError, backend.suspend, 3)


def registered_twice():
    """Before the worker's module is imported, as in an engine of one process, and after."""
    torpor.vllm.register()
    torpor.vllm.register()
    worker = new_worker()
    from vllm.v1.worker import worker_base

    assert not any(type(finder).__module__ == "torpor.vllm._hook" for finder in sys.meta_path)
    construct = worker_base.WorkerBase.__init__
    torpor.vllm.register()
    assert worker_base.WorkerBase.__init__ is construct
    assert not hasattr(construct.__wrapped__, "__wrapped__")
    assert worker_base.__loader__.get_source(worker_base.__name__)
    assert set(tag_states()) == {"weights", "kv_cache", "runtime"}
    worker.sleep(1)


def forked_engine():
    """The engine forks its workers after it has loaded the plugins."""
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    allocator()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            level_one()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def vllm_without_backends():
    messages = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append((record.levelname, record.getMessage()))
    logging.getLogger("vllm.torpor").addHandler(handler)
    sys.modules["vllm.device_allocator.sleep_mode_backend"] = None  # as if it were not there
    torpor.vllm.register()
    ((level, text),) = messages
    assert level == "WARNING" and "no sleep-mode backends" in text, messages
    assert not sys.meta_path[0].__class__.__module__.startswith("torpor")


def others_keep_their_allocator():
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    wrapper = WorkerWrapperBase()
    wrapper.init_worker(config("cumem"), local_rank=0, rank=0)
    from vllm.device_allocator import cumem, get_mem_allocator_instance

    assert type(get_mem_allocator_instance()).__module__ == cumem.__name__
    assert not list(torpor.sessions())


def refuses_memory_of_another_allocator():
    from vllm.device_allocator import get_mem_allocator_instance
    from vllm.device_allocator.sleep_mode_backend import SleepModeBackendFactory

    with get_mem_allocator_instance().use_memory_pool("weights"):
        pass
    torpor.vllm.register()
    text = raises(RuntimeError, SleepModeBackendFactory.create_backend, config().model_config)
    assert "vLLM's own allocator" in text, text


# ---- A worker asleep and awake


def level_one():
    worker = new_worker()
    backend = worker.sleep_mode_backend
    addresses = {name: tensor.data_ptr() for name, tensor in worker.tensors.items()}
    used = allocator().get_current_usage()
    free = free_bytes()
    for _ in range(3):
        fill(worker.tensors)
        worker.sleep(1)
        assert backend.state() == "SUSPENDED"
        assert free_bytes() == free + used
        assert tag_states() == {
            "weights": "offloaded", "runtime": "offloaded", "kv_cache": "discarded"
        }, tag_states()
        worker.wake_up(None)
        assert backend.state() == "RUNNING" and free_bytes() == free
        for name, tensor in worker.tensors.items():
            assert zero(tensor) if name == "kv_cache" else intact(name, tensor), name
    assert addresses == {name: tensor.data_ptr() for name, tensor in worker.tensors.items()}
    del tensor
    worker.shutdown()
    assert free_bytes() == free + used


def level_two_shows_nobody_elses_bytes():
    worker = new_worker()
    free = free_bytes()
    worker.sleep(2)
    assert tag_states() == {"weights": "discarded", "runtime": "offloaded", "kv_cache": "discarded"}
    # A neighbour fills the whole device and leaves.
    neighbour = torpor.connect(name="neighbour")
    taken = []
    size = 64 * MIB
    while size >= 2 * MIB:
        try:
            taken.append(neighbour.allocate("secret", size))
        except torpor.errors.ResourceExhausted:
            size //= 2
        else:
            neighbour.write(taken[-1], b"\x5a" * size)
    neighbour.close()
    worker.wake_up(None)
    while free_bytes() != free:  # the daemon is still taking back what the neighbour had
        time.sleep(0.01)
    assert zero(worker.tensors["weights"]) and zero(worker.tensors["kv_cache"])
    assert intact("buffer", worker.tensors["buffer"])
    assert intact("runtime", worker.tensors["runtime"])
    fill(worker.tensors)
    worker.sleep(1)
    worker.wake_up(None)
    assert intact("weights", worker.tensors["weights"])


def partial_wakes():
    worker = new_worker()
    worker.sleep(1)
    worker.wake_up(["weights"])
    assert worker.sleep_mode_backend.state() == "SUSPENDED"
    assert tag_states() == {"weights": "resident", "runtime": "resident", "kv_cache": "discarded"}
    for name in ("weights", "buffer", "runtime", "runtime2"):
        assert intact(name, worker.tensors[name]), name
    worker.wake_up(["kv_cache"])
    assert worker.sleep_mode_backend.state() == "RUNNING"
    assert zero(worker.tensors["kv_cache"])
    worker.sleep(1)
    worker.wake_up(["kv_cache"])
    assert tag_states() == {"weights": "offloaded", "runtime": "resident", "kv_cache": "resident"}
    worker.wake_up([])
    assert tag_states()["weights"] == "offloaded"
    worker.wake_up(["weights", "no such tag"])
    assert set(tag_states().values()) == {"resident"}
    assert intact("weights", worker.tensors["weights"])


def discarded_cache():
    worker = new_worker()
    free = free_bytes()
    worker.discard(("kv_cache",))
    assert worker.sleep_mode_backend.state() == "SUSPENDED"
    assert free_bytes() - free >= SIZES["kv_cache"]
    for name in ("weights", "buffer", "runtime"):
        assert intact(name, worker.tensors[name]), name
    # What sleeps stays as it is, also if a sleep wants to keep it.
    allocator().sleep(("weights", "runtime", "kv_cache"))
    assert tag_states() == {"weights": "offloaded", "runtime": "offloaded", "kv_cache": "discarded"}
    allocator().sleep(())
    allocator().discard(("weights", "kv_cache", "never used"))
    assert tag_states() == {"weights": "offloaded", "runtime": "offloaded", "kv_cache": "discarded"}
    worker.wake_up(None)
    assert free_bytes() == free and zero(worker.tensors["kv_cache"])
    assert intact("weights", worker.tensors["weights"])


def no_room_on_the_device():
    worker = new_worker()
    worker.sleep(1)
    asleep = tag_states()
    neighbour = torpor.connect(name="neighbour")
    size = neighbour.usage().available_bytes
    taken = neighbour.allocate("x", size - 4 * MIB)
    text = raises(RuntimeError, worker.wake_up, None)
    assert "available_bytes" in text and "requested_bytes" in text, text
    assert worker.sleep_mode_backend.state() == "SUSPENDED"
    assert all(data.is_asleep for data in allocator().pointer_to_data.values())
    neighbour.free(taken)
    neighbour.close()
    assert tag_states() == asleep
    worker.wake_up(None)
    assert intact("weights", worker.tensors["weights"])


def no_room_on_the_host():
    memory = allocator()
    torpor.vllm.register()
    with memory.use_memory_pool("weights"):
        weights = torch.empty(40 * MIB)
    fill({"weights": weights})
    text = raises(RuntimeError, memory.sleep, "weights")
    assert "RESOURCE_EXHAUSTED" in text, text
    assert not memory.asleep_tags() and intact("weights", weights)
    memory.sleep(())
    memory.wake_up()
    assert zero(weights)


def refused_from_outside():
    worker = new_worker()
    (name,) = [entry["name"] for entry in ctl("usage")["workers"]]
    text = ctl("sleep", f"--worker={name}", "--level=1", fails=True)
    assert "WORKER_NOT_QUIESCIBLE" in text and os.environ["EXPECT_ENDPOINT"] in text, text
    assert intact("weights", worker.tensors["weights"])
    worker.sleep(1)
    worker.wake_up(None)
    assert intact("weights", worker.tensors["weights"])


# ---- Two workers on two devices


def _set_up(worker):
    worker.init_device()
    worker.load_model(SIZES)
    worker.initialize_kv_cache(SIZES)
    for name, tensor in worker.tensors.items():
        tensor.write(pattern(f"{name}{worker.rank}", tensor.nbytes))
    (session,) = torpor.sessions()
    return session.info.device_uuid


def _digests(worker):
    return {name: hashlib.md5(t.read()).hexdigest() for name, t in worker.tensors.items()}


def two_workers():
    from vllm.v1.executor import MultiprocExecutor

    executor = MultiprocExecutor(config(), 2)
    uuids = executor.collective_rpc(_set_up)
    assert uuids == os.environ["CUDA_VISIBLE_DEVICES"].split(","), uuids
    before = executor.collective_rpc(_digests)
    assert before[0]["weights"] != before[1]["weights"]
    free = [free_bytes(target) for target in (0, 1)]
    executor.sleep(1)
    for target in (0, 1):
        assert free_bytes(target) > free[target] + SIZES["weights"] + SIZES["kv_cache"]
        assert tag_states(target)["weights"] == "offloaded"
    executor.wake_up(["weights"])
    assert executor.is_sleeping
    for target in (0, 1):
        assert tag_states(target)["kv_cache"] == "discarded"
    executor.wake_up(["kv_cache"])
    assert not executor.is_sleeping
    after = executor.collective_rpc(_digests)
    for rank in (0, 1):
        nothing = hashlib.md5(bytes(SIZES["kv_cache"])).hexdigest()
        assert after[rank].pop("kv_cache") == nothing and before[rank].pop("kv_cache") != nothing
        assert after[rank] == before[rank]
    executor.shutdown()


# ---- The allocator's surface


def surface():
    memory = allocator()
    assert memory is allocator() and memory.current_tag == "default"
    assert memory.get_current_usage() == 0 and memory.pointer_to_data == {}
    assert memory.allocator_and_pools == {}
    with memory.use_memory_pool("weights"):
        assert memory.current_tag == "weights"
        first = torch.empty(3 * MIB + 5)
        with memory.use_memory_pool("kv_cache"):
            assert memory.current_tag == "kv_cache"
            cache = torch.empty(100)
        second = torch.empty(10)
    assert memory.current_tag == "default"
    with memory.use_memory_pool():
        other = torch.empty(MIB)
    # A tag once more: in a pool of its own or in the first one.
    with memory.use_memory_pool("weights"):
        third = torch.empty(2 * MIB)
    assert set(memory.allocator_and_pools) == {"weights", "kv_cache", "default"}
    for pairs in memory.allocator_and_pools.values():
        assert pairs
        for pool, pluggable in pairs:
            assert isinstance(pool, torch.cuda.MemPool) and pluggable.allocator() is not None
    records = memory.pointer_to_data
    sizes = {}
    for address, data in records.items():
        device, size, start, _ = data.handle
        assert device == 0 and start == address and size % (2 * MIB) == 0, data
        assert not data.is_asleep and data.cpu_backup_tensor is None
        sizes[data.tag] = sizes.get(data.tag, 0) + size
    assert sizes == {"weights": 40 * MIB, "kv_cache": 2 * MIB, "default": 2 * MIB}, sizes
    assert memory.get_current_usage() == 44 * MIB
    tensors = {"first": first, "second": second, "third": third, "other": other, "cache": cache}
    fill(tensors)

    free = free_bytes()
    memory.sleep()  # keeps the default tag
    assert free_bytes() == free + 44 * MIB
    assert tag_states() == {"weights": "discarded", "kv_cache": "discarded", "default": "offloaded"}
    assert all(data.is_asleep for data in memory.pointer_to_data.values())
    assert memory.get_current_usage() == 44 * MIB
    memory.wake_up(["kv_cache"])
    assert {data.tag for data in memory.pointer_to_data.values() if data.is_asleep} == {"weights"}
    # Memory of a tag that sleeps is resident, and freed in any state.
    del second, third
    with memory.use_memory_pool("weights"):
        fresh = torch.empty(4 * MIB)
    fresh.write(b"fresh")
    awake = [d for d in memory.pointer_to_data.values() if d.tag == "weights" and not d.is_asleep]
    assert len(awake) == 1 and awake[0].handle[1] >= 4 * MIB, awake
    memory.sleep("weights")
    assert set(memory.asleep_tags()) == {"weights", "default", "kv_cache"}
    memory.wake_up()
    assert not memory.asleep_tags() and fresh.read()[:5] == b"fresh"
    assert zero(first)
    raises(ValueError, memory.use_memory_pool("no tag!").__enter__)
    assert memory.current_tag == "default"


def refused_allocations():
    memory = allocator()
    with memory.use_memory_pool("weights"):
        first = torch.empty(12 * MIB)
        raises(torch.OutOfMemoryError, torch.empty, 1 << 40)
        second = torch.empty(14 * MIB)
    fill({"first": first, "second": second})
    memory.sleep("weights")
    memory.wake_up()
    assert intact("first", first) and intact("second", second)
    assert memory.get_current_usage() == 26 * MIB


def empty_segments_go():
    memory = allocator()
    free = None
    for turn in range(3):
        with memory.use_memory_pool("weights"):
            scratch = torch.empty(16 * MIB)
            kept = torch.empty(10 * MIB)
            del scratch
        assert memory.get_current_usage() == 10 * MIB, turn
        free = free or free_bytes()
        assert free_bytes() == free
        del kept
        memory.release_pools()
        memory.close()
        assert memory.get_current_usage() == 0 and free_bytes() == free + 10 * MIB


def woken_from_outside():
    memory = allocator()
    with memory.use_memory_pool("weights"):
        weights = torch.empty(2 * MIB)
    fill({"weights": weights})
    memory.sleep("weights")
    (name,) = [entry["name"] for entry in ctl("usage")["workers"]]
    ctl("wake", f"--worker={name}")
    assert not any(data.is_asleep for data in memory.pointer_to_data.values())
    assert not memory.asleep_tags() and intact("weights", weights)
    memory.wake_up()
    memory.sleep("weights")
    assert all(data.is_asleep for data in memory.pointer_to_data.values())


if __name__ == "__main__":
    globals()[sys.argv[1]]()
