"""A worker whose model is a tensor and a buffer, with a KV cache and some runtime state."""

import torch
from vllm.device_allocator import get_mem_allocator_instance
from vllm.v1.worker.worker_base import WorkerBase


class Worker(WorkerBase):
    def __init__(self, vllm_config, local_rank, rank):
        super().__init__(vllm_config=vllm_config, local_rank=local_rank, rank=rank)
        self._backend = None
        self._saved_buffer = None
        self.tensors = {}

    @property
    def sleep_mode_backend(self):
        if self._backend is None:
            from vllm.device_allocator.sleep_mode_backend import SleepModeBackendFactory

            self._backend = SleepModeBackendFactory.create_backend(self.vllm_config.model_config)
        return self._backend

    def _pool(self, tag):
        allocator = get_mem_allocator_instance()
        if tag == "weights":
            assert allocator.get_current_usage() == 0, "one instance per process"
        return allocator.use_memory_pool(tag=tag)

    def init_device(self):
        torch.cuda.set_device(self.local_rank)

    def load_model(self, sizes):
        with self._pool("weights"):
            self.tensors["weights"] = torch.empty(sizes["weights"])
            self.tensors["buffer"] = torch.empty(sizes["buffer"])
            scratch = torch.empty(sizes["scratch"])
            del scratch

    def initialize_kv_cache(self, sizes):
        kv_cache = self._pool("kv_cache")
        with self._pool("runtime"):
            self.tensors["runtime"] = torch.empty(sizes["runtime"])
            with kv_cache:
                self.tensors["kv_cache"] = torch.empty(sizes["kv_cache"])
            self.tensors["runtime2"] = torch.empty(sizes["runtime"])

    def sleep(self, level):
        if level == 2:
            self._saved_buffer = self.tensors["buffer"].read()
        self.sleep_mode_backend.suspend(level)

    def wake_up(self, tags):
        self.sleep_mode_backend.resume(tags)
        if (tags is None or "weights" in tags) and self._saved_buffer is not None:
            self.tensors["buffer"].write(self._saved_buffer)
            self._saved_buffer = None

    def discard(self, tags):
        self.sleep_mode_backend.discard(tags)

    def shutdown(self):
        self.tensors.clear()
        from vllm.device_allocator.cumem import CuMemAllocator

        if CuMemAllocator.instance is not None:
            CuMemAllocator.instance.release_pools()
