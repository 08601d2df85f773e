"""Addresses to which no request may be steered: link-local ones, where clouds answer with a machine's credentials.

Anyone who may choose a seat's URL could otherwise have the server ask them. Loopback and private networks are allowed, because
model servers are there.
"""

from __future__ import annotations

import ipaddress
import socket

METADATA = frozenset({
    ipaddress.ip_address(text) for text in ("100.100.100.200", "192.0.0.192", "168.63.129.16", "fd00:ec2::254", "fd20:ce::254")
})  # fmt: skip
"""Metadata services of clouds outside the link-local ranges."""
METADATA_NAMES = frozenset(
    {"metadata", "metadata.google.internal", "metadata.goog", "instance-data", "instance-data.ec2.internal"}
)
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def is_internal(host: str) -> bool:
    """True for link-local, metadata and multicast addresses in any spelling, and for the names of metadata services.

    Any other name is false: what it resolves to is known only when it is connected to.
    """
    name = host.strip("[]").rstrip(".").lower()
    if name in METADATA_NAMES:
        return True
    address = _address(name)
    if address is None:
        return False
    return any(one in METADATA or one.is_link_local or one.is_multicast for one in (address, *_within(address)))


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        pass
    try:
        # 2852039166, 0xa9fea9fe, 0251.0376.0251.0376 and 169.254.43518, as the system's resolver reads them.
        return ipaddress.IPv4Address(socket.inet_aton(name))
    except (OSError, UnicodeError):
        return None


def _within(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> list[ipaddress.IPv4Address]:
    """IPv4 addresses that an IPv6 address carries: mapped, translated (NAT64) or tunnelled (6to4)."""
    if isinstance(address, ipaddress.IPv4Address):
        return []
    found = [address.ipv4_mapped, address.sixtofour]
    if address in _NAT64 or int(address) >> 32 == 0:
        found.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return [one for one in found if one is not None]
