"""What makes a client: where the server is, the key, and how long to try. A pickled client holds nothing else."""

from collections.abc import Callable

from msgspec import Struct

from topics.client.protocol.http_parser import Endpoint
from topics.client.protocol.retries import Retries
from topics.errors import InvalidRequest
from topics.settings import ClientSettings


class ClientConfig(Struct, frozen=True):
    """The arguments of a client, checked. No repr shows the token."""

    endpoint: Endpoint
    token: str
    timeout_ms: int
    retries: int
    gzip: bool
    window_ms: int

    @classmethod
    def of(
        cls, url: str | None, token: str | None, timeout_ms: int, retries: int, gzip: bool, window_ms: int
    ) -> "ClientConfig":
        """Take url and token from the environment where they are None."""
        settings = ClientSettings.load() if url is None or token is None else ClientSettings()
        url = settings.url if url is None else url
        token = settings.token if token is None else token
        for name, number in (("timeout_ms", timeout_ms), ("retries", retries), ("window_ms", window_ms)):
            if number < 0:
                raise InvalidRequest(f"{name} is {number}; it must not be negative")
        if not token.isascii() or not token.isprintable():
            raise InvalidRequest("the token contains characters that no key has")
        return cls(Endpoint.parse(url), token, timeout_ms, retries, gzip, window_ms)

    def headers(self) -> str:
        """The header lines of every request."""
        lines = "user-agent: topics-client\r\n"
        if self.gzip:
            lines += "accept-encoding: gzip\r\n"
        return f"{lines}authorization: Bearer {self.token}\r\n" if self.token else lines

    def policy(self, monotonic: Callable[[], float], random: Callable[[], float]) -> Retries:
        return Retries(self.timeout_ms, self.retries, self.window_ms, monotonic, random)

    def __repr__(self) -> str:
        return f"ClientConfig({str(self.endpoint)!r})"
