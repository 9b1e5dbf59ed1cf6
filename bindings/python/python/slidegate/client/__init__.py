"""Clients of the slidegate service, over its HTTP API. They need neither the native part nor another package.

A check always returns a decision. If the service is unreachable or late, the client decides by `on_failure`, and
`Decision.error` says why; the default is to allow.
"""

from .aio import AsyncClient
from .calls import DEFAULT_SETTLE_TIMEOUT, DEFAULT_TIMEOUT, Key
from .sync import Client

__all__ = ["DEFAULT_SETTLE_TIMEOUT", "DEFAULT_TIMEOUT", "AsyncClient", "Client", "Key"]
