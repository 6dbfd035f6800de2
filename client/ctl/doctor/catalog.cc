#include "client/ctl/doctor/catalog.h"

namespace torpor::ctl::doctor {

const std::vector<Check>& Catalog() {
  static const auto& checks = *new std::vector<Check>{
      {"Driver", "kernel-driver", "Without NVIDIA's kernel module there is no GPU to serve."},
      {"Driver", "cuda-library",
       "Daemon and workers reach the GPU through libcuda.so.1, which is loaded when they start."},
      {"Driver", "cuda-devices",
       "A daemon serves one device that CUDA shows it, by its UUID; workers have to see it, too."},
      {"Driver", "gpu-features",
       "Torpor maps device memory by descriptors that it passes on: the device has to do both."},
      {"Driver", "compute-mode",
       "Daemon and workers each have a CUDA context on the device; other modes let in one or "
       "none."},
      {"Driver", "mig",
       "A GPU that is divided is not a device for CUDA any more: its instances are, one by one."},
      {"Driver", "visible-devices",
       "A process that does not see a daemon's device cannot serve it, or use its memory."},
      {"Driver", "mps",
       "Under MPS the death of one client may end others, and its server serves one user only."},
      {"Device nodes", "device-nodes",
       "CUDA opens /dev/nvidiactl, /dev/nvidia-uvm and the GPU's /dev/nvidiaN."},
      {"Device nodes", "device-permissions",
       "Daemon and workers, whoever they run as, read and write the device nodes."},
      {"Runtime directory", "runtime-directory",
       "Workers and operators find the daemons by their sockets here; the journal lies here, too, "
       "and must not outlive a boot."},
      {"Runtime directory", "daemons", "Without a daemon nothing can be allocated or sleep."},
      {"Daemon", "daemon-socket",
       "Who may connect to the sockets may use the daemon; who may not cannot even find it."},
      {"Daemon", "daemon-usage",
       "A daemon that does not answer does not move memory either; what is resident stays usable."},
      {"Daemon", "daemon-version",
       "Programs of different releases may not know what the other one says."},
      {"Daemon", "daemon-health",
       "The daemon itself tells when the GPU is lost, or an operation stuck."},
      {"Daemon", "daemon-keeper",
       "With a keeper the daemon may be killed or upgraded, and workers keep their sessions."},
      {"Daemon", "daemon-pool",
       "Where what sleeps lies decides what it outlives, and how fast it is pinned."},
      {"Daemon", "daemon-pool-size",
       "A sleep for which the host pool has no room is refused (HOST_MEMORY_EXHAUSTED)."},
      {"Daemon", "daemon-workers",
       "What a worker has can move only while it answers; for one whose process the daemon does "
       "not see it waits the whole grace time after a restart."},
      {"Daemon", "daemon-descriptors",
       "Each piece of device memory is a descriptor: without one an allocation is refused "
       "(FILE_DESCRIPTORS_EXHAUSTED)."},
      {"Daemon", "daemon-memory",
       "What sleeps is charged to the daemon's cgroup: over its limit daemon and keeper are "
       "killed."},
      {"Daemon", "daemon-cpus",
       "The pool is pinned by threads on the GPU's NUMA node; from another one copies are slower."},
      {"Daemon", "daemon-environment",
       "What CUDA does depends on the environment that the daemon was started with."},
      {"Memory", "huge-pages",
       "A host pool of huge pages is pinned about ten times as fast; --pool_memory=auto takes a "
       "file, which outlives the daemon, only where it comes with them."},
      {"Memory", "host-memory",
       "Weights that sleep lie in host memory; by default a daemon takes half of what is "
       "available."},
      {"Memory", "pools-fit",
       "Pools are pinned as they are used: what they promise beyond the memory that there is ends "
       "in refused sleeps, or with the kernel's OOM killer."},
      {"Memory", "memory-cgroup",
       "A daemon that is started in this cgroup has what is left under its limits, and no more."},
      {"Memory", "swap", "Pinned memory is never swapped out; everything else is before it."},
      {"Memory", "locked-memory",
       "CUDA's pinned memory does not count against this limit: Torpor was tried with 64 KiB."},
      {"Memory", "pool-folder",
       "A host pool with a name (--pool_dir) needs a tmpfs with room for it, and huge pages."},
      {"NUMA", "numa",
       "Copies between host and device are fastest from memory of the GPU's own NUMA node."},
      {"Limits", "open-files",
       "Daemon, keeper and worker each need a descriptor for each piece of device memory; they "
       "raise the soft limit to the hard one."},
      {"Limits", "system-files",
       "All processes of the machine together have this many open files."},
      {"Limits", "threads",
       "A daemon has some dozens of threads, and up to 256 more when as many calls are at work."},
      {"Container", "container",
       "In a container devices, memory and processes are those that it was given."},
      {"Container", "process-view",
       "The daemon looks at /proc to tell whether a worker that does not come back has ended."},
      {"Container", "system-calls",
       "Keeper and daemon need these calls; a seccomp profile may refuse them."},
      {"systemd", "systemd", "The package runs daemons as torpor@DEVICE.service."},
  };
  return checks;
}

}  // namespace torpor::ctl::doctor
