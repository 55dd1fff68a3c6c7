"""SamplingParams and GuidedDecodingParams: fields and defaults as documented, unknown ones refused."""

from dataclasses import dataclass, fields


@dataclass(slots=True, kw_only=True)
class GuidedDecodingParams:
    json: str | None = None
    regex: str | None = None
    grammar: str | None = None
    json_object: bool = False
    structural_tag: str | None = None

    def __post_init__(self) -> None:
        if sum(bool(getattr(self, field.name)) for field in fields(self)) > 1:
            raise ValueError("Only one guide can be used for a request")


@dataclass(slots=True, kw_only=True)
class SamplingParams:
    """Those of the documented fields that a text model has a use for; None is the runtime's own default."""

    end_id: int | None = None
    pad_id: int | None = None
    max_tokens: int = 32
    bad: str | list[str] | None = None
    bad_token_ids: list[int] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    embedding_bias: object = None  # a tensor
    n: int = 1
    best_of: int | None = None
    use_beam_search: bool = False
    top_k: int | None = None
    top_p: float | None = None
    top_p_min: float | None = None
    top_p_reset_ids: int | None = None
    top_p_decay: float | None = None
    seed: int | None = None
    temperature: float | None = None
    min_tokens: int | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    length_penalty: float | None = None
    early_stopping: int | None = None
    no_repeat_ngram_size: int | None = None
    min_p: float | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    return_context_logits: bool = False
    return_generation_logits: bool = False
    exclude_input_from_output: bool = True
    return_perf_metrics: bool = False
    guided_decoding: GuidedDecodingParams | None = None
    ignore_eos: bool = False
    detokenize: bool = True
    add_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True

    @property
    def is_greedy(self) -> bool:
        """As `_greedy_decoding` there: neither a top_k but 1 nor a top_p but 0."""
        return self.top_k in {None, 1} and self.top_p in {None, 0.0}
