"""Packs the Python package into a wheel, the same bytes for the same files.

    build_wheel.py --out WHEEL --version VERSION FILE...

What a file becomes follows from its path: torpor/**/*.py and py.typed, lib*.so (stripped), *.proto
(compiled into torpor/control), METADATA.in, entry_points.txt, LICENSE.
"""

import argparse
import base64
import hashlib
import pathlib
import re
import subprocess
import tempfile
import zipfile

TAG = "py3-none-manylinux_2_36_x86_64"
# The earliest that zip files know.
TIMESTAMP = (1980, 1, 1, 0, 0, 0)


def stripped(path, scratch):
    copy = scratch / path.name
    subprocess.run(["strip", "--strip-unneeded", "-o", copy, path], check=True)
    return copy.read_bytes()


def compiled(protos, scratch):
    """{path in the wheel: generated Python or its types}; `protos`: {path as imported: file}."""
    roots = {str(file)[: -len(name)] or "." for name, file in protos.items()}
    subprocess.run(
        [
            "protoc", *[f"-I{root}" for root in sorted(roots)], f"--python_out={scratch}",
            f"--pyi_out={scratch}", *protos,
        ],
        check=True,
    )
    generated = {}
    for name in protos:
        stem = name[: -len(".proto")]
        folder = "torpor/control/bundled" if name.startswith("google/") else "torpor/control"
        for suffix in ("_pb2.py", "_pb2.pyi"):
            text = (scratch / f"{stem}{suffix}").read_text(encoding="utf-8")
            # Google's own package is used where it is there: a file may be registered only once.
            text = re.sub(
                r"(?m)^from google\.rpc import", "from torpor.control.google_rpc import", text
            )
            generated[f"{folder}/{pathlib.PurePath(stem).name}{suffix}"] = text.encode()
    return generated


def contents(files, version, scratch):
    """{path in the wheel: bytes}"""
    info = f"torpor-{version}.dist-info"
    packed, protos = {}, {}
    for file in map(pathlib.Path, files):
        package = re.search(r"(?:^|/)client/python/(torpor/.*)", file.as_posix())
        if package:
            packed[package.group(1)] = file.read_bytes()
        elif file.suffix == ".so":
            packed[f"torpor/{file.name}"] = stripped(file, scratch)
        elif file.suffix == ".proto":
            protos[re.search(r"(?:torpor|google)/\w+/\w+\.proto$", file.as_posix()).group()] = file
        elif file.name == "METADATA.in":
            text = file.read_text(encoding="utf-8").replace("@VERSION@", version)
            packed[f"{info}/METADATA"] = text.encode()
        else:
            packed[f"{info}/{file.name}"] = file.read_bytes()
    packed.update(compiled(protos, scratch))
    packed[f"{info}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: torpor {version}\nRoot-Is-Purelib: false\nTag: {TAG}\n"
    ).encode()
    record = ""
    for name, data in sorted(packed.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(data)}\n"
    packed[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    return packed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("files", nargs="+")
    options = parser.parse_args()
    if not options.out.endswith(f"/torpor-{options.version}-{TAG}.whl"):
        parser.error(f"{options.out} is not named as version and tag say")
    with tempfile.TemporaryDirectory() as scratch:
        packed = contents(options.files, options.version, pathlib.Path(scratch))
    # RECORD comes last.
    names = sorted(packed, key=lambda name: (name.endswith("/RECORD"), ".dist-info/" in name, name))
    with zipfile.ZipFile(options.out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in names:
            entry = zipfile.ZipInfo(name, TIMESTAMP)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3  # Unix, or the modes would not count
            entry.external_attr = (0o100755 if name.endswith(".so") else 0o100644) << 16
            archive.writestr(entry, packed[name])


if __name__ == "__main__":
    main()
