"""Real servers on loopback for the tests of sharing: nginx, and an S3-compatible store in a process of its own."""

import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

_NGINX = """daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/error.log; worker_processes 1;
events {{ worker_connections 64; }}
http {{
  access_log {folder}/access.log; client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
  uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  server {{ listen 127.0.0.1:{port}; root {root}; {extra} }}
}}
"""


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def running(command: list[str], url: str) -> Iterator[str]:
    """A server process, once it answers; ended with the block."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(300):
            if process.poll() is not None:
                pytest.fail(f"{command[0]} ended with {process.returncode}")
            try:
                urllib.request.urlopen(url, timeout=2).close()
                break
            except urllib.error.HTTPError as error:
                error.close()
                break
            except OSError:
                time.sleep(0.1)
        else:
            pytest.fail(f"{command[0]} does not answer")
        yield url
    finally:
        process.terminate()
        process.wait(10)


@contextmanager
def nginx(root: Path, folder: Path, extra: str = "") -> Iterator[str]:
    """nginx that serves a folder."""
    program = shutil.which("nginx") or shutil.which("/usr/sbin/nginx")
    if program is None:
        pytest.skip("nginx is not installed")
    if find_spec("aiohttp") is None or find_spec("fsspec") is None:
        pytest.skip("fsspec and aiohttp are not installed")
    port = free_port()
    config = folder / "nginx.conf"
    config.write_text(_NGINX.format(folder=folder, port=port, root=root, extra=extra))
    user = ["-g", "user root;"] if Path("/proc/self").owner() == "root" else []
    with running([program, "-c", str(config), "-p", str(folder), *user], f"http://127.0.0.1:{port}/") as url:
        yield url.rstrip("/")


@contextmanager
def store() -> Iterator[str]:
    """An S3-compatible store, empty."""
    if find_spec("moto") is None or find_spec("s3fs") is None or find_spec("flask") is None:
        pytest.skip("moto[server] and s3fs are not installed")
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with running(command, f"http://127.0.0.1:{port}/") as url:
        yield url.rstrip("/")
