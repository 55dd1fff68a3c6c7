"""Which sampling parameters TensorRT-LLM's PyTorch flow follows, by its release and its arguments.

In: arguments, and the keys that the release takes under `speculative_config`, by which releases are recognised. Out:
arguments with which more requests are followed, and the tensors that are not followed. Knows no engine.
"""

from collections.abc import Collection, Mapping
from typing import Any

Arguments = Mapping[str, Any]  # as TensorRT-LLM types them

PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
# Drafts within the model leave no step between its logits and the draw: earlier releases pass over these in silence,
# later ones refuse them (TensorRT-LLM PRs #17955, #18401).
NEVER_WITHIN = ("min_tokens", "embedding_bias", "return_log_probs")
# Kinds whose drafts come from elsewhere: the sampler draws as it does without.
BESIDE = frozenset({"NGram", "AUTO", "SaveState", "UserProvided", "User_Provided"})
# A release with this key has penalties in its sampler (PR #16485, in the documentation of 1.3.0rc24) and, if the key is
# true, beside drafts within the model (PR #17701). It has no second model for drafts any more (PR #17366).
PENALTY_SWITCH = "enable_penalty"
SAMPLING_SWITCH = "allow_advanced_sampling"  # before: without it such requests are answered greedily (PR #9885)


def complete(arguments: Arguments, known: Collection[str]) -> dict[str, Any]:
    """Add the release's switch for sampling beside drafts, where the file leaves it open."""
    speculation = arguments.get("speculative_config")
    if not speculation or not _drafts_within(speculation, known):
        return dict(arguments)
    switch = next((switch for switch in (PENALTY_SWITCH, SAMPLING_SWITCH) if switch in known), None)
    return {**arguments, "speculative_config": {**({switch: True} if switch else {}), **speculation}}


def find_unfollowed(arguments: Arguments, known: Collection[str]) -> dict[str, str]:
    """The tensors that would change nothing, or would be refused, each with the reason."""
    speculation = arguments.get("speculative_config") or {}
    if speculation and _drafts_within(speculation, known):
        return _find_unfollowed_within(speculation, known)
    if PENALTY_SWITCH in known or arguments.get("sampler_type") == "TRTLLMSampler":
        return {}
    return dict.fromkeys(PENALTIES, "this release's TorchSampler passes over penalties")


def _find_unfollowed_within(speculation: Arguments, known: Collection[str]) -> dict[str, str]:
    unfollowed = dict.fromkeys(NEVER_WITHIN, "drafts are made within the model")
    if PENALTY_SWITCH not in known:
        unfollowed |= dict.fromkeys(
            PENALTIES, "drafts are made within the model, and this release has no enable_penalty"
        )
        if not speculation.get(SAMPLING_SWITCH):
            unfollowed["temperature"] = f"{SAMPLING_SWITCH} is off in speculative_config"
    elif speculation.get("eagle_choices") or speculation.get("use_dynamic_tree"):
        unfollowed |= dict.fromkeys(PENALTIES, "drafts are a tree")
    elif not speculation.get(PENALTY_SWITCH):
        unfollowed |= dict.fromkeys(PENALTIES, f"{PENALTY_SWITCH} is off in speculative_config")
    return unfollowed


def _drafts_within(speculation: Arguments, known: Collection[str]) -> bool:
    """Whether one model drafts and checks."""
    if speculation.get("decoding_type") in BESIDE:
        return False
    has_second_model = False in {speculation.get("eagle3_one_model"), speculation.get("mtp_eagle_one_model")}
    return PENALTY_SWITCH in known or not has_second_model
