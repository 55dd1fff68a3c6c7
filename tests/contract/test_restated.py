"""What is restated of upstream's contract where the file of facts cannot be read: it says the same as that file.

The gateway does not know `engines`, and the Triton Python model runs where there is no YAML.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from engines.recipes import rules
from engines.reference import trtllm_contract as reference
from gateway.backends.triton_config import CPP_GUIDE_PARAMETERS
from gateway.engine_kinds.triton import model_config as doctor
from tests.contract.facts import Facts, load_contract

CONTRACT = load_contract()
PYTHON_MODEL = Path(__file__).parents[2] / "model_repo/python/tensorrt_llm/config.pbtxt"
Row = tuple[str, str, tuple[int, ...], Facts]  # name, type, dims, the facts that it has to be one of


def restated() -> Iterator[Row]:
    yield from ((tensor.name, tensor.datatype, tensor.dims, CONTRACT.backend_inputs) for tensor in reference.INPUTS)
    yield from ((tensor.name, tensor.datatype, tensor.dims, CONTRACT.backend_outputs) for tensor in reference.OUTPUTS)
    yield from ((name, *form, CONTRACT.backend_inputs) for name, form in doctor.INPUTS.items())
    yield from ((name, *form, CONTRACT.backend_outputs) for name, form in doctor.OUTPUTS.items())


def test_tensors_have_the_backends_types_and_shapes() -> None:
    rows = list(restated())
    assert len(rows) > 40
    for name, datatype, dims, facts in rows:
        assert (datatype, dims) == (facts[name].type, facts[name].dims), name


def test_what_a_request_has_to_bring_is_what_the_backend_needs() -> None:
    required = {name for name, fact in CONTRACT.backend_inputs.items() if fact.required}
    assert {tensor.name for tensor in reference.INPUTS if tensor.is_required} == required
    assert required <= doctor.INPUTS.keys()


def test_parameters_that_turn_guides_on_are_the_backends() -> None:
    assert all(name in CONTRACT.backend_parameters for name in CPP_GUIDE_PARAMETERS)
    assert all("" in (CONTRACT.backend_parameters[name].values or ("",)) for name in CPP_GUIDE_PARAMETERS)


@pytest.mark.parametrize("name", [name for _, name, _ in doctor.SWITCHES])
def test_switches_that_the_doctor_reads_have_the_backends_defaults(name: str) -> None:
    ((_, _, default),) = (switch for switch in doctor.SWITCHES if switch[1] == name)
    assert CONTRACT.backend_parameters[name].type == "boolean"
    assert CONTRACT.backend_parameters[name].default is default


def test_python_model_declares_no_tensor_that_the_cpp_backend_has_not() -> None:
    config = text_format.Parse(PYTHON_MODEL.read_text(), model_config_pb2.ModelConfig())
    assert {tensor.name for tensor in config.input} <= CONTRACT.backend_inputs.keys()
    assert {tensor.name for tensor in config.output} <= CONTRACT.backend_outputs.keys()


def test_datasets_of_the_pytorch_flow_are_those_that_model_optimizer_knows() -> None:
    assert set(CONTRACT.hf_ptq["dataset"].values) == rules.TORCH_DATASETS
