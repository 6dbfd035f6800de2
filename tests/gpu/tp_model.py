"""A Llama-like transformer in tensor parallel: each rank has a part of the heads, of the MLP and of
the vocabulary, and two all-reduces a layer and one all-gather put the parts together. Weights and
static KV cache lie in memory of the caller's choice, all that is communicated in PyTorch's own.

What touches device memory has to be called in the worker's guard, without gradients, and by all
ranks, as it communicates.
"""

import dataclasses

import torch
import torch.distributed as dist
import torch.nn.functional as F

# cuDNN's attention gives other bits from call to call, with any memory.
torch.backends.cuda.enable_cudnn_sdp(False)


@dataclasses.dataclass
class Shape:
    vocab: int
    hidden: int
    inner: int
    layers: int
    heads: int
    head: int = 128


TWO_BILLION = Shape(vocab=32000, hidden=2560, inner=6912, layers=24, heads=20)  # 4.2 GB in bf16
SMALL = Shape(vocab=512, hidden=128, inner=256, layers=2, heads=4, head=32)


class Model:
    PROMPT = 64

    def __init__(self, shape, *, rank, ranks, device, batch, context, weights, kv_cache):
        """`weights` and `kv_cache` make context managers for the allocation of either."""
        self.shape, self.rank, self.ranks, self.device = shape, rank, ranks, device
        self.batch, self.context = batch, context
        self.heads = shape.heads // ranks
        inner, wide, head = shape.inner // ranks, self.heads * shape.head, shape.head
        sizes = {"embed": (shape.vocab, shape.hidden), "head": (shape.vocab // ranks, shape.hidden)}
        sizes |= {"norm": (shape.hidden,), "cos": (context, head), "sin": (context, head)}
        for layer in range(shape.layers):
            sizes |= {
                f"{layer}.norm1": (shape.hidden,), f"{layer}.norm2": (shape.hidden,),
                f"{layer}.qkv": (3 * wide, shape.hidden), f"{layer}.out": (shape.hidden, wide),
                f"{layer}.up": (2 * inner, shape.hidden), f"{layer}.down": (shape.hidden, inner),
            }
        with weights():
            self.weights = {
                name: torch.empty(size, dtype=torch.bfloat16, device=device)
                for name, size in sizes.items()
            }
        size = (batch, self.heads, context, head)
        with kv_cache():
            self.cache = [
                [torch.zeros(size, dtype=torch.bfloat16, device=device) for _ in range(2)]
                for _ in range(shape.layers)
            ]
        generator = torch.Generator().manual_seed(7)
        prompt = torch.randint(0, shape.vocab, (batch, self.PROMPT), generator=generator)
        self.prompt = prompt.to(device)
        self.columns = torch.arange(context, device=device)
        self.graph = self.entry = self.position = self.output = None

    def fill_weights(self):
        """Random weights; those that all ranks have are the same on each."""
        for index, (name, tensor) in enumerate(self.weights.items()):
            if "norm" in name:
                tensor.fill_(1.0)
            elif name in ("cos", "sin"):
                tensor.copy_(self._rotation(name))
            else:
                seed = 1000 * index + (0 if name == "embed" else self.rank)
                generator = torch.Generator(device=self.device).manual_seed(seed)
                tensor.normal_(0.0, 0.02, generator=generator)

    def _rotation(self, name):
        half = self.shape.head // 2
        speed = 10000.0 ** (-torch.arange(half, dtype=torch.float32) / half)
        angles = torch.arange(self.context, dtype=torch.float32)[:, None] * speed[None, :]
        return getattr(torch, name)(torch.cat([angles, angles], dim=1))

    def weights_bytes(self):
        return sum(tensor.numel() * tensor.element_size() for tensor in self.weights.values())

    def caches(self):
        return [tensor for pair in self.cache for tensor in pair]

    def addresses(self):
        return [tensor.data_ptr() for tensor in [*self.weights.values(), *self.caches()]]

    def copy_of_weights(self):
        return {name: tensor.to("cpu", copy=True) for name, tensor in self.weights.items()}

    def load_weights(self, copy):
        for name, tensor in self.weights.items():
            tensor.copy_(copy[name])

    def different_weights(self, copy):
        """Names of tensors that differ from the copy."""
        return [
            name for name, tensor in self.weights.items()
            if not torch.equal(tensor, copy[name].to(self.device))
        ]

    # ---- Computing

    def _reduce(self, part):
        """The sum of all ranks' parts. `part` is an activation, not memory under a tag."""
        dist.all_reduce(part)
        return part

    def _rotate(self, x, positions):
        cos, sin = self.weights["cos"][positions], self.weights["sin"][positions]
        one, two = x.chunk(2, dim=-1)
        return x * cos + torch.cat([-two, one], dim=-1) * sin

    def forward(self, tokens, positions):
        """The logits of the last one of `tokens` [batch, count], which stand at `positions`."""
        weights, shape = self.weights, self.shape
        batch, count = tokens.shape
        mask = (self.columns[None, :] <= positions[:, None]).expand(batch, 1, -1, -1)
        x = F.embedding(tokens, weights["embed"])
        for layer in range(shape.layers):
            h = F.rms_norm(x, (shape.hidden,), weights[f"{layer}.norm1"])
            qkv = F.linear(h, weights[f"{layer}.qkv"])
            qkv = qkv.view(batch, count, 3, self.heads, shape.head).permute(2, 0, 3, 1, 4)
            keys, values = self.cache[layer]
            keys.index_copy_(2, positions, self._rotate(qkv[1], positions))
            values.index_copy_(2, positions, qkv[2])
            h = F.scaled_dot_product_attention(
                self._rotate(qkv[0], positions), keys, values, attn_mask=mask
            )
            h = h.transpose(1, 2).reshape(batch, count, -1)
            x = x + self._reduce(F.linear(h, weights[f"{layer}.out"]))
            h = F.rms_norm(x, (shape.hidden,), weights[f"{layer}.norm2"])
            gate, up = F.linear(h, weights[f"{layer}.up"]).chunk(2, dim=-1)
            x = x + self._reduce(F.linear(F.silu(gate) * up, weights[f"{layer}.down"]))
        x = F.rms_norm(x[:, -1], (shape.hidden,), weights["norm"])
        part = F.linear(x, weights["head"])
        parts = torch.empty((self.ranks, *part.shape), dtype=part.dtype, device=self.device)
        dist.all_gather_into_tensor(parts, part.contiguous())
        return parts.transpose(0, 1).reshape(batch, -1)

    def prefill(self):
        return self.forward(self.prompt, self.columns[: self.PROMPT])

    def generate(self, count, step=None):
        """The next `count` tokens, greedily, and the logits behind the last one. `step` makes a
        context manager for each forward pass."""
        step = step or torch.no_grad
        with step():
            logits = self.prefill()
        tokens = []
        for position in range(self.PROMPT, self.PROMPT + count):
            with step():
                tokens.append(logits.argmax(dim=-1, keepdim=True))
                logits = self.forward(tokens[-1], self.columns[position : position + 1])
        return torch.cat(tokens, dim=1), logits

    def capture(self, pool=None):
        """Captures the decoding step with its collectives, into `pool` if there is one."""
        self.entry = torch.zeros((self.batch, 1), dtype=torch.long, device=self.device)
        self.position = torch.full((1,), self.PROMPT, dtype=torch.long, device=self.device)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.forward(self.entry, self.position)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        # Other threads, such as NCCL's watchdog, go on calling CUDA meanwhile.
        with torch.cuda.graph(self.graph, pool=pool, capture_error_mode="thread_local"):
            self.output = self.forward(self.entry, self.position)

    def replay(self, count):
        """As generate, with the graph."""
        logits = self.prefill()
        tokens = []
        for position in range(self.PROMPT, self.PROMPT + count):
            tokens.append(logits.argmax(dim=-1, keepdim=True))
            self.entry.copy_(tokens[-1])
            self.position.fill_(position)
            self.graph.replay()
            logits = self.output
        return torch.cat(tokens, dim=1), logits.clone()
