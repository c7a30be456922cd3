"""What a key is to its holder: a ticket in its place (AU18), and what it allows (AU20)."""

import msgspec
from msgspec import Struct

from topics.core.topic.records import decode_json
from topics.server.call import Call
from topics.server.wire.replies import Me, TicketGiven


class NothingIn(Struct, frozen=True):
    """The body of POST /v0/ticket; an empty one stands for {}."""


_decode_nothing = msgspec.json.Decoder(NothingIn).decode


def give_ticket(call: Call) -> None:
    if call.request.body:
        decode_json(_decode_nothing, call.request.body)
    ticket, expires_ts = call.app.tickets.give(call.key)
    call.answer(200, TicketGiven(ticket, expires_ts, call.performance()))


def show_me(call: Call) -> None:
    key = call.key
    call.answer(200, Me(key.name, sorted(key.scopes), list(key.prefixes), call.performance()))
