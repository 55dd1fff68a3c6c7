"""`crossover engine` as its user runs it; processes stand in for TensorRT-LLM's programs, Docker and nvidia-smi."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from engines.directory.manifest import MANIFEST, read_manifest
from engines.engine_cli import engine
from engines.recipes.load import list_recipes
from tests.fakes.trtllm_release import IMAGE, Release, install
from tests.processes import comes_true, is_running

ROOT = Path(__file__).parents[2]
FP8, FP8_TP2, BF16 = "llama-3.1-8b-fp8-tp1", "llama-3.1-8b-fp8-tp2", "llama-3.1-8b-bf16-tp1"
TORCH, TORCH_NVFP4 = "llama-3.1-8b-torch-fp8-tp2", "llama-3.1-8b-torch-nvfp4-tp1"
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "max_position_embeddings": 131072,
}


@dataclass(frozen=True)
class Workshop:
    """A folder with a checkpoint, and programs on the path that leave what the release's would leave."""

    root: Path
    release: Release

    @property
    def checkpoint(self) -> Path:
        return self.root / "llama"

    @property
    def out(self) -> Path:
        return self.root / "engine"

    @property
    def places(self) -> tuple[str, ...]:
        options = {"--checkpoint": self.checkpoint, "--out": self.out, "--examples": self.release.examples}
        return tuple(word for option, path in options.items() for word in (option, str(path)))

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(engine, list(arguments))

    def build(self, recipe: str, *arguments: str) -> Result:
        return self.run("build", recipe, *self.places, *arguments)

    def verify(self, *arguments: str) -> Result:
        return self.run("verify", str(self.out), *arguments)


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    return make_workshop(tmp_path, monkeypatch)


