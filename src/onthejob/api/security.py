"""Access: this machine's browser may read from the server's own origin; changes need the token.

A page of another origin can send requests to a server on loopback, and a name that resolves to 127.0.0.1 makes it the same
origin (DNS rebinding). Therefore the Host and Origin headers are compared with what we serve, on HTTP and on WebSockets, and
what a browser says of the site that asks (Sec-Fetch-Site) is heeded for reading as well.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Collection, Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Names of this machine for itself."""
ANY_ADDRESS = frozenset({"0.0.0.0", "::"})
"""Hosts of a server that listens on every address of this machine."""
PAGES = frozenset({"/", "/index.html", "/docs"})
"""What a link on a page of another site may open."""
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
TOKEN_HEADER = "x-onthejob-token"
MAX_BODY = 256 * 1024
"""Bytes of a request; the largest legal one holds 16 replies of 8 KiB."""

# 'self' covers ws:// of the same origin. Phaser decodes its three built-in textures from data: URLs.
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; font-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


def foreign(scope: Scope, hosts: Collection[str]) -> str | None:
    """The reason why a request comes from another site's page; None when it does not, or comes from no page."""
    headers = Headers(scope=scope)
    asked = headers.getlist("host")
    if len(asked) != 1 or not is_ours(host_name(asked[0]), hosts):
        return f"this server is not asked as {', '.join(asked) or 'no host'}; open the address that was printed."
    origins = headers.getlist("origin")
    if origins and (len(origins) != 1 or urlsplit_netloc(origins[0]) != asked[0].lower()):
        return "requests from pages of another origin are refused."
    sites = headers.getlist("sec-fetch-site")
    if any(site not in ("same-origin", "none") for site in sites) and not is_link(scope, headers):
        return "requests from pages of another site are refused."
    return None


def is_ours(name: str, hosts: Collection[str]) -> bool:
    """Whether a host name may be this server's: one of `hosts`, or any address where it listens on all of them.

    A page that was loaded by an address is of that address: only a name can be made to resolve to another machine later.
    """
    return name in hosts or (not ANY_ADDRESS.isdisjoint(hosts) and is_address(name))


def is_address(name: str) -> bool:
    """True for an IP address, false for any other name."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_link(scope: Scope, headers: Headers) -> bool:
    """Whether a link on another page opens one of ours: that page cannot read the answer."""
    opened = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    return opened and scope["type"] == "http" and scope["method"] == "GET" and scope["path"] in PAGES


async def close(why: str, receive: Receive, send: Send) -> None:
    """Refuse a WebSocket: closing before accepting answers the handshake with 403."""
    await receive()
    await send({"type": "websocket.close", "code": 1008, "reason": why})


class OwnPages:
    """ASGI middleware for a server on loopback without a token: programs may ask, and no page but its own."""

    def __init__(self, app: ASGIApp, *, hosts: Iterable[str]) -> None:
        """hosts: host names (without port) under which this server may be asked."""
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        why = foreign(scope, self._hosts) if scope["type"] in ("http", "websocket") else None
        if why is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await close(why, receive, send)
        else:
            await JSONResponse({"detail": why}, status_code=403)(scope, receive, send)


class Guard:
    """ASGI middleware: refuses what does not come from our own page, and changes without the token."""

    def __init__(self, app: ASGIApp, *, hosts: Iterable[str], token: str) -> None:
        """hosts: host names (without port) under which this server may be asked. token: needed by every method but GET."""
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is not None:
            status, why = refusal
            if scope["type"] == "websocket":
                await close(why, receive, send)
                return
            await JSONResponse({"detail": why}, status_code=status, headers=HEADERS)(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        await self._app(scope, receive, send_with_headers if scope["type"] == "http" else send)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = Headers(scope=scope)
        why = foreign(scope, self._hosts)
        if why is not None:
            return 403, why
        if scope["type"] == "websocket":
            # Browsers always send it on WebSockets; a client without one is no page and needs no protection from pages.
            return None
        if scope["method"] in SAFE_METHODS:
            return None
        length = headers.get("content-length", "")
        if not length.isdecimal() or int(length) > MAX_BODY:
            return 413, f"a request needs a content-length of at most {MAX_BODY} bytes."
        given = headers.get(TOKEN_HEADER, "").encode("utf-8", "replace")
        if not hmac.compare_digest(given, self._token):
            return 401, f"changes need the token in the header {TOKEN_HEADER}; open the address that `onthejob view` printed."
        return None


def host_name(host: str) -> str:
    """The name in a Host header, without its port, in lower case; empty when it is malformed."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def urlsplit_netloc(origin: str) -> str:
    """Host and port of an Origin header; empty for `null` and what is malformed."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return ""
    return parts.netloc.lower() if parts.scheme in ("http", "https") else ""
