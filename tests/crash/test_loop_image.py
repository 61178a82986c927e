"""The disk that is cut from its power comes back, whoever else has it mounted."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.crash.loop_image import LoopImage, cut_power, power_is_cut, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "no loop devices")


def _sees_it(process: "subprocess.Popen[bytes]", path: str) -> bool:
    return path in Path(f"/proc/{process.pid}/mounts").read_text()


@pytest.mark.skipif(shutil.which("unshare") is None, reason="there is no unshare")
def test_a_disk_that_a_process_with_mounts_of_its_own_still_has_is_there_again_after_a_cut() -> None:
    with LoopImage("data=ordered") as image:
        Path(image.path, "before").touch()
        holder = subprocess.Popen(["unshare", "--mount", "sh", "-c", "echo; read x"], stdin=-1, stdout=-1)
        try:
            assert holder.stdout is not None
            holder.stdout.readline()
            cut_power(image.path)
            assert power_is_cut(image.path)

            image.power_on_again()

            assert _sees_it(holder, image.path)
            assert not power_is_cut(image.path)
            Path(image.path, "after").touch()
        finally:
            holder.kill()
            holder.communicate()
