"""Where daemons listen."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import socket
import stat

from torpor import devices, errors

_CONTROL_SOCKET = "control.sock"


@dataclasses.dataclass(frozen=True)
class Daemon:
    """A daemon of this machine."""

    device: str  # UUID of its GPU or MIG instance, or a host device's name
    socket: str  # path of its control socket

    @property
    def target(self) -> str:
        """For Client and AsyncClient."""
        return "unix:" + self.socket


def discover(runtime_dir: str | os.PathLike[str] | None = None) -> list[Daemon]:
    """The daemons that listen under the runtime directory, sorted by device.

    runtime_dir: by default $TORPOR_RUNTIME_DIR, else /run/torpor for root, else
        $XDG_RUNTIME_DIR/torpor. One that is not there has no daemons.
    Sockets that a daemon has left behind are not listed; those that this process must not use are.
    Raises FailedPrecondition NO_RUNTIME_DIR.
    """
    root = pathlib.Path(runtime_dir or devices.runtime_dir()).absolute()
    try:
        folders = sorted(root.iterdir())
    except OSError:
        return []
    found = [Daemon(folder.name, str(folder / _CONTROL_SOCKET)) for folder in folders]
    return [daemon for daemon in found if _listens(daemon.socket)]


def find(device: str | None = None, runtime_dir: str | os.PathLike[str] | None = None) -> Daemon:
    """The daemon of `device` (a UUID); by default the only one that listens. See discover().

    Raises Unavailable DAEMON_NOT_RUNNING and FailedPrecondition AMBIGUOUS_DAEMON, both with
    `candidates`, the sockets that are there; FailedPrecondition NO_RUNTIME_DIR.
    """
    daemons = discover(runtime_dir)
    wanted = [daemon for daemon in daemons if device is None or daemon.device == device]
    if len(wanted) == 1:
        return wanted[0]
    candidates = {"candidates": ", ".join(daemon.socket for daemon in daemons)}
    if wanted:
        raise errors.FailedPrecondition(
            "AMBIGUOUS_DAEMON", "several daemons listen: say which device", candidates
        )
    raise errors.Unavailable(
        "DAEMON_NOT_RUNNING",
        f"no daemon listens for device {device}" if device else "no daemon listens",
        {**candidates, "path": str(runtime_dir or devices.runtime_dir())},
    )


def grpc_target(target: str | os.PathLike[str]) -> str:
    """gRPC's name of a socket path or address."""
    name = os.fspath(target)
    slash, colon = name.find("/"), name.find(":")
    if (slash >= 0 and not 0 <= colon < slash) or _is_socket(name):
        return "unix:" + name
    return name


def queue_is_full(target: str) -> bool | None:
    """Whether who connects to gRPC's name `target` has to wait for those before it; None: nobody
    listens there, or that cannot be told.
    """
    if not target.startswith("unix:"):
        return None
    with socket.socket(socket.AF_UNIX) as trial:
        trial.setblocking(False)
        try:
            trial.connect(target.removeprefix("unix:").removeprefix("//"))
        except BlockingIOError:
            return True
        except OSError:
            return None
    return False


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def _listens(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as trial:
        trial.setblocking(False)
        try:
            trial.connect(path)
        except (BlockingIOError, PermissionError):
            return True
        except OSError:
            return False
    return True