def make_workshop(root: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    (root / "release").mkdir()
    release = install(root / "release")
    monkeypatch.setenv("PATH", str(release.bin), prepend=os.pathsep)
    workshop = Workshop(root, release)
    workshop.checkpoint.mkdir()
    (workshop.checkpoint / "config.json").write_text(json.dumps(CONFIG))
    (workshop.checkpoint / "generation_config.json").write_text(json.dumps({"eos_token_id": [128001, 128008, 128009]}))
    (workshop.checkpoint / "model.safetensors").write_bytes(b"weights" * 1000)
    (workshop.checkpoint / "tokenizer.json").write_text("{}")
    (workshop.checkpoint / "chat_template.jinja").write_text("{{ messages }}")
    return workshop


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an FP8 engine for two GPUs, built once; tests work on copies."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        workshop = make_workshop(tmp_path_factory.mktemp("built"), monkeypatch)
        result = workshop.build(FP8_TP2)
    assert result.exit_code == 0, result.output
    return workshop.root


@pytest.fixture
def copy(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    """The built engine in a folder of the test's own, on a node with the facts of the one that built it."""
    root = tmp_path / "copy"
    shutil.copytree(built, root, symlinks=True)
    release = Release(root / "release")
    monkeypatch.setenv("PATH", str(release.bin), prepend=os.pathsep)
    return Workshop(root, release)


def test_dry_run_prints_a_script_touches_nothing_and_needs_no_checkpoint(workshop: Workshop) -> None:
    result = workshop.build(FP8, "--dry-run")
    assert result.exit_code == 0
    assert "quantize.py" in result.output
    assert "trtllm-build \\" in result.output
    assert not workshop.out.exists()
    result = CliRunner().invoke(engine, ["build", FP8, "--dry-run"])
    assert result.exit_code == 0
    assert "--model_dir /models/llama-3.1-8b \\" in result.output


def test_build_leaves_an_engine_with_a_manifest_that_fits(workshop: Workshop) -> None:
    result = workshop.build(FP8)
    assert result.exit_code == 0, result.output
    assert f"built {workshop.out}" in result.output
    manifest = read_manifest(workshop.out)
    assert manifest.recipe_name == FP8
    assert (manifest.builder.tensorrt_llm, manifest.builder.tensorrt) == ("1.2.1", "10.14.1.48")
    assert (manifest.builder.capability, manifest.builder.driver) == ("9.0", "590.44.01")
    assert manifest.source.eos_ids == (128001, 128008, 128009)
    assert manifest.source.chat_template_sha256 is not None
    assert set(manifest.files) == {"config.json", "rank0.engine"}
    assert [command[0] for command in manifest.commands] == ["python3", "trtllm-build"]
    verified = workshop.verify("--checkpoint", str(workshop.checkpoint))
    assert (verified.exit_code, verified.output) == (0, f"{workshop.out} fits\n")


EAGLE = "speculative: {kind: eagle, draft_model: /models/eagle}"
LOOKAHEAD = "speculative: {kind: lookahead}"


@pytest.mark.parametrize(
    ("name", "addition"),
    [
        *((name, "") for name in list_recipes() if "torch" not in name),
        (BF16, EAGLE),
        (BF16, LOOKAHEAD),
        (BF16, "speculative: {kind: draft_tokens_external, max_draft_len: 10}"),
        (BF16, "lora: {target_modules: [attn_q, attn_v], max_rank: 32}"),
    ],
)
def test_what_the_release_makes_of_a_sound_recipe_is_as_asked(workshop: Workshop, name: str, addition: str) -> None:
    """trtllm-build changes settings that do not go together, and lengthens sequences by what is drafted."""
    recipe = workshop.root / "mine.yaml"
    text = workshop.run("recipes", name).output
    if "speculative" in addition:
        text = text.replace("max_batch_size: 256", "max_batch_size: 32")
    recipe.write_text(f"{text}{addition}\n")
    result = workshop.build(str(recipe))
    assert result.exit_code == 0, result.output
    assert workshop.verify("--recipe", str(recipe)).exit_code == 0


def test_steps_run_in_a_container_that_sees_what_they_need(workshop: Workshop) -> None:
    result = workshop.build(FP8, "--container", IMAGE, "--gpu-ids", "1")
    assert result.exit_code == 0, result.output
    manifest = read_manifest(workshop.out)
    assert manifest.builder.image == IMAGE
    assert manifest.builder.tensorrt == "10.14.1.48"  # of the image: the probe runs in it
    probe, *steps = workshop.release.docker_log.read_text().splitlines()
    assert "--volume" not in probe  # Docker would make the folders, for root
    assert f"--volume {workshop.checkpoint}:{workshop.checkpoint}:ro" in steps[0]
    assert '--gpus "device=1"' in steps[0]


def test_container_sees_what_a_checkpoint_in_hugging_faces_cache_points_to(workshop: Workshop) -> None:
    blobs = workshop.root / "blobs"
    blobs.mkdir()
    weights = workshop.checkpoint / "model.safetensors"
    weights.rename(blobs / "8f3c")
    weights.symlink_to("../blobs/8f3c")
    printed = workshop.build(FP8, "--container", IMAGE, "--dry-run").output
    assert f"--volume {blobs}:{blobs}:ro \\\n" in printed


def test_pytorch_flow_leaves_the_file_that_trtllm_serve_reads(workshop: Workshop) -> None:
    result = workshop.build(TORCH)
    assert result.exit_code == 0, result.output
    assert "trtllm-serve" in result.output
    assert set(read_manifest(workshop.out).files) == {"llm_args.yaml", "checkpoint/hf_quant_config.json"}
    assert workshop.verify().exit_code == 0
    assert workshop.verify("--quick").exit_code == 0


def test_pytorch_flow_needs_model_optimizers_examples_which_no_image_has(workshop: Workshop) -> None:
    (workshop.release.examples / "llm_ptq/hf_ptq.py").unlink()
    result = workshop.build(TORCH)
    assert result.exit_code == 2
    assert "llm_ptq/hf_ptq.py quantizes for this flow, and is missing: git clone --branch 0.37.0 " in result.output
    printed = CliRunner().invoke(engine, ["build", TORCH, "--dry-run"]).output
    assert "python3 /opt/Model-Optimizer/examples/llm_ptq/hf_ptq.py \\\n" in printed


def test_failing_step_ends_the_build_and_no_step_follows(workshop: Workshop) -> None:
    (workshop.release.examples / "quantization/quantize.py").unlink()
    (workshop.release.examples / "quantization/quantize.py").write_text("raise SystemExit(3)\n")
    result = workshop.build(FP8)
    assert result.exit_code == 1
    assert "quantize the checkpoint: fp8 weights, fp8 KV cache: python3 ended with exit code 3" in result.output
    assert "nothing after it ran" in result.output
    assert list(workshop.out.iterdir()) == []


def test_missing_program_ends_the_build(workshop: Workshop) -> None:
    (workshop.release.bin / "trtllm-build").unlink()
    result = workshop.build(BF16)
    assert result.exit_code == 1
    assert "build the engine: cannot run trtllm-build: No such file or directory" in result.output


def test_signal_ends_a_build_with_everything_it_started(workshop: Workshop) -> None:
    note = workshop.root / "worker"
    workshop.release.replace_program("trtllm-build", f"sleep 600 &\necho $! > {note}\nwait")
    command = [sys.executable, "-c", "from engines.engine_cli import engine; engine()", "build", BF16, *workshop.places]
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell does for a job in the background
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    signal.signal(signal.SIGINT, before)
    try:
        while not (note.exists() and note.read_text()):
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(40) == 1
    finally:
        process.kill()
        process.wait()
    assert comes_true(lambda: not is_running(int(note.read_text())))
    assert not (workshop.out / MANIFEST).exists()


def test_setting_that_the_build_dropped_is_refused_and_no_manifest_is_written(workshop: Workshop) -> None:
    workshop.release.override_build({"plugin_config": {"use_paged_context_fmha": False}})
    result = workshop.build(FP8)
    assert result.exit_code == 1
    assert "refused  use_paged_context_fmha: the engine has disable, the recipe asks for enable" in result.output
    assert not (workshop.out / MANIFEST).exists()
    assert workshop.verify().exit_code == 1


def write_recipe(workshop: Workshop, name: str, *changes: tuple[str, str]) -> str:
    """A shipped recipe with some words changed, in a file."""
    recipe, text = workshop.root / "mine.yaml", workshop.run("recipes", name).output
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    recipe.write_text(text)
    return str(recipe)


def quantize_to_nvfp4(workshop: Workshop) -> tuple[str, ...]:
    (workshop.checkpoint / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "NVFP4"}}))
    return (TORCH_NVFP4,)


