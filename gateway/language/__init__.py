"""Everything textual about a model: template, tokenization, detokenization, stop strings. Pure after `load`."""

from gateway.language.decoder import TextDecoder
from gateway.language.directory import UnusableTokenizer
from gateway.language.encoder import Draft
from gateway.language.model import ModelLanguage

__all__ = ["Draft", "ModelLanguage", "TextDecoder", "UnusableTokenizer"]
