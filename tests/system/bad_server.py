#!/usr/bin/env python3
"""An HTTP server that serves the files of a directory badly, for tests of downloads.

Usage: bad_server.py ROOT LOG. Prints its port, ends when its standard input does. A request's path is /MODE/FILE; each
one adds a line "MODE FILE RANGE" to LOG before it is answered.
"""
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ROOT, LOG = sys.argv[1:3]
lock = threading.Lock()
n_requests = {}  # by mode and file


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *arguments):
        pass

    def head(self, status, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()

    def do_GET(self):
        mode, _, name = self.path.lstrip("/").partition("/")
        asked = self.headers.get("Range", "-")
        with lock:
            count = n_requests[mode, name] = n_requests.get((mode, name), 0) + 1
            with open(LOG, "a") as log:
                log.write(f"{mode} {name} {asked}\n")
        path = os.path.join(ROOT, name)
        if mode == "404" or not os.path.isfile(path):
            return self.send_error(404)
        if mode == "416":
            return self.send_error(416)
        if mode == "503" or mode == "503-twice" and count <= 2:
            return self.send_error(503)
        if mode == "loop":
            return self.head(302, Location=self.path)
        if mode == "redirect":
            return self.head(302, Location=f"/good/{name}")
        with open(path, "rb") as file:
            data = file.read()
        try:
            self.answer(mode, data, asked)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def answer(self, mode, data, asked):
        total, begin = len(data), 0
        if asked.startswith("bytes=") and not mode.startswith("no-range"):
            begin = int(asked[6:].rstrip("-"))
            if begin >= total:
                return self.head(416)
        length = total - begin
        if mode == "wrong":
            data = bytes(byte ^ 1 for byte in data)
        if mode == "page":
            data, begin, length = b"<html>Please log in</html>\n", 0, 27
        if mode == "says-more":
            length += 1000
        if mode == "says-less":
            length -= 1000
        shift = 10 if mode == "wrong-range" and begin > 0 else 0
        if begin > 0:
            self.head(206, Content_Length=length, Content_Range=f"bytes {begin + shift}-{total - 1}/{total}")
        elif mode in ("endless", "no-range-endless"):
            self.head(200)
            data = data * 1000
        elif "no-length" in mode:
            self.head(200)
        else:
            self.head(200, Content_Length=length)
        self.send(mode, data[begin:])

    def send(self, mode, data):
        if mode == "slow":
            for i in range(0, len(data), 1 << 18):
                self.wfile.write(data[i : i + (1 << 18)])
                time.sleep(0.025)
        elif mode in ("cut", "no-range-cut", "stall", "no-length-cut"):
            self.wfile.write(data[: max(1, len(data) // 2)])
            self.wfile.flush()
            if mode == "stall":
                time.sleep(20)
        else:
            self.wfile.write(data)


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_address[1], flush=True)
sys.stdin.read()
