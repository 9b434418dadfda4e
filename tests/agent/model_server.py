"""A backend that serves a model: it needs a file, arguments and environment, and is ready after a while."""

import functools
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import httpx2

from nodesmith.contracts.nats.loads import FileOrder, LoadOrder
from nodesmith.contracts.nats.messages import Command
from nodesmith.domain.kinds import Kind
from tests.agent.archives import built, regular

_SERVER = """
import argparse, json, os, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

options = argparse.ArgumentParser()
options.add_argument("--addr")
options.add_argument("--model", default="")
options.add_argument("--ready-after", type=float, default=0.0)
options.add_argument("--gate", default="")
options.add_argument("--fail", action="store_true")
chosen = options.parse_args()
if chosen.fail:
    sys.exit("the model cannot be loaded")
print("a line of output", flush=True)
started = time.monotonic()
content = Path(chosen.model).read_text() if chosen.model else ""

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        is_ready = time.monotonic() - started >= chosen.ready_after and (not chosen.gate or os.path.exists(chosen.gate))
        if self.path == "/info":
            self.answer(200, {"content": content, "arguments": sys.argv[1:], "pid": os.getpid(),
                              "environment": dict(os.environ), "version": VERSION})
        else:
            self.answer(200 if is_ready and self.path == "/health" else 503 if self.path == "/health" else 404, {})

    def answer(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass

host, port = chosen.addr.rsplit(":", 1)
ThreadingHTTPServer((host, int(port)), Handler).serve_forever()
"""


@functools.cache
def model_server(version: str, *, starts: bool = True) -> bytes:
    run = f'#!/bin/sh\nexec "{sys.executable}" -I -S server.py "$@"\n' if starts else "#!/bin/sh\nexit 3\n"
    server = f"VERSION = {version!r}\n{_SERVER}"
    return built(regular("run.sh", run.encode()), regular("server.py", server.encode()), regular(version, b""))


def stored(folder: Path, content: bytes) -> Path:
    """Store content under its digest."""
    path = folder / hashlib.sha256(content).hexdigest()
    if not path.exists():
        path.write_bytes(content)
    return path


def install(folder: Path, version: str = "1", *, op_id: str = "", starts: bool = True, **fields: Any) -> Command:
    archive = stored(folder, model_server(version, starts=starts))
    known = {"op_id": op_id or f"v{version}", "kind": Kind.INSTALL, "version": version, "family": "server"}
    source = {"backend": "server", "uri": archive.as_uri(), "sha256": archive.name, "decision": 1}
    return Command.model_validate({**known, **source, **fields})


def file_order(folder: Path, content: bytes = b"weights", name: str = "model.gguf", **fields: Any) -> FileOrder:
    path = stored(folder, content)
    known = {"uri": path.as_uri(), "sha256": path.name, "name": name, "size": len(content)}
    return FileOrder.model_validate({**known, **fields})


def load(folder: Path, op_id: str = "load", *, model: str = "llama", index: int = 0, **spec: Any) -> Command:
    files = spec.pop("files", [file_order(folder)])
    chosen = {"arguments": ["--model", "{file}"] if files else [], "revision": 1, **spec}
    return Command(
        op_id=op_id,
        kind=Kind.LOAD,
        family="server",
        backend=f"{model}#{index}",
        model_id=model,
        replica_index=index,
        decision=1,
        load=LoadOrder(model=model, backend="server", files=files, **chosen),
    )


def unload(op_id: str = "unload", *, model: str = "llama", index: int = 0) -> Command:
    return Command(
        op_id=op_id, kind=Kind.UNLOAD, backend=f"{model}#{index}", model_id=model, replica_index=index, decision=1
    )


async def info(http: httpx2.AsyncClient, address: str) -> dict[str, Any]:
    """What the process says about itself."""
    answer: dict[str, Any] = json.loads((await http.get(f"http://{address}/info")).content)
    return answer
