"""The Dockerfile and Kubernetes' manifests: linted, valid, and of one mind with each other.

    manifests_test.py --root REPOSITORY --bundle TORPOR.tar.xz --torpord PROGRAM

Nothing is built or deployed.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import unittest

import yaml

OPTIONS = None
# The oldest one that has resource.k8s.io/v1, and the newest one that is known.
VERSIONS = ("1.34", "1.37")


def tool(name):
    return str(pathlib.Path(sys.executable).parent / name)


def dockerfile():
    return OPTIONS.root / "deploy/container/Dockerfile"


def manifests():
    return sorted((OPTIONS.root / "deploy/kubernetes").glob("*.yaml"))


def documents():
    for path in manifests():
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            yield path.name, document


def pods():
    """(name of the manifest, spec of its pods)"""
    for name, document in documents():
        if document["kind"] in ("DaemonSet", "Deployment"):
            yield f"{name}: {document['metadata']['name']}", document["spec"]["template"]["spec"]


def daemon_pod():
    (pod,) = [p for n, p in pods() if n == "torpor.yaml: torpor"]
    return pod


def run(*command):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


class Dockerfile(unittest.TestCase):
    def test_lint(self):
        done = run(tool("hadolint"), "--no-color", str(dockerfile()))
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_lint_finds_mistakes(self):
        with tempfile.NamedTemporaryFile("w", suffix=".Dockerfile") as file:
            file.write("FROM debian\nRUN cd /tmp && apt-get install curl\n")
            file.flush()
            self.assertNotEqual(run(tool("hadolint"), file.name).returncode, 0)

    def test_takes_what_the_bundle_has(self):
        text = dockerfile().read_text(encoding="utf-8")
        (version,) = re.findall(r"(?m)^ARG VERSION=(.*)$", text)
        packed = re.search(r'VERSION = "(.*)"', (OPTIONS.root / "version.bzl").read_text())
        self.assertEqual(version, packed.group(1))
        (added,) = re.findall(r"(?m)^ADD (\S+)", text)
        self.assertEqual(added.replace("${VERSION}", version), OPTIONS.bundle.name)
        with tarfile.open(OPTIONS.bundle) as bundle:
            names = set(bundle.getnames())
        taken = re.findall(r'"\$from/([^"]+)"', text)
        self.assertGreater(len(taken), 4)
        for name in taken:
            self.assertIn(f"torpor-{version}-linux-x86_64/{name}", names)


class Manifests(unittest.TestCase):
    def test_valid(self):
        for path in manifests():
            for version in VERSIONS:
                with self.subTest(manifest=path.name, version=version):
                    done = run(tool("kubernetes-validate"), "--strict", "-k", version, str(path))
                    self.assertEqual(done.returncode, 0, done.stdout)
                    said = len(re.findall(r"passed for resource", done.stdout))
                    self.assertEqual(said, path.read_text(encoding="utf-8").count("\nkind: "))

    def test_validation_finds_mistakes(self):
        text = (OPTIONS.root / "deploy/kubernetes/torpor.yaml").read_text(encoding="utf-8")
        for right, wrong in (
            ("periodSeconds: 5", "periodSecond: 5"),
            ("runAsUser: 64200", "runAsUser: torpor"),
            ("type: DirectoryOrCreate", "type: [DirectoryOrCreate]"),
        ):
            with self.subTest(mistake=wrong), tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
                self.assertIn(right, text)
                file.write(text.replace(right, wrong))
                file.flush()
                self.assertNotEqual(run(tool("kubernetes-validate"), "--strict", file.name).returncode, 0)

    def test_daemons_take_no_gpu_from_the_scheduler(self):
        for container in daemon_pod()["containers"]:
            for kind in ("requests", "limits"):
                self.assertFalse([r for r in container["resources"][kind] if r.startswith("nvidia.com")])
            self.assertIn({"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}, container["env"])

    def test_daemons_outlive_their_manifest(self):
        (daemons,) = [d for _, d in documents() if d["kind"] == "DaemonSet"]
        self.assertEqual(daemons["spec"]["updateStrategy"]["type"], "OnDelete")
        # A restart of the container is the end of the daemons of all GPUs.
        for container in daemon_pod()["containers"]:
            self.assertNotIn("livenessProbe", container)
            self.assertIn("startupProbe", container)
            self.assertIn("readinessProbe", container)

    def test_who_may_connect(self):
        user = daemon_pod()["securityContext"]["runAsUser"]
        group = daemon_pod()["securityContext"]["runAsGroup"]
        text = dockerfile().read_text(encoding="utf-8")
        self.assertIn(f"USER {user}:{group}", text)
        (folder,) = daemon_pod()["initContainers"]
        self.assertEqual(folder["command"], ["chown", f"{user}:{group}", "/run/torpor"])
        workers = [(n, p) for n, p in pods() if p is not None and not n.startswith("torpor.yaml")]
        self.assertGreaterEqual(len(workers), 3)
        for name, pod in workers:
            with self.subTest(worker=name):
                self.assertIn(group, pod["securityContext"]["supplementalGroups"])
                self.assertNotEqual(pod["securityContext"]["runAsUser"], user)

    def test_all_meet_in_one_folder(self):
        def host_folder(pod):
            paths = {v["name"]: v["hostPath"]["path"] for v in pod["volumes"] if "hostPath" in v}
            found = {
                (paths[mount["name"]], mount["mountPath"])
                for container in pod["containers"]
                for mount in container["volumeMounts"]
                if mount["name"] in paths
            }
            return found

        for name, pod in pods():
            with self.subTest(pod=name):
                self.assertEqual(host_folder(pod), {("/run/torpor", "/run/torpor")})
                if not name.startswith("torpor.yaml"):
                    self.assertEqual(
                        pod["containers"][0]["volumeMounts"],
                        [{"name": "torpor", "mountPath": "/run/torpor", "readOnly": True}],
                    )

    def test_nobody_is_more_than_needed(self):
        for name, pod in pods():
            with self.subTest(pod=name):
                self.assertTrue(pod["securityContext"]["runAsNonRoot"])
                self.assertFalse(pod["automountServiceAccountToken"])
                for key in ("hostPID", "hostNetwork", "hostIPC"):
                    self.assertNotIn(key, pod)
                for container in pod["containers"] + pod.get("initContainers", []):
                    self.assertFalse(container["securityContext"]["allowPrivilegeEscalation"])
                    self.assertEqual(container["securityContext"]["capabilities"]["drop"], ["ALL"])
                    self.assertIn("memory", container["resources"]["limits"])

    def test_flags_are_torpords_and_the_pools_fit(self):
        known = set(re.findall(r"(?m)^  (--[a-z_]+)", run(OPTIONS.torpord, "--help").stdout))
        (container,) = daemon_pod()["containers"]
        self.assertEqual(container["args"][0], "run")
        flags = dict(flag.split("=") for flag in container["args"][1:])
        self.assertLessEqual(set(flags), known)
        pools = 8 * int(re.fullmatch(r"(\d+)GiB", flags["--host_pool"]).group(1))
        gib = lambda text: int(re.fullmatch(r"(\d+)Gi", text).group(1))
        (pool,) = [v["emptyDir"] for v in daemon_pod()["volumes"] if v["name"] == "pool"]
        self.assertGreater(gib(pool["sizeLimit"]), pools)
        self.assertGreater(gib(container["resources"]["limits"]["memory"]), gib(pool["sizeLimit"]))
        self.assertEqual(
            container["resources"]["limits"]["memory"], container["resources"]["requests"]["memory"])


def main():
    global OPTIONS
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=pathlib.Path, required=True)
    parser.add_argument("--bundle", type=pathlib.Path, required=True)
    parser.add_argument("--torpord", required=True)
    OPTIONS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)


if __name__ == "__main__":
    main()
