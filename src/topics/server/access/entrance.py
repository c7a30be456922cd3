"""Who is asking: a request's key, by its header, token or ticket; without keys, where the request comes from.

Owns which credentials count where (AU1, AU2, AU10, AU11, AU18, AU19). Must not know: what a key is then allowed to do.
"""

from typing import Final

from topics.errors import Refusal, Unauthorized
from topics.server.access.tickets import Tickets
from topics.server.access.visitors import Visitors
from topics.server.auth import ANYONE, Key, Keyring, bearer_token, query_token, query_value
from topics.server.cors import Cors
from topics.server.routes import Routes
from topics.server.transport.exchange import Request
from topics.settings import Settings

NO_KEY: Final = "a key is needed: Authorization: Bearer <key>"
UNKNOWN_KEY: Final = "the key is not known"
UNKNOWN_TICKET: Final = "the ticket is not known: it is good for one request within 30 s"


class Entrance:
    def __init__(
        self, settings: Settings, routes: Routes, keyring: Keyring, tickets: Tickets, cors: Cors | None
    ) -> None:
        self._routes = routes
        self._keyring = keyring
        self._tickets = tickets
        self._visitors = Visitors(settings.host, settings.allowed_hosts, cors)
        self._probes_need_key = settings.probe_auth

    def check_visitor(self, request: Request) -> None:
        """While auth is off, probes may come from anywhere, other requests only from an allowed Host and origin."""
        headers = request.headers
        if (
            headers.get(b"host") in self._visitors.good
            and b"origin" not in headers
            and b"sec-fetch-site" not in headers
        ):
            return  # a program, as it was checked before
        try:
            self._visitors.check(request)
        except Refusal:
            row = self._routes.row("GET", request.path)
            is_probe = self._routes.is_probe(request.path) and not (row is not None and row.is_linked)
            if not is_probe and not self._is_navigation(request):
                raise

    def _is_navigation(self, request: Request) -> bool:
        """Whether a user follows a link, from wherever, to the console or the API's page."""
        if request.headers.get(b"sec-fetch-mode", b"").strip().lower() != b"navigate" or request.method != "GET":
            return False
        row = self._routes.row("GET", request.path)
        return row is not None and (row.is_page or row.is_linked)

    def key_of(self, request: Request) -> Key:
        """The caller's key. 401 comes before 404; only the paths of probes may need no key (AU11)."""
        header = request.headers.get(b"authorization")
        reason = NO_KEY
        if header is not None:
            token = bearer_token(header)
        else:
            token = query_token(request.query) if request.query and self._takes(request, is_ticket=False) else None
        if token is not None:
            key = self._keyring.find(token)
            reason = UNKNOWN_KEY
        else:
            key, reason = self._by_ticket(request) if header is None and request.query else (None, NO_KEY)
        if key is not None:
            return key
        row = self._routes.row(request.method, request.path)
        if row is not None and (row.checks_itself or row.is_page):
            return ANYONE
        if self._probes_need_key or not self._routes.is_probe(request.path):
            raise Unauthorized(reason)
        return ANYONE

    def named_by(self, request: Request) -> Key | None:
        """The key in a request's header, for the log."""
        header = request.headers.get(b"authorization")
        token = None if header is None else bearer_token(header)
        return None if token is None else self._keyring.find(token)

    def _by_ticket(self, request: Request) -> tuple[Key | None, str]:
        """The key that a ticket stands for, or why there is none."""
        ticket = query_value(request.query, b"ticket") if self._takes(request, is_ticket=True) else None
        return (None, NO_KEY) if ticket is None else (self._tickets.use(ticket), UNKNOWN_TICKET)

    def _takes(self, request: Request, *, is_ticket: bool) -> bool:
        """Whether a route takes a token, or a ticket, in its query."""
        try:
            route = self._routes.find(request.method, request.path)[0]
        except Refusal:
            return False
        return route.takes_ticket if is_ticket else route.takes_token
