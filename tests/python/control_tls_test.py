"""torpor.control over TCP with certificates that openssl makes."""

import asyncio
import dataclasses
import os
import pathlib
import subprocess
import tempfile
import unittest

import fixture
from fixture import DaemonTest
from torpor.control import AsyncClient, Client, Tls

_MAKE = """
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 10 \
  -subj /CN=ca -keyout ca.key -out ca.pem
for name in torpord.internal ops.example nobody.example; do
  openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=x \
    -keyout $name.key -out $name.csr
  printf 'subjectAltName=DNS:%s\\n' $name > $name.ext
  openssl x509 -req -in $name.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 10 \
    -extfile $name.ext -out $name.pem
done
chmod 600 *.key
"""


class ControlTlsTest(DaemonTest):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        try:
            subprocess.run(
                ["bash", "-ec", _MAKE], cwd=self.folder, check=True, capture_output=True
            )
        except FileNotFoundError:
            raise unittest.SkipTest("needs bash and openssl") from None
        access = self.folder / "access.conf"
        access.write_text(
            f'grant {{ role: OPERATOR uid: {os.geteuid()} certificate: "dns:ops.example" }}\n'
        )
        access.chmod(0o644)
        self.daemon = self.start_daemon(
            "--listen=127.0.0.1:0",
            f"--access={access}",
            f"--tls_cert={self.folder}/torpord.internal.pem",
            f"--tls_key={self.folder}/torpord.internal.key",
            f"--tls_client_ca={self.folder}/ca.pem",
        )
        port = self.daemon.log_text().split(" 127.0.0.1:")[1].split()[0].rstrip(",")
        self.target = f"127.0.0.1:{port}"

    def tls(self, who, name="torpord.internal"):
        return Tls(
            self.folder / "ca.pem", self.folder / f"{who}.pem", self.folder / f"{who}.key", name
        )

    def test_roles(self):
        with Client(self.target, tls=self.tls("ops.example")) as client:
            self.assertEqual(client.usage().device.uuid, "host-0")
        with Client(self.target, tls=self.tls("nobody.example")) as client:
            denied = self.assert_fails("ACCESS_DENIED", client.usage)
            self.assertEqual(denied.details["certificate"], "dns:nobody.example")

        async def usage():
            async with AsyncClient(self.target, tls=self.tls("ops.example")) as client:
                return await client.usage()

        self.assertEqual(asyncio.run(usage()).device.uuid, "host-0")

    def test_who_is_not_known_does_not_get_in(self):
        for tls in (None, self.tls("ops.example", name=None)):
            with Client(self.target, tls=tls, timeout=10) as client:
                self.assert_fails("DAEMON_UNREACHABLE", client.usage)

    def test_files_that_gRPC_would_not_use(self):
        def check(at, **given):
            for kind in (Client, AsyncClient):
                tls = dataclasses.replace(self.tls("ops.example"), **given)
                error = self.assert_fails("BAD_TLS_FILE", kind, self.target, tls=tls)
                self.assertEqual(error.details["path"], str(at))

        other = self.folder / "nobody.example.key"
        check(other, key=other)
        text = self.folder / "text"
        text.write_text("no certificate\n")
        for field in ("ca", "cert", "key"):
            check(text, **{field: text})
        damaged = self.folder / "damaged"
        damaged.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
        check(damaged, cert=damaged)
        locked = self.folder / "locked.key"
        key = self.folder / "ops.example.key"
        command = ["openssl", "pkey", "-aes256", "-passout", "pass:x", "-in", key, "-out", locked]
        subprocess.run(command, check=True)
        check(locked, key=locked)

    def test_environment(self):
        names = {"CA": "ca.pem", "CERT": "ops.example.pem", "KEY": "ops.example.key"}
        for name, file in names.items():
            os.environ[f"TORPOR_TLS_{name}"] = str(self.folder / file)
            self.addCleanup(os.environ.pop, f"TORPOR_TLS_{name}", None)
        self.assertEqual(Tls.from_environment().cert, str(self.folder / "ops.example.pem"))
        with Client(self.daemon.control_socket) as client:  # needs none of it
            client.usage()
        os.environ["TORPOR_TLS_KEY"] = "/no/such/file"
        self.assert_fails("BAD_TLS_FILE", Client, self.target)
        del os.environ["TORPOR_TLS_KEY"]
        self.assert_fails("BAD_TLS_FILE", Client, self.target)


if __name__ == "__main__":
    fixture.main()
