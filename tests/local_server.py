"""An HTTP server on this machine, for tests of what speaks to one."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    """To be given a `do_POST`; keeps connections open and prints nothing."""

    protocol_version = "HTTP/1.1"

    def send(self, status, raw, headers=(), announced=None):
        """Answers with the bytes `raw`; `announced` is another length than theirs."""
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(announced or len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *arguments):
        pass


class LocalServer:
    """Serves with a handler class, on a free port, until the `with` block is left."""

    def __init__(self, handler):
        self._handler = handler
        self._listen(0)
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"

    def _listen(self, port):
        self.http = ThreadingHTTPServer(("127.0.0.1", port), self._handler)
        self.http.daemon_threads = True
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def die(self, seconds):
        """Closes its port, and listens there again after some seconds."""
        self.__exit__()
        threading.Timer(seconds, self._listen, [self.http.server_port]).start()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.http.shutdown()
        self.http.server_close()
