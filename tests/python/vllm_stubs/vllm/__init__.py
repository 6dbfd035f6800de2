"""As much of vLLM as a sleep-mode backend meets, written after its interface (0.33): the factory
and base class of backends, the allocator that workers ask for pools, the worker and the
executor."""

__version__ = "0.33.0+stub"