def fill_out(workshop: Workshop) -> tuple[str, ...]:
    workshop.out.mkdir()
    (workshop.out / "rank7.engine").write_bytes(b"old")
    return (FP8,)


def shorten_context(workshop: Workshop) -> tuple[str, ...]:
    (workshop.checkpoint / "config.json").write_text(json.dumps({**CONFIG, "max_position_embeddings": 2048}))
    return (FP8,)


def replace(workshop: Workshop, program: str, script: str, *arguments: str) -> tuple[str, ...]:
    workshop.release.replace_program(program, script)
    return arguments


# What is wrong, as arguments of a build with the exit code and the message. None is an argument less.
Refuse = Callable[[Workshop], tuple[str, ...] | None]
TWO_GPUS = "refused  gpus.count: tp {} x pp {} needs 2 GPUs, 1 is here"
ONE_GPU = "echo 'NVIDIA H100 PCIe, 9.0, 590.44.01'"
NO_BUILDS: dict[str, tuple[Refuse, int, str]] = {
    "a folder that is not empty": (fill_out, 2, "is not empty"),
    "another architecture": (
        *(quantize_to_nvfp4, 1),
        "gpus.architecture: the recipe is for blackwell (10.0 or 10.3 or 12.0), this GPU is hopper (9.0)",
    ),
    "another release": (
        *(lambda w: w.release.install_version("tensorrt_llm", "1.1.0"), 1),
        "refused  tensorrt_llm: the recipe is for 1.2.1, 1.1.0 is installed",
    ),
    "no TensorRT-LLM": (
        *(lambda w: w.release.versions.unlink(), 2),
        "TensorRT-LLM is not installed here: --container nvcr.io/nvidia/tritonserver:26.07",
    ),
    "an image that does not run": (
        *(lambda w: replace(w, "docker", "exit 125", FP8, "--container", "nowhere:latest"), 2),
        "--container: nowhere:latest has no TensorRT-LLM",
    ),
    "too few GPUs": (lambda w: replace(w, "nvidia-smi", ONE_GPU, FP8_TP2), 1, TWO_GPUS.format(2, 1)),
    "a stage without a GPU": (
        lambda w: (write_recipe(w, BF16, ("tp: 1, pp: 1", "tp: 1, pp: 2"), ("count: 1", "count: 2")), "--gpu-ids", "0"),
        *(1, TWO_GPUS.format(1, 2)),
    ),
    "a hidden GPU": (lambda w: (FP8_TP2, "--gpu-ids", "0"), 1, TWO_GPUS.format(2, 1)),
    "another checkpoint": (shorten_context, 1, "limits.max_seq_len: 8192 is beyond the 2048 positions"),
    "no recipe": (lambda w: (write_recipe(w, FP8, ("count: 1", "number: 1")),), 2, "  gpus.number: unknown key"),
    "no folder": (lambda w: (BF16, "--out", "/dev/null/engine"), 2, "/dev/null/engine: Not a directory"),
}


