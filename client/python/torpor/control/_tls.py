"""How a client and a daemon know each other over TCP."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import ssl

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
        contents = _read(self.ca), _read(self.key), _read(self.cert)
        _check(self)
        return grpc.ssl_channel_credentials(*contents)


def for_target(target: str, given: Tls | None) -> Tls | None:
    """What a channel to gRPC's `target` uses: nothing for a Unix socket."""
    if target.startswith("unix:"):
        return None
    return given or Tls.from_environment()


def _check(files: Tls) -> None:
    """gRPC says nothing of files that it cannot use: its calls fail as if nobody answered."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for path in (files.ca, files.cert):
        try:
            context.load_verify_locations(cafile=path)
        except OSError as error:
            raise _bad_file(path, f"has no certificate in PEM: {error}") from error
    asked: list[bool] = []

    def no_passphrase() -> str:
        asked.append(True)
        return ""

    try:
        context.load_cert_chain(files.cert, files.key, no_passphrase)
    except (OSError, ValueError) as error:
        if asked:
            advice = f"write it without, `openssl pkey -in {files.key}`, in a file of mode 0600"
            raise _bad_file(files.key, f"has a passphrase: {advice}") from error
        raise _bad_file(files.key, f"is not the private key of {files.cert}: {error}") from error


def _bad_file(path: str | os.PathLike[str], what: str) -> errors.InvalidArgument:
    return errors.InvalidArgument("BAD_TLS_FILE", f"{path} {what}", {"path": str(path)})


def _read(path: str | os.PathLike[str]) -> bytes:
    try:
        return pathlib.Path(path).read_bytes()
    except OSError as error:
        raise errors.InvalidArgument("BAD_TLS_FILE", str(error), {"path": str(path)}) from error
