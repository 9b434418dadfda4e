"""The echo-lm backend: a small word model behind OpenAI's chat, completion and embedding routes.

It loads a real file and answers from it, so that placement, loading, routing and streaming can be tried without a GPU.
Options make it slow to load, slow to answer and large in memory.
"""

import argparse
import itertools
import json
import sys
import threading
import time
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from language_model import LanguageModel, embedding, split

_MIB = 1024 * 1024
_DEFAULT_WORDS = 16
_MOST_WORDS = 100_000
_Answer = dict[str, Any]


class BadRequest(Exception):
    """The request cannot be answered; the text says why."""


def main() -> None:
    options = _options()
    release = json.loads(Path(__file__).with_name("release.json").read_text())
    host, _, port = options.addr.rpartition(":")
    backend = Backend(options, release["version"])
    OpenAi.backend = backend
    server = Server((host, int(port)), OpenAi)
    print(f"echo-lm {release['version']} listens on {host}:{server.server_port}")  # noqa: T201 - the backend's own output
    threading.Thread(target=server.serve_forever, daemon=True).start()
    backend.load()
    threading.Event().wait()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--addr", default="127.0.0.1:0", metavar="HOST:PORT")
    parser.add_argument("--model", type=Path, default=Path(__file__).with_name("corpus.txt"), help="text to learn from")
    parser.add_argument("--name", default="echo-lm", help="name of the model in responses")
    parser.add_argument("--load-s", type=float, default=0.0, help="additional seconds to load")
    parser.add_argument("--token-ms", type=float, default=0.0, help="milliseconds for each word of a response")
    parser.add_argument("--memory-mib", type=int, default=0, help="additional memory to hold")
    return parser.parse_args()


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log errors, but not clients that disconnected in the middle of a response."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class Backend:
    """The loaded model, and the responses that it gives."""

    def __init__(self, options: argparse.Namespace, version: str) -> None:
        self.name: str = options.name
        self._options = options
        self._fingerprint = f"echo-lm-{version}"
        self._model: LanguageModel | None = None
        self._held = bytearray()

    @property
    def is_loaded(self) -> bool:
        return self._model is not None

    def load(self) -> None:
        """Read the model file; the health route answers 503 until this is done."""
        try:
            model = LanguageModel(self._options.model.read_text(errors="replace"))
        except (OSError, ValueError) as error:
            raise SystemExit(f"echo-lm cannot load {self._options.model}: {error}") from error
        self._held = bytearray(b"\x01") * (self._options.memory_mib * _MIB)
        time.sleep(self._options.load_s)
        self._model = model

    def words(self, prompt: str, body: _Answer) -> Iterator[str]:
        """Continue the prompt, at the speed of the setting; a bad request raises before the first word."""
        if self._model is None:
            raise BadRequest("the model is still loading")
        return self._paced(self._model.continuation(prompt, _length(body)))

    def _paced(self, words: Iterator[str]) -> Iterator[str]:
        for word in words:
            time.sleep(self._options.token_ms / 1000)
            yield word

    def chat(self, body: _Answer) -> _Answer:
        prompt = _chat_prompt(body)
        words = list(self.words(prompt, body))
        choice = {"index": 0, "message": {"role": "assistant", "content": " ".join(words)}, "finish_reason": "length"}
        return self._answer("chat.completion", body, choices=[choice], usage=_usage(prompt, len(words)))

    def chat_chunks(self, body: _Answer) -> Iterator[_Answer]:
        """The parts of a streamed response: a role, one part for each word, and the reason for its end."""
        words = self.words(_chat_prompt(body), body)
        yield self._chunk(body, {"role": "assistant", "content": ""})
        for number, word in enumerate(words):
            yield self._chunk(body, {"content": f" {word}" if number else word})
        yield self._chunk(body, {}, finish_reason="length")

    def completion(self, body: _Answer) -> _Answer:
        prompt = str(body.get("prompt", ""))
        words = list(self.words(prompt, body))
        choice = {"index": 0, "text": " ".join(words), "finish_reason": "length"}
        return self._answer("text_completion", body, choices=[choice], usage=_usage(prompt, len(words)))

    def embeddings(self, body: _Answer) -> _Answer:
        given = body.get("input", "")
        texts = [str(text) for text in given] if isinstance(given, list) else [str(given)]
        data = [{"object": "embedding", "index": at, "embedding": embedding(text)} for at, text in enumerate(texts)]
        return {"object": "list", "model": self.name, "data": data, "usage": _usage(" ".join(texts), 0)}

    def _chunk(self, body: _Answer, delta: _Answer, finish_reason: str | None = None) -> _Answer:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        return self._answer("chat.completion.chunk", body, choices=[choice])

    def _answer(self, kind: str, body: _Answer, **rest: Any) -> _Answer:
        return {
            "id": f"{kind}-{threading.get_ident():x}",
            "object": kind,
            "created": int(time.time()),
            "model": str(body.get("model") or self.name),
            "system_fingerprint": self._fingerprint,
            **rest,
        }