@pytest.mark.parametrize("name", NO_BUILDS)
def test_build_is_refused_before_anything_runs(workshop: Workshop, name: str) -> None:
    prepare, code, message = NO_BUILDS[name]
    result = workshop.build(*(prepare(workshop) or (FP8,)))
    assert (result.exit_code, message in result.output) == (code, True), result.output
    assert not (workshop.out / MANIFEST).exists()


def change_config(workshop: Workshop, path: str, value: object) -> None:
    """As somebody would with an editor; the manifest then still marks the old file."""
    file = workshop.out / "config.json"
    document: Any = json.loads(file.read_text())
    *sections, key = path.split(".")
    place = document
    for section in sections:
        place = place[section]
    place[key] = value
    file.write_text(json.dumps(document, indent=4))


def other_recipe(workshop: Workshop, *changes: tuple[str, str]) -> tuple[str, ...]:
    return ("--recipe", write_recipe(workshop, FP8_TP2, *changes))


def edit_plan(workshop: Workshop, cut: int, added: bytes = b"") -> None:
    plan = workshop.out / "rank1.engine"
    plan.write_bytes(added + plan.read_bytes()[cut:])


def replace_file(workshop: Workshop, name: str, text: str) -> tuple[str, ...]:
    (workshop.checkpoint / name).write_text(text)
    return ("--checkpoint", str(workshop.checkpoint))


def render_and_edit(workshop: Workshop, old: str, new: str) -> tuple[str, ...]:
    """Options that name a model repository whose configuration somebody changed."""
    repository = workshop.root / "repository"
    rendered = workshop.run("render", FP8_TP2, "--engine", str(workshop.out), "--out", str(repository))
    assert rendered.exit_code == 0
    config = repository / "tensorrt_llm/config.pbtxt"
    assert old in config.read_text()
    config.write_text(config.read_text().replace(old, new))
    return ("--repository", str(repository))


def parameter(name: str, value: str) -> str:
    return f'"{name}" value {{ string_value: "{value}"'


