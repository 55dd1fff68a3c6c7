#!/usr/bin/env bash
# Whether this machine has the system libraries that the engine in environment $1 is linked to; names what is missing.
set -euo pipefail
read -r version packages libraries < <("$1/bin/python" - <<'END'
import sys, sysconfig
version = ".".join(map(str, sys.version_info[:2]))
# An interpreter outside the system's folders may bring its own libpython (engines/triton.py looks there as well).
print(version, sysconfig.get_path("platlib"), sysconfig.get_config_var("LIBDIR") or "")
END
)
triton=$packages/pytriton/tritonserver
if [[ -d $triton ]]; then
    # Triton's Python backend embeds libpython, one build of it for each version.
    files=("$triton/bin/tritonserver" "$triton/python_backend_stubs/$version/triton_python_backend_stub")
else
    files=("$packages"/vllm/*.so)
fi
if [[ ! -e ${files[-1]} ]]; then
    echo "the engine in $1 does not run on Python $version: it has no ${files[-1]}" >&2
    exit 1
fi
export LD_LIBRARY_PATH=$packages/torch/lib:$libraries
missing=$(for file in "${files[@]}"; do ldd "$file"; done | awk '/not found/ {print $1}' | sort -u | xargs)
if [[ -n $missing ]]; then
    echo "the engine in $1 needs system libraries that this machine lacks: $missing" >&2
    echo "on Debian and Ubuntu: apt-get install libpython$version libnuma1" >&2
    exit 1
fi
