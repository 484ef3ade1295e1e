"""What kind of machine somebody rents this as, by what the firmware and a scheduler say; no network is asked.

A cloud writes its name, and often the instance type, into the tables that the firmware hands to the kernel (DMI). What
it does not write there is looked for in a price list by cores, memory and GPUs, and is taken only where one type fits.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DMI = Path("/sys/class/dmi/id")
_AZURE_TAG = "7783-7084-3265-9085-8269-3286-77"
"""The asset tag of every virtual machine of Azure."""


@dataclass(frozen=True)
class Instance:
    """A rented machine, as far as it says itself."""

    cloud: str | None
    """`aws`, `gcp`, `azure`, or None where no cloud is known by its tables."""
    type: str | None
    """Instance type, where the firmware says it."""
    evidence: str
    """What was read, in a few words."""
    partition: str | None = None
    """Partition of the Slurm job that this process is part of."""

    @property
    def name(self) -> str | None:
        """As the price book spells it, such as `aws/g5.xlarge`."""
        return None if self.cloud is None or self.type is None else f"{self.cloud}/{self.type}"


def recognised(dmi: Path = DMI, variables: Mapping[str, str] = os.environ) -> Instance | None:
    """The machine this runs on; None where nothing says that it is rented."""
    partition = variables.get("SLURM_JOB_PARTITION") if "SLURM_JOB_ID" in variables else None
    vendor, product = _read(dmi / "sys_vendor"), _read(dmi / "product_name")
    cloud, kind, evidence = None, None, ""
    if vendor == "Amazon EC2":
        cloud, kind, evidence = "aws", product or None, f"DMI: {vendor}, {product}"
    elif product == "Google Compute Engine":
        cloud, evidence = "gcp", f"DMI: {product}"
    elif _AZURE_TAG in (_read(dmi / "chassis_asset_tag"), _read(dmi / "board_asset_tag")):
        cloud, evidence = "azure", "DMI: asset tag of Azure"
    if partition is not None:
        evidence = f"{evidence}; " if evidence else ""
        evidence += f"Slurm partition {partition}"
    return None if cloud is None and partition is None else Instance(cloud, kind, evidence, partition)


def _read(path: Path) -> str:
    """The first line of a file, or nothing: a file that only root may read says nothing."""
    try:
        return path.read_text(errors="replace").splitlines()[0].strip()[:100]
    except (OSError, IndexError):
        return ""
