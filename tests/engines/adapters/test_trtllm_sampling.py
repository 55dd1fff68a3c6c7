"""Which requests TensorRT-LLM's PyTorch flow follows, by release and arguments; a release is the keys that it knows."""

from collections.abc import Mapping

import pytest

from engines.adapters.trtllm_sampling import NEVER_WITHIN, PENALTIES, complete, find_unfollowed

EARLY = frozenset({"max_draft_len"})
RELEASE_1_2 = EARLY | {"allow_advanced_sampling"}
LATER = RELEASE_1_2 | {"enable_penalty"}
EAGLE3: Mapping[str, object] = {"decoding_type": "Eagle3", "max_draft_len": 3}
NOTHING: frozenset[str] = frozenset()
WITHIN = {*NEVER_WITHIN, *PENALTIES}


@pytest.mark.parametrize(
    ("known", "speculation", "switches"),
    [
        (EARLY, EAGLE3, {}),
        (RELEASE_1_2, EAGLE3, {"allow_advanced_sampling": True}),
        (RELEASE_1_2, {**EAGLE3, "allow_advanced_sampling": False}, {"allow_advanced_sampling": False}),
        (LATER, EAGLE3, {"enable_penalty": True}),
        (LATER, {**EAGLE3, "enable_penalty": False}, {"enable_penalty": False}),
        (RELEASE_1_2, {**EAGLE3, "eagle3_one_model": False}, {}),
        (RELEASE_1_2, {"decoding_type": "NGram"}, {}),
    ],
)
def test_switch_that_the_release_has_is_set_unless_the_file_sets_it(
    known: frozenset[str], speculation: Mapping[str, object], switches: Mapping[str, bool]
) -> None:
    arguments = {"max_seq_len": 8, "speculative_config": speculation}
    assert complete(arguments, known) == {"max_seq_len": 8, "speculative_config": {**speculation, **switches}}
    assert arguments["speculative_config"] is speculation


@pytest.mark.parametrize(
    ("known", "speculation", "unfollowed"),
    [
        (RELEASE_1_2, {}, set(PENALTIES)),
        (RELEASE_1_2, {"decoding_type": "NGram"}, set(PENALTIES)),
        (RELEASE_1_2, {**EAGLE3, "eagle3_one_model": False}, set(PENALTIES)),
        (RELEASE_1_2, {"decoding_type": "MTP", "mtp_eagle_one_model": False}, set(PENALTIES)),
        (RELEASE_1_2, {**EAGLE3, "allow_advanced_sampling": True}, WITHIN),
        (RELEASE_1_2, EAGLE3, WITHIN | {"temperature"}),
        (RELEASE_1_2, {"decoding_type": "MTP", "allow_advanced_sampling": True}, WITHIN),
        (LATER, {}, NOTHING),
        (LATER, {"decoding_type": "NGram"}, NOTHING),
        (LATER, EAGLE3, WITHIN),
        (LATER, {**EAGLE3, "enable_penalty": True}, set(NEVER_WITHIN)),
        (LATER, {**EAGLE3, "enable_penalty": True, "eagle3_one_model": False}, set(NEVER_WITHIN)),  # is ignored there
        (LATER, {**EAGLE3, "enable_penalty": True, "use_dynamic_tree": True}, WITHIN),
        (LATER, {**EAGLE3, "enable_penalty": True, "eagle_choices": [[0]]}, WITHIN),
    ],
)
def test_tensors_that_change_nothing_or_are_refused(
    known: frozenset[str], speculation: Mapping[str, object], unfollowed: set[str]
) -> None:
    assert find_unfollowed({"speculative_config": speculation}, known).keys() == unfollowed
