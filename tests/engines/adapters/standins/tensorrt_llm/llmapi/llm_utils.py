"""update_llm_args_with_extra_dict, which turns the content of a YAML file into what LLM takes, in either schema."""

from typing import Any

from tensorrt_llm.llmapi.llm_args import SCHEMA, SECTION, DecodingBaseConfig

Arguments = dict[str, Any]


def update_llm_args_with_extra_dict(
    llm_args: Arguments, llm_args_dict: Arguments, extra_llm_api_options: str | None = None
) -> Arguments:
    """Changes its second argument, as the real one does."""
    if SCHEMA == "classvar" and SECTION in llm_args_dict:
        llm_args_dict[SECTION] = DecodingBaseConfig.from_dict(llm_args_dict[SECTION])
    return llm_args | llm_args_dict
