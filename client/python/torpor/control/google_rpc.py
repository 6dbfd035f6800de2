"""Google's messages for errors: those of googleapis-common-protos where it is installed, else the
ones of this package. A process may register such a file only once.
"""

from __future__ import annotations

try:
    from google.rpc import error_details_pb2, status_pb2
except ImportError:
    from torpor.control.bundled import error_details_pb2, status_pb2

__all__ = ["error_details_pb2", "status_pb2"]
