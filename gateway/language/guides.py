"""Whether a guide can be followed: its text in, what is wrong with it out, in the words of llguidance.

Some texts end the process that compiles them, so this module is also a program for a process of its own, started by
gateway/serving/guide_checks.py. It imports nothing of the gateway, to start fast; knows no request and no engine.
"""

import json
import os
import re
import resource
import signal
import sys
from contextlib import suppress

from llguidance import LLMatcher, grammar_from
from llguidance.gbnf_to_lark import is_lark_syntax

MAX_BYTES = 256 << 20  # {"minItems": 10**9} would take all there are; honest guides take some MB
MAX_CHARACTERS = 200
# llguidance's converter wants a rule in one line, xgrammar does not.
WITHIN_RULE = re.compile(r"\r?\n(?!\s*[\w-]+\s*::=)")


def find_fault(kind: str, text: str) -> str:
    """Empty where there is none. `kind` is a core.GuideKind that has a text."""
    try:
        fault = LLMatcher.validate_grammar(_grammar(kind, text))
    except ValueError as exc:
        fault = str(exc)
    return _brief(fault)


def _grammar(kind: str, text: str) -> str:
    """As the library writes grammars. Raises ValueError."""
    if kind == "json_schema":
        # What is wrong, not what one library lacks: the engines' others ignore `not` and take `oneOf`.
        return LLMatcher.grammar_from_json_schema(text, overrides={"lenient": True, "coerce_one_of": True})
    if kind == "regex":
        return grammar_from("regex", text)
    return grammar_from("grammar", text if is_lark_syntax(text) else WITHIN_RULE.sub(" ", text))


def _brief(fault: str) -> str:
    """What it comes down to: the library shows the whole text again, and where in it."""
    reason = fault.rpartition("error: ")[2].strip()
    return reason.partition("\n")[0][:MAX_CHARACTERS]


def main() -> None:
    """A line in, a line out, until there are no more; before that a line when ready.

    In: a number, kind, text, and how many seconds there are. Out: the number and the fault. What ends the one that
    tries is told by a line of nulls, and another one takes the next: that is forked, for it costs 3 ms where a process
    that starts anew costs 60.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(ValueError):  # macOS has no such limit; a guide's time is bounded there all the same
        resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    _say(None, "")
    while os.fork():
        _, status = os.wait()
        if not status:
            return
        _say(None, None)
    for line in sys.stdin.buffer:
        number, kind, text, limit_s = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, limit_s)  # nobody heeds its signal, which ends this process
        fault = find_fault(kind, text)
        signal.setitimer(signal.ITIMER_REAL, 0)
        _say(number, fault)


def _say(number: int | None, fault: str | None) -> None:
    sys.stdout.write(json.dumps((number, fault)) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
