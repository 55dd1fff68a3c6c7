"""Requests without a form in tokens: they go on as they came, to an engine that has this API itself."""

from tests.parity.case import Case, Relayed, chat, user

PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
SOUND = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
TEXT = {"type": "text", "text": "hi"}

CASES: tuple[Case, ...] = (
    chat("a picture", [user([TEXT, PICTURE])], Relayed("messages.0.content.1.type")),
    chat("a sound", [user([SOUND])], Relayed("messages.0.content.0.type")),
    chat("a spoken answer", "hi", Relayed("modalities"), modalities=["text", "audio"]),
    chat("a voice", "hi", Relayed("audio"), audio={"voice": "alloy", "format": "mp3"}),
)
