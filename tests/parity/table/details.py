"""What an answer may hold beside the text: log-probabilities and token ids."""

from dataclasses import replace

from tests.parity.case import Case, OnlyVLLM, chat, drawn_greedily, text, turn

FRANCE = "What is the capital of France?"
SCORED = OnlyVLLM("logprobs", "logprobs")
GUIDED = OnlyVLLM("logprobs", "logprobs,guided_decoding")
PENALISED = OnlyVLLM("logprobs", "logprobs,penalties")
ECHOED = OnlyVLLM("logprobs", "logprobs,prompt_logprobs")

CASES: tuple[Case, ...] = (
    chat("logprobs", FRANCE, SCORED, logprobs=True),
    chat("logprobs and one beside", FRANCE, SCORED, logprobs=True, top_logprobs=1),
    chat("logprobs and 5 beside", FRANCE, SCORED, logprobs=True, top_logprobs=5),
    chat("logprobs and 20 beside", FRANCE, SCORED, logprobs=True, top_logprobs=20, max_tokens=4),
    chat("logprobs off", FRANCE, logprobs=False),
    chat("logprobs of Unicode", "Say hello in Korean.", SCORED, logprobs=True, top_logprobs=2),
    chat("logprobs of an emoji", "Show me a smile.", SCORED, logprobs=True, top_logprobs=2),
    chat("logprobs at a stop string", FRANCE, SCORED, logprobs=True, top_logprobs=1, stop="of F"),
    drawn_greedily(chat("logprobs of every choice", FRANCE, SCORED, logprobs=True, top_logprobs=1, n=2)),
    chat("logprobs before penalties", FRANCE, PENALISED, logprobs=True, presence_penalty=1.0),
    chat("logprobs of a guide", FRANCE, GUIDED, logprobs=True, structured_outputs={"choice": ["Paris", "Rome"]}),
    text("logprobs 5 of a completion", turn(FRANCE), SCORED, logprobs=5, max_tokens=6),
    text("logprobs of prompts", [turn(FRANCE), turn("hi")], SCORED, logprobs=2, max_tokens=6),
    text("logprobs with the prompt's", "The capital of France", ECHOED, logprobs=1, echo=True, max_tokens=4),
    text("logprobs with the prompt's ids", [1, 300, 301], ECHOED, logprobs=1, echo=True, max_tokens=4),
    drawn_greedily(
        text("logprobs with the prompts of n", "The capital", ECHOED, logprobs=1, echo=True, max_tokens=3, n=2)
    ),
    chat("token ids", FRANCE, return_token_ids=True),
    drawn_greedily(chat("token ids of every choice", FRANCE, return_token_ids=True, n=2)),
    text("token ids of a completion", turn(FRANCE), return_token_ids=True),
    text("token ids of prompts", [[1, 300], [1, 400, 401]], return_token_ids=True, max_tokens=6),
    chat("token ids and logprobs", FRANCE, SCORED, return_token_ids=True, logprobs=True),
    replace(
        chat("token ids and continuous usage", FRANCE, return_token_ids=True),
        stream_options={"continuous_usage_stats": True},
    ),
)
