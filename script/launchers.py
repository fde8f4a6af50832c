"""Commands that start processes: an MPI that is installed, or torchrun's variables. NCCL's are those of TCP, with a stand-in for NCCL."""
import os
import pathlib
import shutil
import subprocess
import sys

SCRIPT = pathlib.Path(__file__).resolve().parent


def launcher(kind: str) -> list[str]:
    """The command for openmpi, mpich, tcp or nccl; empty if there is none."""
    if kind in ("tcp", "nccl"):
        return [sys.executable, str(SCRIPT / "launch_ranks.py")]
    found = shutil.which(f"mpirun.{kind}")
    if not found and (plain := shutil.which("mpirun")):
        said = subprocess.run([plain, "--version"], text=True, capture_output=True).stdout
        found = plain if ("Open MPI" in said) == (kind == "openmpi") else None
    return [] if not found else [found] + ["--oversubscribe"] * (kind == "openmpi")


def plugin(kind: str, plugins: list[str]) -> str:
    """The plug-in for that MPI, or the stand-in for NCCL; empty if there is none."""
    return next((p for p in plugins if f"_{kind}." in p), "")


def environment(plugin: str) -> dict[str, str]:
    """As root and without a network Open MPI has more to say."""
    if "_nccl." in plugin:
        return {**os.environ, "MIXTAPE_ENGINE": "nccl", "MIXTAPE_NCCL": plugin}
    return {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_btl": "self,vader",
            "MIXTAPE_MPI_PLUGIN": plugin}


def skip_unless(kind: str, plugin: str) -> None:
    """Ends the test, as one that is left out, if there is no such MPI."""
    missing = "mpirun" if not launcher(kind) else "plug-in" if not plugin and kind != "tcp" else ""
    if missing:
        print(f"there is no {missing} of {kind}")
        sys.exit(77)