def _length(body: _Answer) -> int:
    wanted = body.get("max_completion_tokens") or body.get("max_tokens") or _DEFAULT_WORDS
    if not isinstance(wanted, int) or not 0 < wanted <= _MOST_WORDS:
        raise BadRequest(f"max_tokens must be a number from 1 to {_MOST_WORDS}")
    return wanted


def _chat_prompt(body: _Answer) -> str:
    messages = body.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise BadRequest("messages must be a list of objects")
    return " ".join(str(message.get("content", "")) for message in messages)


def _usage(prompt: str, made: int) -> dict[str, int]:
    read = len(split(prompt))
    return {"prompt_tokens": read, "completion_tokens": made, "total_tokens": read + made}


class OpenAi(BaseHTTPRequestHandler):
    """The routes; `backend` is set before the server starts."""

    backend: Backend
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 64 * 1024

    def do_GET(self) -> None:
        if self.path in ("/health", "/healthz"):
            status = HTTPStatus.OK if self.backend.is_loaded else HTTPStatus.SERVICE_UNAVAILABLE
            self.answer(status, {"status": "ok" if self.backend.is_loaded else "loading"})
        elif self.path == "/v1/models":
            entry = {"id": self.backend.name, "object": "model", "owned_by": "nodesmith"}
            self.answer(HTTPStatus.OK, {"object": "list", "data": [entry]})
        else:
            self.refuse(HTTPStatus.NOT_FOUND, "there is no such route")

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            self.dispatch(_parsed(raw))
        except BadRequest as error:
            self.refuse(HTTPStatus.BAD_REQUEST, str(error))

    def dispatch(self, body: _Answer) -> None:
        if self.path == "/v1/chat/completions":
            self.stream(body) if body.get("stream") else self.answer(HTTPStatus.OK, self.backend.chat(body))
        elif self.path == "/v1/completions":
            self.answer(HTTPStatus.OK, self.backend.completion(body))
        elif self.path == "/v1/embeddings":
            self.answer(HTTPStatus.OK, self.backend.embeddings(body))
        else:
            self.refuse(HTTPStatus.NOT_FOUND, "there is no such route")

    def stream(self, body: _Answer) -> None:
        chunks = self.backend.chat_chunks(body)
        first = next(chunks)  # a bad request shows here, before the head is sent
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for chunk in itertools.chain([first], chunks):
            self.write_chunk(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        self.write_chunk(b"data: [DONE]\n\n")
        self.write_chunk(b"")

    def write_chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def refuse(self, status: HTTPStatus, why: str) -> None:
        self.answer(status, {"error": {"message": why, "type": "invalid_request_error"}})

    def answer(self, status: HTTPStatus, content: _Answer) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log no requests: they may be thousands a second."""


def _parsed(raw: bytes) -> _Answer:
    try:
        body = json.loads(raw or b"{}")
    except ValueError as error:
        raise BadRequest(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise BadRequest("the body must be an object")
    return body


if __name__ == "__main__":
    main()
