"""This machine's own addresses are never asked through a proxy.

A shell's proxy variables (``HTTP_PROXY``, ``HTTPS_PROXY``, ``ALL_PROXY``, in either case) are for
other machines. HTTP libraries use them for 127.0.0.1 too, unless ``NO_PROXY`` names it: a retrieval
server beside us then does not answer, or a proxy sees its requests.

Only the standard library and nothing of the package: every Python of the project's environment runs
this file when it starts (``stages/environment.py``).
"""

import os
from collections.abc import MutableMapping

LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")
EVERY_HOST = "*"


def spare_loopback(environment: MutableMapping[str, str] | None = None) -> None:
    """Add this machine's addresses to the hosts that no proxy is asked for, where the environment names a proxy.

    ``environment`` is that of this process where it is not given. The user's own list is kept; one
    of ``*`` names every host already. Without a proxy nothing is set, because some systems read
    their settings only from an environment without such variables.
    """
    environment = os.environ if environment is None else environment
    if not any(environment[name] for name in filter(_is_proxy, environment)):
        return

    # Where both are set, libraries read one or the other; a new one in lower case would hide the
    # user's upper case.
    names = [name for name in environment if _is_list(name)]
    for name in names or ("NO_PROXY", "no_proxy"):
        environment[name] = with_loopback(environment.get(name, ""))


def with_loopback(hosts: str) -> str:
    """Return a comma-separated list of hosts with this machine's addresses at its end."""
    if hosts.strip() == EVERY_HOST:
        return hosts

    # The user's own text stays as it is
    parts = [hosts] if hosts.strip(" ,") else []
    present = {host.strip().lower() for host in hosts.split(",")}
    for host in LOOPBACK_HOSTS:
        if host not in present:
            parts.append(host)

    return ",".join(parts)


def _is_proxy(name: str) -> bool:
    return name.lower().endswith("_proxy") and not _is_list(name)


def _is_list(name: str) -> bool:
    return name in ("NO_PROXY", "no_proxy")
