"""A gateway for a language model: two limits on requests, one on tokens, and two streams at once for each user.

    pip install slidegate fastapi uvicorn
    REDIS_URL=redis://127.0.0.1:6379 uvicorn app:app

Without REDIS_URL, it counts in the memory of the process.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping

from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from slidegate import Gate, SharedGate
from slidegate.asgi import RateLimit

POLICIES = """
policies:
  - {name: per-address, scope: [ip], quota: 100/1m, counts: requests}
  - {name: per-user, scope: [user], quota: 20/1m, counts: requests}
  - {name: tokens, scope: [user], quota: 10_000/1m}
  - {name: streams, scope: [user], in_flight: 2, lease: 30s, counts: requests}
"""
REDIS_URL = os.environ.get("REDIS_URL")
gate = SharedGate(REDIS_URL, POLICIES) if REDIS_URL else Gate(POLICIES)


def user(scope: Mapping) -> dict[str, str]:
    """Stands for authentication: a name that clients choose themselves limits nobody."""
    return {"user": dict(scope["headers"]).get(b"x-user", b"anonymous").decode("latin-1")}


def most_tokens(scope: Mapping) -> int:
    """The prompt's tokens, which are known, and the most that the answer may have."""
    return 10 + 500 if scope["path"] == "/chat" else 0


app = FastAPI()
app.add_middleware(
    RateLimit,
    limit=gate,
    attributes=user,
    reserve=most_tokens,
    skip=lambda scope: scope["path"] == "/healthz",
    refund=lambda status: status >= 500,
    trusted_proxies=["loopback"],
)


async def model(prompt: str, words: int) -> AsyncIterator[tuple[str, int]]:
    """Stands for the API of a model, which streams text and usage."""
    for tokens in range(1, words + 1):
        await asyncio.sleep(0.001)
        yield f"{prompt} ", 10 + tokens


@app.get("/chat")
async def chat(request: Request, prompt: str = "word", words: int = 5) -> StreamingResponse:
    async def answer() -> AsyncIterator[str]:
        async for text, tokens in model(prompt, min(words, 500)):
            request.state.reservation.record(tokens)
            yield text

    return StreamingResponse(answer(), media_type="text/plain")


@app.get("/usage")
async def usage(request: Request) -> dict[str, dict[str, int]]:
    policies = request.state.rate_limit.policies
    return {one.policy: {"used": one.used, "held": one.held, "limit": one.limit} for one in policies}


@app.get("/healthz")
async def healthz() -> str:
    return "ok"
