"""What an engine is asked to generate, and when an answer ends."""

from tests.mutants.mutant import Mutant

FIELDS = "tests/api/test_fields.py"
ASK = "gateway/api/ask.py"

MUTANTS = [
    Mutant(
        ("stop_token_ids",),
        ASK,
        "if max(body.stop_token_ids, default=0) >= language.vocab_size:",
        "if False:",
        (f"{FIELDS}::test_fields_that_contradict_each_other_are_refused",),
    ),
]
