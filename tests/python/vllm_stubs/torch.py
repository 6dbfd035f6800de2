"""torch_stub for programs that import torch themselves, with what vLLM's workers need besides:
several devices, and tensors whose bytes can be read and written, as those of host devices
can."""

import contextlib
import ctypes
import os
import types

import torch_stub

_torch = torch_stub.install()  # now it is what `import torch` gives
_device = 0


def _empty(size):
    return torch_stub.state.allocate(size, _device)


def _write(tensor, data):
    assert len(data) <= tensor.nbytes
    ctypes.memmove(tensor.data_ptr(), bytes(data), len(data))


def _read(tensor):
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes)


def _set_device(device):
    global _device
    _device = device


@contextlib.contextmanager
def _use_device(device):
    before = _device
    _set_device(device)
    try:
        yield
    finally:
        _set_device(before)


def _properties(device):
    name = os.environ["CUDA_VISIBLE_DEVICES"].split(",")[device]
    return types.SimpleNamespace(uuid=name.removeprefix("GPU-"))


_torch.empty = _empty
_torch.Tensor.write = _write
_torch.Tensor.read = _read
_torch.version = types.SimpleNamespace(cuda="13.0")
_torch.cuda.current_device = lambda: _device
_torch.cuda.set_device = _set_device
_torch.cuda.device = _use_device
_torch.cuda.get_device_properties = _properties
