"""One rank of tensor_parallel.py: a worker of the daemon of its GPU, that obeys its parent.

A line of standard input is a method and its arguments, ["reduce", {}]; each is answered by a line,
{"value": ...} or {"error": ...}. All ranks get the same lines, as they communicate.
"""

import contextlib
import datetime
import hashlib
import json
import os
import sys
import traceback

import torch
import torch.distributed as dist

import torpor
import torpor.torch as tt
import tp_model
from torpor import Quiesce

MIB = 1 << 20
COUNT = 24  # tokens to generate


def digest(tensor):
    data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(data).hexdigest()[:16]


class Rank:
    def __init__(self, options):
        self.options = options
        self.rank = options.rank
        self.session = self.model = self.copy = None
        self.device = torch.device("cuda", self.rank)
        self.ordinary, self.under_tag = [], []
        self.expected = {}
        self.round = 0

    @contextlib.contextmanager
    def work(self, *tags):
        with self.session.work(*tags, timeout=15), torch.no_grad():
            yield

    def start(self):
        torch.cuda.set_device(self.device)
        self.session = torpor.connect(
            name=f"rank-{self.rank}", device=self.rank, quiesce=Quiesce.GUARD
        )
        tt.use(self.session)
        # Not longer than a sleep and a wake: a collective of a rank waits for those of the others.
        dist.init_process_group(
            self.options.backend, init_method=f"file://{os.environ['TORPOR_TEST_RENDEZVOUS']}",
            rank=self.rank, world_size=self.options.ranks,
            timeout=datetime.timedelta(seconds=60), device_id=self.device,
        )
        # Sizes for the protocols that NCCL chooses among.
        self.ordinary = [self._buffer(size) for size in (1024, MIB, 64 * MIB)]
        self.reduce()
        nccl = ".".join(map(str, torch.cuda.nccl.version()))
        peers = [
            torch.cuda.can_device_access_peer(self.rank, other)
            for other in range(torch.cuda.device_count()) if other != self.rank
        ]
        return {
            "device": f"{torch.cuda.get_device_name()}, {self.session.info.device_uuid}",
            "Python, PyTorch, NCCL": f"{sys.version.split()[0]}, {torch.__version__}, {nccl}",
            "peers have access": str(peers),
        }

    def build(self):
        shape = tp_model.SMALL if self.options.small else tp_model.TWO_BILLION
        self.model = tp_model.Model(
            shape, rank=self.rank, ranks=self.options.ranks, device=self.device, batch=4,
            context=256 if self.options.small else 4096,
            weights=lambda: tt.memory_pool("weights"), kv_cache=lambda: tt.memory_pool("kv_cache"),
        )
        with self.work():
            self.model.fill_weights()
            self.copy = self.model.copy_of_weights()
        torch.cuda.synchronize()
        cache = sum(tensor.numel() * tensor.element_size() for tensor in self.model.caches())
        weights = self.model.weights_bytes()
        return {
            "bytes": weights + cache, "weights": weights, "cache": cache,
            "parameters": sum(tensor.numel() for tensor in self.model.weights.values()),
        }

    # ---- Memory

    def tagged_memory(self):
        tags = {
            self.session.segment(tensor.data_ptr()).tag for tensor in self.model.weights.values()
        }
        caches = {self.session.segment(tensor.data_ptr()).tag for tensor in self.model.caches()}
        return (tags == {"weights"} and caches == {"kv_cache"}) or f"{tags}, {caches}"

    def addresses(self):
        return self.model.addresses()

    def free(self):
        return torch.cuda.mem_get_info()[0]

    def fill_cache(self):
        with self.work():
            for tensor in self.model.caches():
                tensor.normal_()
        torch.cuda.synchronize()

    def zero(self, tag):
        tensors = self.model.caches() if tag == "kv_cache" else self.model.weights.values()
        with self.work(tag):
            return not any(bool((tensor != 0).any()) for tensor in tensors)

    def same_weights(self):
        with self.work("weights"):
            return self.model.different_weights(self.copy)[:3] or True

    def load_weights(self):
        with self.work("weights"):
            self.model.load_weights(self.copy)
        torch.cuda.synchronize()

    def asleep(self, tags):
        """Whether the guard refuses."""
        try:
            with self.session.work(*tags, timeout=0):
                return "it let me in"
        except torpor.errors.DeadlineExceeded as error:
            return error.reason == "ASLEEP" or str(error)

    # ---- NCCL

    def _buffer(self, size):
        return torch.zeros(size // 4, dtype=torch.float32, device=self.device)

    def make_buffers(self):
        with tt.memory_pool("buffers"):
            self.under_tag = [self._buffer(size) for size in (1024, MIB, 64 * MIB)]

    def reduce(self, tagged=False):
        """Sums other numbers each time, in place. Ordinary memory needs no guard."""
        self.round += 1
        guard = self.work() if tagged else torch.no_grad()
        wrong = []
        with guard:
            for buffer in self.under_tag if tagged else self.ordinary:
                index = torch.arange(buffer.numel(), device=self.device, dtype=torch.float32) % 1000
                buffer.copy_(index + 1000 * self.round * (self.rank + 1))
                dist.all_reduce(buffer)
                ranks = self.options.ranks
                expected = ranks * index + 1000 * self.round * ranks * (ranks + 1) / 2
                if not torch.equal(buffer, expected):
                    wrong.append(buffer.numel() * 4)
        torch.cuda.synchronize()
        return f"wrong for {wrong} bytes" if wrong else True

    # ---- The model

    def _compare(self, key, tokens, logits, expect):
        torch.cuda.synchronize()
        tokens, logits = tokens.cpu(), logits.cpu()
        if expect:
            self.expected[key] = tokens, logits
        known = self.expected[key]
        return {
            "tokens": torch.equal(tokens, known[0]) and len(tokens.unique()) > 1,
            "logits": torch.equal(logits, known[1]) and bool(torch.isfinite(logits).all()),
            "digest": digest(logits),
        }

    def generate(self, expect=False):
        with self.work():
            tokens, logits = self.model.generate(COUNT)
        return self._compare("generate", tokens, logits, expect)

    def generate_often(self, rounds):
        """The guard around each forward pass: a sleep may come between any two."""
        good = 0
        for _ in range(rounds):
            tokens, logits = self.model.generate(COUNT, step=self.work)
            answer = self._compare("generate", tokens, logits, False)
            good += answer["tokens"] and answer["logits"]
        return {"good": good}

    def capture(self, tag):
        with self.work():
            if tag is None:
                self.model.capture()
            else:
                with tt.graph_pool(tag) as pool:
                    self.model.capture(pool)
        torch.cuda.synchronize()

    def replay(self, expect=False):
        with self.work():
            tokens, logits = self.model.replay(COUNT)
        return self._compare("replay", tokens, logits, expect)

    def drop_graph(self):
        torch.cuda.synchronize()
        self.model.graph.reset()
        self.model.graph = self.model.output = None
        torch.cuda.empty_cache()

    def end(self):
        if self.model.graph is not None:
            self.drop_graph()
        dist.destroy_process_group()


def main(options):
    # Libraries print there, too.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    rank = Rank(options)
    for line in sys.stdin:
        what, arguments = json.loads(line)
        print(f"-- {what} {arguments}", file=sys.stderr, flush=True)
        try:
            answer = {"value": getattr(rank, what)(**arguments)}
        except Exception as error:  # pylint: disable=broad-except
            traceback.print_exc()
            answer = {"error": f"{what}: {type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
        if what == "end":
            return 0
    return 1
