"""A transformer with a static KV cache and a CUDA graph of its decoding step, as serving engines
have it: weights and cache in memory of the caller's choice, activations in PyTorch's own pool."""

import contextlib

import torch
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

# cuDNN's attention gives other bits from call to call, with any memory.
torch.backends.cuda.enable_cudnn_sdp(False)


def two_billion(context):
    """About 2.1 billion parameters: 4.1 GB in bf16."""
    return LlamaConfig(
        vocab_size=32000,
        hidden_size=2560,
        intermediate_size=6912,
        num_hidden_layers=24,
        num_attention_heads=20,
        num_key_value_heads=20,
        head_dim=128,
        max_position_embeddings=context,
        tie_word_embeddings=False,
        attn_implementation="sdpa",
    )


def seven_billion(context):
    """The shape of a 7B model: 6.7 billion parameters, 13.5 GB in bf16."""
    return LlamaConfig(
        vocab_size=32000,
        hidden_size=4096,
        intermediate_size=11008,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=32,
        head_dim=128,
        max_position_embeddings=context,
        tie_word_embeddings=False,
        attn_implementation="sdpa",
    )


def small(context):
    """About 30 million parameters: its decoding step is a matter of launches."""
    return LlamaConfig(
        vocab_size=8192,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=8,
        head_dim=64,
        max_position_embeddings=context,
        tie_word_embeddings=False,
        attn_implementation="sdpa",
    )


class Engine:
    """`weights` and `kv_cache` make context managers for the allocation of either. Everything that
    touches device memory has to be called inside the worker's guard, and in inference mode."""

    PROMPT = 64

    def __init__(self, config, *, device, batch, context, weights, kv_cache):
        self.config = config
        self.device = torch.device(device)
        self.batch = batch
        self.context = context
        self.model = self._empty_model(weights)
        self.cache = self._empty_cache(kv_cache)
        self.graph = None
        self.graph_logits = None

        generator = torch.Generator().manual_seed(7)
        shape = (batch, self.PROMPT + 1)
        tokens = torch.randint(0, config.vocab_size, shape, generator=generator).to(self.device)
        self.prompt = tokens[:, : self.PROMPT].contiguous()
        self.next_token = tokens[:, self.PROMPT :].contiguous()
        rows = torch.arange(self.PROMPT + 1, device=self.device)[:, None]
        columns = torch.arange(context, device=self.device)[None, :]
        mask = (columns <= rows).expand(batch, 1, -1, -1)
        self.prompt_mask = mask[:, :, : self.PROMPT].contiguous()
        self.next_mask = mask[:, :, self.PROMPT :].contiguous()
        self.prompt_positions = torch.arange(self.PROMPT, device=self.device)[None, :]
        self.next_position = torch.full((1, 1), self.PROMPT, device=self.device)

    def _empty_model(self, weights):
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        try:
            with torch.device("meta"):
                model = LlamaForCausalLM(self.config)
        finally:
            torch.set_default_dtype(before)
        model.requires_grad_(False).eval()
        with weights():
            model.to_empty(device=self.device)
        return model

    def _empty_cache(self, kv_cache):
        cache = StaticCache(config=self.config, max_cache_len=self.context)
        with kv_cache():
            cache.early_initialization(
                batch_size=self.batch,
                num_heads=self.config.num_key_value_heads,
                head_dim=self.config.head_dim,
                dtype=torch.bfloat16,
                device=self.device,
            )
        return cache

    def fill_weights(self):
        """Random weights, the same for each process."""
        generator = torch.Generator(device=self.device).manual_seed(11)
        for name, parameter in self.model.named_parameters():
            if "norm" in name:
                parameter.fill_(1.0)
            else:
                parameter.normal_(0.0, 0.02, generator=generator)
        rotary = self.model.model.rotary_emb
        fresh = type(rotary)(self.config)
        for name, buffer in fresh.named_buffers():
            rotary.get_buffer(name).copy_(buffer)

    def weights(self):
        """Every tensor that lives with the weights, by name."""
        return {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}

    def weights_bytes(self):
        return sum(tensor.nbytes for tensor in self.weights().values())

    def parameters(self):
        return sum(parameter.numel() for parameter in self.model.parameters())

    def kv_tensors(self):
        return [tensor for layer in self.cache.layers for tensor in (layer.keys, layer.values)]

    def kv_lengths(self):
        """How many tokens each layer holds, as StaticCache counts them on the device."""
        return [layer.cumulative_length for layer in self.cache.layers]

    def kv_bytes(self):
        return sum(tensor.nbytes for tensor in self.kv_tensors())

    def addresses(self):
        tensors = [*self.weights().values(), *self.kv_tensors(), *self.kv_lengths()]
        return [tensor.data_ptr() for tensor in tensors]

    def fill_kv(self):
        for tensor in self.kv_tensors():
            tensor.normal_()

    def kv_is_zero(self):
        return not any(bool((tensor != 0).any()) for tensor in self.kv_tensors())

    def weights_are_zero(self):
        return not any(bool((tensor != 0).any()) for tensor in self.weights().values())

    def copy_of_weights(self):
        return {name: tensor.to("cpu", copy=True) for name, tensor in self.weights().items()}

    def load_weights(self, copy):
        for name, tensor in self.weights().items():
            tensor.copy_(copy[name])

    def different_weights(self, copy):
        """The names of tensors that differ in any bit from the copy."""

        def bits(tensor):
            return tensor.contiguous().reshape(-1).view(torch.uint8)

        return [
            name
            for name, tensor in self.weights().items()
            if not torch.equal(bits(tensor), bits(copy[name].to(self.device)))
        ]

    def _set_length(self, length):
        for tensor in self.kv_lengths():
            tensor.fill_(length)

    def _forward(self, tokens, mask, positions):
        return self.model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits

    def prefill(self):
        """Runs the prompt through the model; its last token's logits."""
        self._set_length(0)
        return self._forward(self.prompt, self.prompt_mask, self.prompt_positions)

    def decode(self):
        """The logits after one more token, computed kernel by kernel."""
        self._set_length(self.PROMPT)
        return self._forward(self.next_token, self.next_mask, self.next_position)

    def generate(self, count):
        """The prompt's next `count` tokens, greedily, and the logits behind the last one."""
        columns = torch.arange(self.context, device=self.device)[None, :]
        logits = self.prefill()
        tokens = []
        for position in range(self.PROMPT, self.PROMPT + count):
            tokens.append(logits[:, -1].argmax(dim=-1, keepdim=True))
            self._set_length(position)
            logits = self._forward(
                tokens[-1],
                (columns <= position).expand(self.batch, 1, 1, -1).contiguous(),
                torch.full((1, 1), position, device=self.device),
            )
        return torch.cat(tokens, dim=1), logits

    def capture(self, pool=None):
        """Captures the decoding step, into `pool` if there is one; `replay` runs it."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.decode()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        self._set_length(self.PROMPT)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=pool):
            self.graph_logits = self._forward(self.next_token, self.next_mask, self.next_position)

    def replay(self):
        self._set_length(self.PROMPT)
        self.graph.replay()
        return self.graph_logits


@contextlib.contextmanager
def default_memory():
    yield
