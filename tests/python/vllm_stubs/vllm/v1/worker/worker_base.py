class WorkerBase:
    def __init__(self, vllm_config, local_rank, rank):
        self.vllm_config = vllm_config
        self.local_rank = local_rank
        self.rank = rank


class WorkerWrapperBase:
    """Loads the plugins first, then the worker's module."""

    def __init__(self):
        self.worker = None

    def init_worker(self, vllm_config, local_rank, rank):
        from vllm.plugins import load_general_plugins

        load_general_plugins()
        from vllm.v1.worker.gpu_worker import Worker

        self.worker = Worker(vllm_config=vllm_config, local_rank=local_rank, rank=rank)
