"""torporctl doctor on a machine with a GPU: before there is a daemon, and with one behind a keeper.

It takes no device memory, and finds what the driver has. Ends with 0 if every check held.

    doctor.py --bundle DIR [--out DIR]
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import torpor_daemon

GPU_CHECKS = ("kernel-driver", "cuda-library", "cuda-devices", "gpu-features", "device-nodes",
              "device-permissions")
DAEMON_CHECKS = ("daemon-socket", "daemon-usage", "daemon-version", "daemon-health",
                 "daemon-keeper", "daemon-workers", "daemon-descriptors")


def query(field):
    answer = subprocess.run(
        ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits"],
        capture_output=True, text=True, check=True)
    return answer.stdout.split("\n")[0].strip()


def doctor(program, runtime_dir, *flags, check=False):
    return subprocess.run([program, "doctor", f"--runtime-dir={runtime_dir}", *flags],
                          capture_output=True, text=True, check=check)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bundle", required=True)
    parser.add_argument("--out", default=".")
    options = parser.parse_args()
    programs = torpor_daemon.Programs(bundle=options.bundle)
    failed = []

    def expect(held, what):
        print("ok    " if held else "FAILED", what, flush=True)
        if not held:
            failed.append(what)

    def look(runtime_dir, gpu_checks, daemon_checks=()):
        begin = time.monotonic()
        report = json.loads(doctor(programs.torporctl, runtime_dir, "--json").stdout)
        print(f"{len(report['checks'])} findings in {time.monotonic() - begin:.2f} s")
        for name in gpu_checks + tuple(daemon_checks):
            found = [check for check in report["checks"] if check["name"] == name]
            # Limits are the machine's, and may well be low.
            good = ("OK",) if name in gpu_checks else ("OK", "WARNING")
            expect(found and all(check["verdict"] in good for check in found),
                   f"{name}: " + "; ".join(f"{c['verdict']}, {c['found']}" for c in found))
        return report

    with tempfile.TemporaryDirectory() as folder:
        look(folder, GPU_CHECKS)
    with torpor_daemon.Daemon(programs, "--driver=cuda", "--host_pool=1GiB", keeper=True) as daemon:
        time.sleep(2)  # until the pool is pinned
        used = query("memory.used")
        report = look(daemon.runtime_dir, GPU_CHECKS, DAEMON_CHECKS)
        expect(query("memory.used") == used, f"device memory in use stays {used} MiB")
        features = [c for c in report["checks"] if c["name"] == "gpu-features"]
        expect(features and features[0]["subject"] == query("uuid"), "devices have their UUID")
        text = doctor(programs.torporctl, daemon.runtime_dir).stdout
        hidden = dict(os.environ, CUDA_VISIBLE_DEVICES="-1")
        blind = subprocess.run([programs.torporctl, "doctor", "--json"], env=hidden,
                               capture_output=True, text=True, check=False)
        expect(blind.returncode == 1 and "leave it away" in blind.stdout,
               "a GPU that is hidden is a problem")
    pathlib.Path(options.out, "doctor.txt").write_text(text, encoding="utf-8")
    print(text)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
