"""Workers in processes of their own, each on its device, called all at once."""

import multiprocessing
import traceback


def _serve(pipe, vllm_config, rank):
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    wrapper = WorkerWrapperBase()
    wrapper.init_worker(vllm_config, local_rank=rank, rank=rank)
    while True:
        method, arguments = pipe.recv()
        if method is None:
            return
        try:
            if callable(method):
                pipe.send((True, method(wrapper.worker, *arguments)))
            else:
                pipe.send((True, getattr(wrapper.worker, method)(*arguments)))
        except Exception:
            pipe.send((False, traceback.format_exc()))


class MultiprocExecutor:
    def __init__(self, vllm_config, world_size):
        context = multiprocessing.get_context("spawn")
        self._workers = []
        self.sleeping_tags = set()
        for rank in range(world_size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, vllm_config, rank), daemon=True)
            process.start()
            self._workers.append((process, ours))

    def collective_rpc(self, method, *arguments):
        """What each worker returns; RuntimeError with the first traceback if one has failed."""
        for _, pipe in self._workers:
            pipe.send((method, arguments))
        answers = [pipe.recv() for _, pipe in self._workers]
        for good, answer in answers:
            if not good:
                raise RuntimeError(answer)
        return [answer for _, answer in answers]

    @property
    def is_sleeping(self):
        return bool(self.sleeping_tags)

    def sleep(self, level=1):
        if "weights" in self.sleeping_tags:
            return
        self.collective_rpc("sleep", level)
        self.sleeping_tags |= {"weights", "kv_cache"}

    def wake_up(self, tags=None):
        self.collective_rpc("wake_up", tags)
        self.sleeping_tags -= set(tags) if tags is not None else set(self.sleeping_tags)

    def shutdown(self):
        for process, pipe in self._workers:
            pipe.send((None, ()))
            process.join(30)
