"""A model of PyTorch for the examples: generates, and can be trained.

    example_model.py NAME generator|trainer [--engine] [--layers N] [--width N] [--cache-mib N]

Answers calls as docs/examples/python/rl_loop.py makes them. Its weights, KV cache and optimizer are in
memory of Torpor. With --engine it only puts itself to sleep, when it is asked over HTTP.
"""

import argparse
import os
import pathlib
import sys
import tempfile
import zlib

os.environ.pop("PYTORCH_CUDA_ALLOC_CONF", None)
os.environ.pop("PYTORCH_ALLOC_CONF", None)
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch

import torpor
import torpor.torch

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "python"))
from example_worker import answer_calls, serve_endpoints  # noqa: E402

VOCABULARY = 4096
TOKENS = 32


class Net(torch.nn.Module):
    """Tells the next token by the last one and by the mean of what it has cached."""

    def __init__(self, layers, width):
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, width)
        self.layers = torch.nn.ModuleList(
            torch.nn.Linear(width, width, bias=False) for _ in range(layers)
        )
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(layers))
        self.head = torch.nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, hidden):
        for layer, norm in zip(self.layers, self.norms):
            hidden = hidden + torch.nn.functional.gelu(layer(norm(hidden)))
        return self.head(hidden)


class Model:
    def __init__(self, options):
        quiesce = torpor.Quiesce.NONE if options.engine else torpor.Quiesce.GUARD
        self.session = torpor.connect(name=options.name, driver="cuda", quiesce=quiesce)
        torpor.torch.use(self.session)
        torch.manual_seed(zlib.crc32(options.name.encode()))
        torch.set_default_dtype(torch.bfloat16)
        with torpor.torch.memory_pool("weights"), torch.device("cuda"):
            self.net = Net(options.layers, options.width)
        self.cache = None
        if options.role == "generator":
            with torpor.torch.memory_pool("kv_cache"):
                rows = (options.cache_mib << 20) // (2 * options.width)
                self.cache = torch.zeros(rows, options.width, device="cuda")
        # Slow enough that some is left to be learned after each step.
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=1e-5, foreach=False)
        self.rollouts = []
        self.count = 0
        self.state = None
        if options.engine:
            serve_endpoints(self.session)

    @torch.no_grad()
    def tokens(self, cache):
        """Greedy, from token 1 on."""
        found = [1]
        for position in range(TOKENS):
            cache[position] = self.net.embedding.weight[found[-1]]
            mean = cache[: position + 1].float().mean(dim=0).to(torch.bfloat16)
            found.append(int(self.net(cache[position] + mean).argmax()))
        return found[1:]

    def generate(self):
        with self.session.work(timeout=60):
            return {"tokens": self.tokens(self.cache)}

    def train(self, rollouts):
        """A step on all rollouts so far; tells the loss of the first of them before it."""
        self.rollouts.append(rollouts["tokens"])
        with self.session.work(timeout=60):
            if self.state != self.state_sum():
                raise RuntimeError("the optimizer's state is not what it was before its sleep")
            tokens = torch.tensor(self.rollouts, device="cuda")
            logits = self.net(self.net.embedding(tokens[:, :-1])).float().transpose(1, 2)
            losses = torch.nn.functional.cross_entropy(logits, tokens[:, 1:], reduction="none")
            losses.mean().backward()
            # Its state is made by the first step.
            with torpor.torch.memory_pool("optimizer"):
                self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            del logits
            self.count += 1
            self.state = self.state_sum()
            cache = torch.zeros_like(self.net.embedding.weight[:TOKENS])
            loss = float(losses[0].detach().mean())
            report = {"count": self.count, "loss": loss, "tokens": self.tokens(cache)}
        # Gradients and activations, which are PyTorch's own memory.
        del losses, cache, tokens
        torch.cuda.empty_cache()
        return report

    def state_sum(self):
        states = [state["exp_avg"] for state in self.optimizer.state.values()]
        return float(sum(state.double().abs().sum() for state in states)) if states else None

    def save(self):
        with self.session.work("weights", timeout=60):
            weights = {name: tensor.cpu() for name, tensor in self.net.state_dict().items()}
        with tempfile.NamedTemporaryFile(delete=False) as file:
            torch.save(weights, file)
        return {"path": file.name}

    def load(self, path):
        weights = torch.load(path, map_location="cpu", weights_only=True)
        with self.session.work("weights", timeout=60):
            self.net.load_state_dict(weights)
            torch.cuda.synchronize()
        os.unlink(path)
        return {}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("name")
    parser.add_argument("role", choices=["generator", "trainer"])
    parser.add_argument("--engine", action="store_true")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--cache-mib", type=int, default=1024)
    answer_calls(Model(parser.parse_args()))


if __name__ == "__main__":
    main()
