"""Bandwidth and arithmetic of GPUs by NVIDIA's data sheets, by the name that torch reports. Pure.

Links are per direction: data sheets give both together. Arithmetic is dense: data sheets give that of sparse matrices,
which is twice as much.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class DataSheet:
    """Bytes and operations per second of one GPU; None is not known. `link_name` names the link of `link`."""

    link: float | None = None
    link_name: str = "link"
    memory: float | None = None
    flops_16: float | None = None
    flops_8: float | None = None

    def overridden(self, link_gb_s: float | None, memory_gb_s: float | None, tflops: float | None) -> "DataSheet":
        """Returns the sheet with the operator's own numbers; `tflops` are those of the model's own precision."""
        sheet = self
        if link_gb_s is not None:
            sheet = replace(sheet, link=link_gb_s * 1e9, link_name="link as given")
        if memory_gb_s is not None:
            sheet = replace(sheet, memory=memory_gb_s * 1e9)
        if tflops is not None:
            sheet = replace(sheet, flops_16=tflops * 1e12, flops_8=tflops * 1e12)
        return sheet


SXM, BRIDGE = "NVLink (SXM)", "NVLink bridge, if there is one"
# The first with which the name that torch reports begins. Data sheets: nvidia.com/en-us/data-center/{h100,h200,a100},
# and for the H100 PCIe its product brief PB-11133-001.
SHEETS = (
    ("NVIDIA H100 80GB HBM3", DataSheet(450e9, SXM, 3350e9, 989e12, 1979e12)),
    ("NVIDIA H100 NVL", DataSheet(300e9, BRIDGE, 3900e9, 835e12, 1671e12)),
    ("NVIDIA H100 PCIe", DataSheet(300e9, BRIDGE, 2000e9, 756e12, 1513e12)),
    ("NVIDIA H200 NVL", DataSheet(450e9, BRIDGE, 4800e9, 835e12, 1671e12)),
    ("NVIDIA H200", DataSheet(450e9, SXM, 4800e9, 989e12, 1979e12)),
    ("NVIDIA A100-SXM4-80GB", DataSheet(300e9, SXM, 2039e9, 312e12)),
    ("NVIDIA A100-SXM4-40GB", DataSheet(300e9, SXM, 1555e9, 312e12)),
    ("NVIDIA A100 80GB PCIe", DataSheet(300e9, BRIDGE, 1935e9, 312e12)),
)


def find_data_sheet(name: str) -> DataSheet:
    """Returns the GPU's data sheet, an empty one if it is not listed."""
    return next((sheet for known, sheet in SHEETS if name.startswith(known)), DataSheet())