LOOKAHEAD_FOR_FEW = (
    ("parallel:", "speculative: {kind: lookahead}\nparallel:"),
    ("max_batch_size: 256", "max_batch_size: 32"),
)
L40S = "printf 'NVIDIA L40S, 8.9, 590.44.01\\n%.0s' 1 2"
REBUILD, RENDER = "crossover engine build", f"crossover engine render {FP8_TP2} --engine"
# What somebody changed, how the one finding begins, and how its cure does.
MISMATCHES: dict[str, tuple[Refuse, str, str]] = {
    "another TensorRT-LLM": (
        lambda w: w.release.install_version("tensorrt_llm", "1.1.0"),
        "tensorrt_llm: built by 1.2.1, 1.1.0 serves here; TensorRT-LLM does not compare them",
        f"serve with release 1.2.1, or with 1.1.0 installed: {REBUILD}",
    ),
    "another TensorRT": (
        lambda w: w.release.install_version("tensorrt", "10.13.3.9"),
        "tensorrt: the plan was made by TensorRT 10.14.1.48, 10.13.3.9 is here and loads no other's",
        f"serve from the image that built it, or in this one: {REBUILD}",
    ),
    "another GPU architecture": (
        lambda w: w.release.replace_program("nvidia-smi", L40S),
        "compute_capability: the plan was built on hopper (9.0), this GPU is ada (8.9); plans do not move",
        f"on this node: {REBUILD}",
    ),
    "too few GPUs": (
        lambda w: ("--gpus", "1"),
        *("gpus.count: tp 2 x pp 1 needs 2 GPUs, 1 is here", "take a node with more, or a recipe with a smaller split"),
    ),
    "another split": (
        lambda w: ("--recipe", FP8),
        "parallel.tp: the engine has 2, the recipe asks for 1; the split is fixed when the checkpoint is converted",
        f"{REBUILD} {FP8} --checkpoint",
    ),
    "another batch": (
        lambda w: other_recipe(w, ("max_batch_size: 256", "max_batch_size: 512")),
        "max_batch_size: the engine has 256, the recipe asks for 512; the executor takes the engine's limit",
        REBUILD,
    ),
    "speculation that is not built in": (
        lambda w: other_recipe(w, *LOOKAHEAD_FOR_FEW),
        *("speculative_decoding_mode: the engine has none, the recipe asks for lookahead_decoding", REBUILD),
    ),
    "a missing rank": (
        lambda w: (w.out / "rank1.engine").unlink(),
        *("rank1.engine: missing; tp 2 and pp 1 make 2 ranks", REBUILD),
    ),
    "a rank too many": (
        lambda w: (w.out / "rank2.engine").touch(),
        "rank2.engine: left over from another build; tp 2 and pp 1 make 2 ranks",
        f"empty the directory, then {REBUILD}",
    ),
    "an edited limit": (
        lambda w: change_config(w, "build_config.max_batch_size", 64),
        *("max_batch_size: the engine has 64, the recipe asks for 256", REBUILD),
    ),
    "a split that is none": (
        lambda w: change_config(w, "pretrained_config.mapping.world_size", 4),
        *("mapping: config.json has tp 2 x pp 1 x cp 1, and a world of 4", REBUILD),
    ),
    "a truncated plan": (
        lambda w: edit_plan(w, 1),
        "rank1.engine: has 959 bytes, the build wrote 960",
        f"copy it again from where it was built, or {REBUILD}",
    ),
    "a damaged plan": (lambda w: edit_plan(w, 1, b"P"), "rank1.engine: was changed since the build", REBUILD),
    "no manifest": (
        lambda w: (w.out / MANIFEST).unlink(),
        *("manifest: ", f"{REBUILD} RECIPE --checkpoint CHECKPOINT"),
    ),
    "no config": (lambda w: (w.out / "config.json").unlink(), "config.json: ", REBUILD),
    "the other flow": (
        lambda w: ("--recipe", TORCH),
        *("flow: this is of the compiled flow, the recipe of the pytorch flow", f"{REBUILD} {TORCH}"),
    ),
    "another checkpoint": (
        lambda w: replace_file(w, "model.safetensors", "other weights"),
        *("checkpoint: ", f"from this checkpoint: {REBUILD}"),
    ),
    "another tokenizer": (
        lambda w: replace_file(w, "tokenizer.json", '{"added_tokens": []}'),
        *("tokenizer: ", "give the gateway the tokenizer of "),
    ),
    "another chat template": (
        lambda w: replace_file(w, "chat_template.jinja", "{{ other }}"),
        *("chat_template: ", "give the gateway the template of "),
    ),
    "an edited parameter": (
        lambda w: render_and_edit(w, parameter("cuda_graph_mode", "true"), parameter("cuda_graph_mode", "yes")),
        *("config.pbtxt cuda_graph_mode: is yes, the recipe makes it true", RENDER),
    ),
    "a parameter without which the model does not load": (
        lambda w: render_and_edit(w, f"parameters {{ key: {parameter('tokenizer_dir', '')} }} }}\n", ""),
        *("config.pbtxt tokenizer_dir: is not set, the recipe makes it empty", RENDER),
    ),
    "a parameter that was never filled in": (
        lambda w: render_and_edit(w, '"guaranteed_no_evict"', '"${batch_scheduler_policy}"'),
        *("config.pbtxt: ", RENDER),
    ),
    "no model configuration": (lambda w: ("--repository", str(w.root)), "config.pbtxt: ", RENDER),
}


