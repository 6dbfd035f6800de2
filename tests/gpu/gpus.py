"""The GPUs of this host and how they hang on it: NUMA nodes, PCI paths, links between them."""

import dataclasses
import pathlib
import re
import subprocess


@dataclasses.dataclass
class Gpu:
    index: int
    uuid: str  # torpord's --device
    name: str
    bus: str = ""  # "0000:1b:00.0"
    node: int = -1  # NUMA node of the host memory that is nearest; -1: not told
    link: str = ""  # "gen 5 x16"


def shell(*command, timeout=30):
    """What a program prints; why not, if it cannot."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (done.stdout or done.stderr).strip()


def read(path, default=""):
    try:
        return pathlib.Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return default


def find():
    """As nvidia-smi lists them, which need not be CUDA's order."""
    query = "--query-gpu=index,uuid,pci.bus_id,pcie.link.gen.max,pcie.link.width.max,name"
    found = []
    for line in shell("nvidia-smi", query, "--format=csv,noheader").splitlines():
        cells = [cell.strip() for cell in line.split(",", maxsplit=5)]
        if len(cells) != 6 or not cells[0].isdigit():
            raise RuntimeError(f"nvidia-smi says: {line}")
        bus = cells[2].lower()[-12:]
        node = read(f"/sys/bus/pci/devices/{bus}/numa_node", "-1")
        found.append(
            Gpu(int(cells[0]), cells[1], cells[5], bus, int(node), f"gen {cells[3]} x{cells[4]}")
        )
    if not found:
        raise RuntimeError("nvidia-smi lists no GPU")
    return found


def host(count):
    """Devices of the host driver."""
    return [Gpu(index, f"host-{index}", "host memory") for index in range(count)]


def nodes():
    """{NUMA node: (list of its CPUs as Linux writes it, bytes of its memory)}"""
    found = {}
    for folder in sorted(pathlib.Path("/sys/devices/system/node").glob("node[0-9]*")):
        total = re.search(r"MemTotal:\s+(\d+) kB", read(folder / "meminfo"))
        found[int(folder.name[4:])] = (
            read(folder / "cpulist"), int(total.group(1)) * 1024 if total else 0
        )
    return found


def pages_by_node(pid):
    """{NUMA node: bytes} of a process; empty where the kernel does not tell."""
    found = {}
    for line in read(f"/proc/{pid}/numa_maps").splitlines():
        size = re.search(r"kernelpagesize_kB=(\d+)", line)
        for node, pages in re.findall(r"\bN(\d+)=(\d+)", line):
            page = int(size.group(1)) if size else 4
            found[int(node)] = found.get(int(node), 0) + int(pages) * page * 1024
    return found


def tell(gpus, figures):
    """Records them as facts; gives the whole of it as text."""
    for gpu in gpus:
        path = pathlib.Path(f"/sys/bus/pci/devices/{gpu.bus}")
        where = path.resolve().as_posix().removeprefix("/sys/devices/") if gpu.bus else ""
        node = "not told" if gpu.node < 0 else gpu.node
        figures.fact(f"GPU {gpu.index}", f"{gpu.name}, NUMA node {node}, {gpu.link}, {where}")
    for node, (cpus, size) in nodes().items():
        figures.fact(f"NUMA node {node}", f"CPUs {cpus}, {size:,} bytes")
    text = "\n\n".join(
        f"$ {command}\n{shell('sh', '-c', command)}"
        for command in (
            "nvidia-smi topo -m", "nvidia-smi nvlink -s",
            "lscpu | grep -E '^(Model name|Socket|CPU.s.|NUMA)'", "free -g",
            "cat /sys/kernel/mm/transparent_hugepage/shmem_enabled",
        )
    )
    print(text, flush=True)
    return text + "\n"
