"""The text side of a model: chat template, encoding, decoding, stop strings, tool calls. Pure after `load`."""

from gateway.language.decoder import TextDecoder
from gateway.language.model import ModelLanguage
from gateway.language.model_directory import UnusableTokenizer
from gateway.language.reply_parser import make_parser
from gateway.language.reply_parts import CallArguments, CallStart, Content, Part, Reasoning, ReplyParser
from gateway.language.schema import make_holdable
from gateway.language.template import Rendering
from gateway.language.tool_formats import ToolFormat
from gateway.language.tool_guide import OPENINGS, Forced, Tool, call_or_text_guide, tool_guide

__all__ = [
    "OPENINGS",
    "CallArguments",
    "CallStart",
    "Content",
    "Forced",
    "ModelLanguage",
    "Part",
    "Reasoning",
    "Rendering",
    "ReplyParser",
    "TextDecoder",
    "Tool",
    "ToolFormat",
    "UnusableTokenizer",
    "call_or_text_guide",
    "make_holdable",
    "make_parser",
    "tool_guide",
]