def read_findings(result: Result) -> dict[str, str]:
    """Each refusal with its cure."""
    findings = json.loads(result.stdout)["findings"]
    return {f"{finding['field']}: {finding['problem']}": finding["cure"] for finding in findings}


@pytest.mark.parametrize("name", MISMATCHES)
def test_mismatch_is_refused_with_its_cure(copy: Workshop, name: str) -> None:
    prepare, problem, cure = MISMATCHES[name]
    result = copy.verify("--json", *(prepare(copy) or ()))
    assert result.exit_code == 1
    (found,) = [each for each in read_findings(result).items() if each[0].startswith(problem)]
    assert found[1].startswith(cure)


def test_one_cure_stands_behind_all_that_it_cures(copy: Workshop) -> None:
    *problems, cure = copy.verify("--recipe", BF16).stdout.splitlines()
    assert len(problems) > 3
    assert all(line.startswith("refused  ") for line in problems)
    assert cure.startswith(f"   cure  {REBUILD} {BF16} ")


def test_engine_on_the_node_that_built_it_is_not_refused(copy: Workshop) -> None:
    repository = render_and_edit(copy, "KIND_CPU", "KIND_CPU")
    result = copy.verify("--recipe", FP8_TP2, "--checkpoint", str(copy.checkpoint), *repository)
    assert (result.exit_code, result.output) == (0, f"{copy.out} fits\n")


def test_quick_look_goes_by_sizes(copy: Workshop) -> None:
    edit_plan(copy, 1, b"P")
    assert copy.verify("--quick").exit_code == 0
    edit_plan(copy, 1)
    assert copy.verify("--quick").exit_code == 1


def test_unknown_facts_are_listed_as_not_compared(copy: Workshop) -> None:
    copy.release.replace_program("nvidia-smi", "exit 9")
    copy.release.versions.unlink()
    result = copy.verify()
    assert result.exit_code == 0
    assert "--trtllm-version, --gpus, --tensorrt-version, --compute-capability" in result.stderr


