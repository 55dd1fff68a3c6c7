"""The client's wire: HTTP connections, request heads and bodies within bounds, and the way out for an answer.

It knows no OpenAI word: who answers an exchange, and with what, is the handler's business.
"""

from gateway.client_http.asgi import AsgiExchange
from gateway.client_http.connection import ClientConnection
from gateway.client_http.exchange import ClientLeft, Exchange, Listener
from gateway.client_http.head import RequestHead
from gateway.client_http.intake import Intake
from gateway.client_http.transport import CLOSE_FIELD

__all__ = [
    "CLOSE_FIELD",
    "AsgiExchange",
    "ClientConnection",
    "ClientLeft",
    "Exchange",
    "Intake",
    "Listener",
    "RequestHead",
]
