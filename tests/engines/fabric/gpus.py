"""A Python with torch and GPUs that are not there, which writes the lines of worker.py.

Messages take 10 us and a time at 300 GB/s of bus bandwidth; called one by one, 15 us more.
"""

import json
import sys
from pathlib import Path
from textwrap import dedent

SCRIPT = """
    import json, sys
    verb, names = sys.argv[2], {names!r}
    if verb == "describe":
        gpus = [{{"name": name, "memory_bytes": 85_000_000_000}} for name in names]
        peers = [[a, b] for a in range(len(gpus)) for b in range(len(gpus)) if a != b] if {has_peers} else []
        versions = {{"torch": "2.11.0", "cuda": "13.0", "nccl": "2.28.9"}}
        print(json.dumps(versions | {{"gpus": gpus, "peers": peers, "settings": {{"NCCL_NVLS_ENABLE": "0"}}}}))
        sys.exit()
    job = json.loads(sys.argv[3])
    share = 2 * (len(job["devices"]) - 1) / len(job["devices"])
    for repeat in range(job["repeats"]):
        for way in job["ways"]:
            for size in job["sizes"]:
                seconds = 1e-5 + share * size / 300e9 + (1.5e-5 if way == "eager" else 0)
                print(json.dumps({{"repeat": repeat, "way": way, "bytes": size, "loops": 1, "seconds": seconds}}))
"""


def make_python(folder: Path, *names: str, has_peers: bool = True) -> str:
    """An executable in `folder`, for a machine with GPUs of these names."""
    script = folder / "gpu-python"
    script.write_text(f"#!{sys.executable}\n{dedent(SCRIPT).format(names=list(names), has_peers=has_peers)}")
    script.chmod(0o755)
    return str(script)


LLAMA_8B = {
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "vocab_size": 128256,
}


def write_config(folder: Path, **changes: object) -> Path:
    """Llama-3.1-8B's shape in FP8."""
    fields = LLAMA_8B | {"quantization_config": {"quant_method": "fp8"}} | changes
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields))
    return folder
