"""The forms of single values in crossover.yaml: addresses, names, times, keys, paths; and the words for a wrong one.

A section is a frozen dataclass whose fields have these forms and whose configuration is FORM; here is no section.
"""

import re
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, TypeAlias
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, Strict
from pydantic_core import PydanticCustomError

from gateway.address import UNIX

# Of every section: an unknown key is an error. Numbers are strict one by one ("8" is not 8): a section strict as a
# whole would refuse a mapping.
FORM = ConfigDict(extra="forbid", allow_inf_nan=False)

# Paths that the gateway answers itself, so that no engine is asked.
OWN_PATHS = frozenset({
    "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/messages/count_tokens", "/v1/models",
    "/v1/responses",
})  # fmt: skip
SCHEME = re.compile(r"[a-z][a-z0-9+-]{0,30}")
ORIGIN = re.compile(r"(https?)://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?/?", re.ASCII)
DEFAULT_PORTS = {"http": ":80", "https": ":443"}
SOCKET_PATH = re.compile(r"/[A-Za-z0-9._/@+-]*[A-Za-z0-9._@+-]")  # what a URL need not escape
MAX_SOCKET_BYTES = 107  # sun_path's 108 with its end (Linux, unix(7))


HOST_NAME = re.compile(r"\*|[a-z0-9_-]+(\.[a-z0-9_-]+)*", re.ASCII)
ORIGIN_OF_PAGE = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^/?#\s\\]+", re.ASCII)


def make_problem(message: str) -> PydanticCustomError:
    return PydanticCustomError("crossover", "{message}", {"message": message})


def _split_port(host_port: str) -> tuple[str, int] | None:
    host, _, digits = host_port.rpartition(":")
    if not host or not re.fullmatch(r"[0-9]{1,5}", digits) or int(digits) > 65535:
        return None
    return host, int(digits)


def split_listen(listen: str) -> tuple[str, int]:
    """Returns the host, without brackets, and the port of `host:port` or `[v6]:port`."""
    parts = _split_port(listen)
    if parts is None:
        raise make_problem("must look like host:port, for example 127.0.0.1:8080")
    return parts[0].removeprefix("[").removesuffix("]"), parts[1]


def _check_listen(listen: str) -> str:
    split_listen(listen)
    return listen


def _check_address(url: str, scheme: str) -> str:
    parts = urlsplit(url)
    has_extras = parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc
    if parts.scheme != scheme or has_extras or _split_port(parts.netloc) is None:
        raise make_problem(f"must look like {scheme}://host:port")
    return url.rstrip("/")


def _check_grpc(url: str) -> str:
    return _check_address(url, "grpcs" if url.startswith("grpcs:") else "grpc")


def _check_http(url: str) -> str:
    return _check_socket(url) if url.startswith(UNIX) else _check_address(url, "http")


def _check_socket(url: str) -> str:
    """Returns the socket in its one form, with a colon at the end, behind which a request's path is written."""
    path = url[len(UNIX) - 1 :].removesuffix(":")
    if not SOCKET_PATH.fullmatch(path):
        raise make_problem("must look like http://unix:/path/of.sock")
    if len(path) > MAX_SOCKET_BYTES:
        raise make_problem(f"names a socket whose path is longer than the {MAX_SOCKET_BYTES} bytes a system takes")
    return f"{UNIX[:-1]}{path}:"


def _check_metrics_url(url: str) -> str:
    if url.startswith(UNIX):
        path, _, page = url[len(UNIX) - 1 :].partition(":")
        if not page.startswith("/"):
            raise make_problem("must look like http://unix:/path/of.sock:/metrics")
        return f"{_check_socket(UNIX[:-1] + path)}{page}"
    parts = urlsplit(url)
    has_bad_port = ":" in parts.netloc.rpartition("]")[2] and _split_port(parts.netloc) is None
    if parts.scheme not in {"http", "https"} or not parts.netloc or has_bad_port:
        raise make_problem("must look like http://host:port/metrics")
    return url


def _check_media(source: str) -> str:
    """Returns a scheme, or an origin in its one form: in lower case, without its scheme's default port."""
    if SCHEME.fullmatch(source):
        return source
    if (found := ORIGIN.fullmatch(source.lower())) is None:
        raise make_problem("must be a scheme such as data, or an origin: https://host:port")
    return f"{found[1]}://{found[2]}{(found[3] or '').removesuffix(DEFAULT_PORTS[found[1]])}"


def _named(what: str) -> BeforeValidator:
    """Returns the form of a path that is not empty: that would be the current directory."""

    def check(path: object) -> object:
        if path == "":
            raise make_problem(f"must name a {what}")
        return path

    return BeforeValidator(check)


def _check_relay_path(path: str) -> str:
    if path in OWN_PATHS or path.startswith("/v1/models/"):
        raise make_problem("is answered by the gateway itself")
    return path


def _matches(pattern: re.Pattern[str], words: str) -> AfterValidator:
    def check(text: str) -> str:
        if not pattern.fullmatch(text):
            raise make_problem(words)
        return text

    return AfterValidator(check)


def _check_network(network: str) -> str:
    try:
        return str(ip_network(network))
    except ValueError:
        raise make_problem("must be an address, or a network such as 10.0.0.0/8") from None


def number(least: float, most: float, meaning: str | None = None) -> Any:  # Any: as pydantic types its Field
    """Returns the form of a number between these bounds; operators see `meaning`."""
    return Field(strict=True, ge=least, le=most, description=meaning)


# Backend names stand in response headers and metric labels, model ids in both and in URLs.
Name: TypeAlias = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]
ModelId: TypeAlias = Annotated[str, Field(pattern=r"^[\x21-\x7e]{1,256}$")]
Seconds: TypeAlias = Annotated[float, Field(strict=True, gt=0, le=86_400)]
Flag: TypeAlias = Annotated[bool, Strict()]
Folder: TypeAlias = Annotated[Path, _named("directory")]
File: TypeAlias = Annotated[Path, _named("file")]
# Exactly as in a request: without a query, and with no segment that a server could read as another path.
RelayPath: TypeAlias = Annotated[
    str, Field(pattern=r"^/v1(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+$", max_length=256), AfterValidator(_check_relay_path)
]
MediaSource: TypeAlias = Annotated[str, AfterValidator(_check_media)]
FieldName: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,100}$")]
Key: TypeAlias = Annotated[str, Field(pattern=r"^[\x21-\x7e]{8,256}$")]  # travels as a bearer token
OperatorKey: TypeAlias = Annotated[str, Field(pattern=r"^[\x21-\x7e]{16,256}$")]  # whoever guesses it may do everything
Listen: TypeAlias = Annotated[str, AfterValidator(_check_listen)]
GrpcUrl: TypeAlias = Annotated[str, AfterValidator(_check_grpc)]
HttpUrl: TypeAlias = Annotated[str, AfterValidator(_check_http)]
MetricsUrl: TypeAlias = Annotated[str, AfterValidator(_check_metrics_url)]

PageOrigin: TypeAlias = Annotated[str, _matches(ORIGIN_OF_PAGE, "must be * or look like https://host, without a path")]
Network: TypeAlias = Annotated[str, AfterValidator(_check_network)]
HostName: TypeAlias = Annotated[
    str, AfterValidator(str.lower), _matches(HOST_NAME, "must be * or a host's name, without a port")
]
