"""Which device a process means, by CUDA_VISIBLE_DEVICES.

CUDA counts devices as CUDA_VISIBLE_DEVICES lists them. A list of names (UUIDs of GPUs or MIG
instances, also abbreviated) is looked up here, among the daemons of the runtime directory: it then
works without asking CUDA, and a wrong one is told apart from a daemon that is not there. A list of
ordinals depends on CUDA's order of devices and is left to the C library, which asks CUDA.
"""

from __future__ import annotations

import os
import pathlib
import re
import stat

from torpor import errors

_WORKER_SOCKET = "worker.sock"
# Of what CUDA prints: GPU-00000000-0000-0000-0000-000000000000.
_UUID = re.compile(r"(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def runtime_dir() -> str:
    """Where daemons have their sockets unless said otherwise: $TORPOR_RUNTIME_DIR, else
    /run/torpor for root, else $XDG_RUNTIME_DIR/torpor.

    Raises FailedPrecondition NO_RUNTIME_DIR.
    """
    given = os.environ.get("TORPOR_RUNTIME_DIR")
    if given:
        return given
    if os.geteuid() == 0:
        return "/run/torpor"
    given = os.environ.get("XDG_RUNTIME_DIR")
    if given:
        return os.path.join(given, "torpor")
    raise errors.FailedPrecondition(
        "NO_RUNTIME_DIR",
        "neither TORPOR_RUNTIME_DIR nor XDG_RUNTIME_DIR is set, and no runtime directory is given",
    )


def served(directory: str | os.PathLike[str]) -> list[str]:
    """UUIDs of the devices that have a daemon's socket under the runtime directory, sorted.

    Includes those of daemons that were killed.
    """
    found = []
    try:
        folders = list(pathlib.Path(directory).iterdir())
    except OSError:
        return []
    for folder in folders:
        try:
            if stat.S_ISSOCK((folder / _WORKER_SOCKET).stat().st_mode):
                found.append(folder.name)
        except OSError:
            continue
    return sorted(found)


def visible(value: str) -> list[str]:
    """What CUDA makes of `value` of CUDA_VISIBLE_DEVICES: the first entry says whether it lists
    ordinals, GPUs or MIG instances; the first entry of another kind ends the list; a list that
    names one twice is empty.
    """
    entries: list[str] = []
    kind = ""
    for part in value.split(","):
        entry = part.strip()
        entry_kind = _kind(entry)
        if not entry_kind or (kind and entry_kind != kind):
            break
        kind = entry_kind
        if entry in entries:
            return []
        entries.append(entry)
    return entries


def _kind(entry: str) -> str:
    if entry.startswith(("GPU-", "MIG-")):
        return entry[:3]
    return "ordinal" if re.match(r"\+?\d", entry) else ""


def resolve(
    device: int,
    directory: str | os.PathLike[str] | None = None,
    *,
    look_up: bool = True,
) -> str | None:
    """UUID of the device that this process sees as number `device`; None: CUDA has to say.

    Abbreviated names are looked up in the runtime directory `directory` (None: runtime_dir()),
    unless `look_up` is false: then CUDA has to say.

    Raises:
        NotFound NO_SUCH_DEVICE: CUDA_VISIBLE_DEVICES does not list so many, or none at all.
        FailedPrecondition AMBIGUOUS_DAEMON: it abbreviates the names of several devices; the
            detail "candidates" has them.
        Unavailable DAEMON_NOT_RUNNING: no daemon serves a device whose name begins so.
    """
    value = os.environ.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return None
    entries = visible(value)
    if not 0 <= device < len(entries):
        raise errors.NotFound(
            "NO_SUCH_DEVICE",
            f"no device number {device}: CUDA_VISIBLE_DEVICES={value} lists {len(entries)}",
            {"device": device, "device_count": len(entries), "CUDA_VISIBLE_DEVICES": value},
        )
    entry = entries[device]
    # MIG-GPU-<uuid>/<instance>/<instance> names no device by its own UUID.
    if _kind(entry) == "ordinal" or entry.startswith("MIG-GPU-"):
        return None
    if _UUID.fullmatch(entry):
        return entry[:4] + entry[4:].lower()
    return _complete(entry, directory or runtime_dir()) if look_up else None


def _complete(prefix: str, directory: str | os.PathLike[str]) -> str:
    every = served(directory)
    found = [uuid for uuid in every if uuid.lower().startswith(prefix.lower())]
    if len(found) == 1:
        return found[0]
    if not found:
        raise errors.Unavailable(
            "DAEMON_NOT_RUNNING",
            f"no daemon under {os.fspath(directory)} serves a device whose name begins with "
            f"{prefix} (CUDA_VISIBLE_DEVICES)",
            {"candidates": ",".join(every)} if every else None,
        )
    raise errors.FailedPrecondition(
        "AMBIGUOUS_DAEMON",
        f"{prefix} (CUDA_VISIBLE_DEVICES) abbreviates the names of several devices",
        {"candidates": ",".join(found)},
    )
