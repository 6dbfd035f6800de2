"""A forwarder between a client and a daemon's control socket, to break connections with."""

import contextlib
import os
import socket
import threading


class Proxy:
    """Listens at `path` and passes bytes to and from the socket `to`.

    While `deaf` is set, what the daemon says is dropped.
    """

    def __init__(self, path, to):
        self.path = path
        self.deaf = threading.Event()
        self._to = to
        self._lock = threading.Lock()
        self._open = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self):
        """Ends all connections that there are."""
        with self._lock:
            ends, self._open = self._open, []
        for end in ends:
            # Not closed here: others may be reading from it.
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self):
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        os.unlink(self.path)

    def _accept(self):
        while True:
            try:
                client = self._listener.accept()[0]
            except OSError:
                return
            daemon = socket.socket(socket.AF_UNIX)
            daemon.connect(self._to)
            with self._lock:
                self._open += [client, daemon]
            for source, sink, drops in ((client, daemon, False), (daemon, client, True)):
                threading.Thread(
                    target=self._pass, args=(source, sink, drops), daemon=True
                ).start()

    def _pass(self, source, sink, drops):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if not (drops and self.deaf.is_set()):
                    sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