def test_options_count_more_than_what_is_found(copy: Workshop) -> None:
    facts = ("--trtllm-version", "1.1.0", "--compute-capability", "8.9", "--tensorrt-version", "10.0")
    result = copy.verify(*facts, "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert [finding["field"] for finding in document["findings"]] == ["tensorrt_llm", "tensorrt", "compute_capability"]
    assert document["not_compared"] == []


def test_edited_yaml_of_the_pytorch_flow_is_refused(workshop: Workshop) -> None:
    assert workshop.build(TORCH).exit_code == 0
    path = workshop.out / "llm_args.yaml"
    edited = path.read_text().replace("enable_padding: true", "enable_padding: false")
    path.write_text(edited + "use_cuda_graph: true\n")
    assert "llm_args.yaml: use_cuda_graph: no recipe sets it" in read_findings(workshop.verify("--json"))
    path.write_text(edited)
    assert any(found.startswith("cuda_graph_config: ") for found in read_findings(workshop.verify("--json")))


@pytest.mark.parametrize(
    ("weights", "cache", "problem"),
    [
        ("NVFP4", "FP8", "precision.weights: the quantized checkpoint has nvfp4, the recipe asks for fp8"),
        ("FP8", None, "precision.kv_cache: the quantized checkpoint has auto, the recipe asks for fp8"),
    ],
)
def test_checkpoint_that_was_quantized_to_something_else_is_refused(
    workshop: Workshop, weights: str, cache: str | None, problem: str
) -> None:
    assert workshop.build(TORCH).exit_code == 0
    exported = workshop.out / "checkpoint/hf_quant_config.json"
    exported.write_text(json.dumps({"quantization": {"quant_algo": weights, "kv_cache_quant_algo": cache}}))
    found = read_findings(workshop.verify("--json"))
    assert [each for each in found if each.startswith("precision")] == [problem]
    assert any(each.startswith("checkpoint/hf_quant_config.json: ") for each in found)
    exported.unlink()
    assert "checkpoint: " in "\n".join(read_findings(workshop.verify("--json")))


def test_inspection_prints_engine_and_manifest(copy: Workshop) -> None:
    text = copy.run("inspect", str(copy.out)).output
    assert re.search(r"^  weights +fp8$", text, re.MULTILINE)
    assert re.search(r"^  eos_ids +128001 128008 128009$", text, re.MULTILINE)
    document = json.loads(copy.run("inspect", str(copy.out), "--json").output)
    assert document["engine"]["tp"] == 2
    assert document["manifest"]["gpu"] == "NVIDIA H100 80GB HBM3, hopper (9.0)"
    assert set(document["files"]) == {"config.json", "rank0.engine", "rank1.engine"}
    (copy.out / MANIFEST).unlink()
    assert "manifest: none" in copy.run("inspect", str(copy.out)).output


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["render", FP8, "--engine", "engines", "--out", "r"], "must be an absolute path"),
        (["render", TORCH, "--engine", "/engines", "--out", "r"], "this recipe is of the pytorch flow"),
        (["build", FP8, "--host", "--container", IMAGE], "--container and --host exclude each other"),
        (["build", FP8, "--gpu-ids", "a"], "must be numbers with commas between them"),
        (["build", FP8, "--checkpoint", "/nowhere"], "/nowhere/config.json: No such file or directory"),
        (["render", FP8, "--engine", "/engines", "--out", "/proc/nowhere"], "/proc/nowhere"),
        (["verify", "/nowhere"], "/nowhere: not a directory"),
        (["verify", "/", "--quick", "--checkpoint", "/m"], "--quick reads no file"),
        (["inspect", "/proc"], "config.json: No such file"),
        (["recipes", "llama"], "no recipe is called 'llama'"),
    ],
)
def test_arguments_that_cannot_be_used_end_with_their_problem(arguments: list[str], problem: str) -> None:
    result = CliRunner().invoke(engine, arguments)
    assert result.exit_code == 2
    assert problem in result.output


def test_shipped_recipes_are_listed_and_printed() -> None:
    listed = CliRunner().invoke(engine, ["recipes"]).output.splitlines()
    assert f"{FP8:<32} compiled  hopper     tp 1       fp8 weights, fp8 KV cache" in listed
    assert CliRunner().invoke(engine, ["recipes", FP8]).output.startswith("# Llama-3.1-8B in FP8")
