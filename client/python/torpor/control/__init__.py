"""The control plane, for orchestrators: who sleeps, who wakes, what is promised to whom.

    from torpor.control import Client

    with Client() as torpor:  # the only daemon of this machine
        torpor.sleep("model-a", level=1)
        torpor.wake_up("model-b")

Client blocks, AsyncClient is for asyncio. Answers are the messages of torpor/v1/memory_service.proto
(`messages`), errors those of torpor.errors. Needs gRPC: pip install 'torpor[control]'. Nothing here
touches a GPU or loads libtorpor.so.
"""

from __future__ import annotations

try:
    import google.protobuf as _protobuf
    import grpc as _grpc
except ImportError as error:
    raise ImportError(
        "torpor.control needs gRPC, which is not installed: pip install 'torpor[control]'",
        name=error.name,
    ) from error

from torpor.control import memory_service_pb2 as messages
from torpor.control._request import new_request_id
from torpor.control._status import error_of, failures
from torpor.control._target import Daemon, discover, find
from torpor.control._tls import Tls
from torpor.control.aio import AsyncClient, AsyncWatch
from torpor.control.client import Cancellation, Client, Watch

__all__ = [
    "AsyncClient",
    "AsyncWatch",
    "Cancellation",
    "Client",
    "Daemon",
    "Tls",
    "Watch",
    "discover",
    "error_of",
    "failures",
    "find",
    "messages",
    "new_request_id",
]
