"""Sums over networks in namespaces of their own: a loopback that tc makes slow, and two machines with two ranks each. Bytes and time
must be those of docs/distributed.md.
Skips where the kernel or the user may not.

usage: slow_network_test.py PROGRAM, which is tests/dist/ranks.cpp"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "script"))
import launchers  # noqa: E402

PROGRAM = os.path.abspath(sys.argv[1])
RATE, BURST = 50e6, 262144  # bytes a second, and how many may pass at once
SHAPE = f"ip link set lo up && tc qdisc add dev lo root tbf rate {RATE * 8:.0f}bit burst {BURST} latency 1s"
ELEMENTS, SUMS = 1 << 20, 3


# The second machine has numbers of processes of its own, too. Its name for rank 1 is not the one by which rank 0 knows that.
MACHINES = """
ip link set lo up && ip link add one type veth peer name two || exit 77
unshare --net --pid --fork --mount-proc --kill-child sleep 60 &
other=
while [ -z "$other" ]; do other=$(pgrep -P $!); done
there() { nsenter --target $other --net --pid --mount "$@"; }
ip link set two netns $other
ip addr add 10.9.0.1/24 dev one && ip link set one up
there ip link set lo up && there ip addr add 10.9.0.2/24 dev two && there ip link set two up
export WORLD_SIZE=4 MASTER_PORT=29500
grep one: /proc/net/dev
MASTER_ADDR=localhost RANK=0 "$@" & MASTER_ADDR=localhost RANK=1 "$@" &
MASTER_ADDR=10.9.0.1 RANK=2 there "$@" & last=$!
MASTER_ADDR=10.9.0.1 RANK=3 there "$@" && wait $last && grep one: /proc/net/dev
kill -KILL $other
"""


def namespace(*command: str) -> subprocess.CompletedProcess:
    return subprocess.run(["unshare", "--map-root-user", "--net", *command], text=True, capture_output=True, timeout=60)


def in_namespace(command: str) -> subprocess.CompletedProcess:
    return namespace("sh", "-c", f"{SHAPE} && {command}")


class Slow(unittest.TestCase):
    def test_bytes_and_time(self) -> None:
        for ranks in 2, 4:
            launch = " ".join([*launchers.launcher("tcp"), "-n", str(ranks), PROGRAM, "slow", str(ELEMENTS), str(SUMS)])
            run = in_namespace(f"grep lo: /proc/net/dev && {launch} && grep lo: /proc/net/dev")
            self.assertEqual((run.returncode, run.stderr), (0, ""))
            each = 2 * (ranks - 1) / ranks * 4 * ELEMENTS * SUMS
            said = [(int(sent), float(seconds)) for sent, seconds in re.findall(r"sent (\d+) bytes in (\S+) s", run.stdout)]
            self.assertEqual(len(said), ranks, run.stdout)
            for sent, _ in said:
                self.assertTrue(each <= sent < 1.01 * each, (sent, each))
            # (The network carries headers, too, and what goes before.)
            before, after = (int(line.split()[9]) for line in run.stdout.splitlines() if "lo:" in line)
            self.assertTrue(ranks * each < after - before < 1.05 * ranks * each, (after - before, ranks * each))
            seconds = max(seconds for _, seconds in said)
            least = (ranks * each - BURST) / RATE  # all ranks share this network
            print(f"{ranks} ranks: {seconds:.3f} s, by the model {ranks * each / RATE:.3f} s")
            self.assertTrue(0.97 * least < seconds < 1.3 * least, (seconds, least))

    def test_two_machines(self) -> None:
        """Each machine, not each of its ranks, sends its part of the buffer once a round."""
        run = namespace("sh", "-c", MACHINES, "sh", PROGRAM, "slow", str(ELEMENTS), str(SUMS))
        if run.returncode == 77 or not shutil.which("nsenter"):
            self.skipTest(f"there are no two machines: {run.stderr}")
        self.assertEqual(run.stdout.count("sent "), 4, run.stdout + run.stderr)
        before, after = ([int(line.split()[i]) for i in (1, 9)] for line in run.stdout.splitlines() if "one:" in line)
        half = 2 * 4 * ELEMENTS * SUMS / 2
        for sent in after[0] - before[0], after[1] - before[1]:
            self.assertTrue(half < sent < 1.05 * half, (sent, half))


if __name__ == "__main__":
    for tool in "unshare", "ip", "tc":
        if not shutil.which(tool):
            print(f"there is no {tool}")
            sys.exit(77)
    if (probe := in_namespace("true")).returncode:
        print(f"there is no network to shape: {probe.stderr.strip()}")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
