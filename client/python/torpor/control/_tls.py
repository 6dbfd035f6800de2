"""How a client and a daemon know each other over TCP."""

from __future__ import annotations

import dataclasses
import os
import pathlib

import grpc

from torpor import errors


@dataclasses.dataclass(frozen=True)
class Tls:
    """Paths of PEM files, for daemons that are reached by TCP with certificates."""

    ca: str | os.PathLike[str]  # the authority of daemons
    cert: str | os.PathLike[str]  # the client's own certificate
    key: str | os.PathLike[str]  # its private key
    name: str | None = None  # in the daemon's certificate, where that is not the target's

    @staticmethod
    def from_environment() -> Tls | None:
        """By TORPOR_TLS_CA, TORPOR_TLS_CERT and TORPOR_TLS_KEY; None if none is set.

        Raises InvalidArgument BAD_TLS_FILE if only some are.
        """
        ca = os.environ.get("TORPOR_TLS_CA")
        cert = os.environ.get("TORPOR_TLS_CERT")
        key = os.environ.get("TORPOR_TLS_KEY")
        if ca and cert and key:
            return Tls(ca, cert, key)
        if ca or cert or key:
            raise errors.InvalidArgument(
                "BAD_TLS_FILE",
                "TORPOR_TLS_CA, TORPOR_TLS_CERT and TORPOR_TLS_KEY are needed together",
            )
        return None

    def options(self) -> list[tuple[str, str]]:
        """Of a channel."""
        return [("grpc.ssl_target_name_override", self.name)] if self.name else []

    def credentials(self) -> grpc.ChannelCredentials:
        """Raises InvalidArgument BAD_TLS_FILE with the detail `path`."""
        return grpc.ssl_channel_credentials(_read(self.ca), _read(self.key), _read(self.cert))


def for_target(target: str, given: Tls | None) -> Tls | None:
    """What a channel to gRPC's `target` uses: nothing for a Unix socket."""
    if target.startswith("unix:"):
        return None
    return given or Tls.from_environment()


def _read(path: str | os.PathLike[str]) -> bytes:
    try:
        return pathlib.Path(path).read_bytes()
    except OSError as error:
        raise errors.InvalidArgument("BAD_TLS_FILE", str(error), {"path": str(path)}) from error
