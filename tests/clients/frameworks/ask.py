"""Asks one framework's questions: `python ask.py NAME`, in an environment of `make clients`.

A line of JSON in: {url, pin, question}; a line of JSON out: {answer}, or {fault} for what the framework raised. Apart
from the tests, because no two of these agree on what else has to be installed.
"""

import importlib
import json
import sys
import traceback


def main(name: str) -> None:
    results, sys.stdout = sys.stdout, sys.stderr  # where some print what they like
    ask = importlib.import_module(name).ask
    for line in sys.stdin:
        request = json.loads(line)
        try:
            result = {"answer": ask(request["url"], request["pin"], request["question"])}
        except Exception:  # noqa: BLE001 - the tests show it
            result = {"fault": traceback.format_exc()}
        results.write(json.dumps(result) + "\n")
        results.flush()


if __name__ == "__main__":
    sys.path.insert(0, ".")
    main(sys.argv[1])
