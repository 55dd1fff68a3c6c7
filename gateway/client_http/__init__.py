"""The client's wire: HTTP connections, request heads and bodies within bounds, and the way out for an answer.

Knows no OpenAI word: whoever answers an exchange, and what with, is the business of its handler.
"""

from gateway.client_http.asgi import AsgiExchange
from gateway.client_http.connection import ClientConnection
from gateway.client_http.exchange import ClientLeft, Exchange, Listener
from gateway.client_http.head import RequestHead
from gateway.client_http.intake import Intake

__all__ = ["AsgiExchange", "ClientConnection", "ClientLeft", "Exchange", "Intake", "Listener", "RequestHead"]
