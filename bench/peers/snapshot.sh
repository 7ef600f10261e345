#!/usr/bin/env bash
# Copy on write against the kernel's dm-snapshot: 512 KiB sequential writes at depth 8 to a device with a fresh snapshot, in memory.
#
#   snapshot.sh [-n PAIRS] [-s MIB] [-r REPETITIONS] [-j FILE]
#
#   -n  pairs; in each, a kernel boots and does every chunk size, then forebay does (5)
#   -s  MiB written by a job (256)      -r  repetitions of it that make one figure of the kernel, 2 s or more in all (10)
#   -j  also write every figure to FILE as JSON lines
#
# The kernel is Linux 6.1 in user-mode-linux, its devices are brd, their memory touched before. For chunks of 4 KiB, 32 KiB and
# 512 KiB: a new persistent snapshot, snapshot-origin over the same device; the job of fio ends with an fsync, which is inside
# the time. forebay runs the same job in its own process (`bench kcopyd`, the rows over RAM).
# Needs: user-mode-linux dmsetup fio gcc python3, and cargo. Installs the packages when it runs as root on Debian.
set -euo pipefail
pairs=5 mib=256 repetitions=10 json=
while getopts n:s:r:j: option; do case $option in
  n) pairs=$OPTARG;; s) mib=$OPTARG;; r) repetitions=$OPTARG;; j) json=$(realpath -m "$OPTARG");; *) exit 2;; esac; done
cd "$(dirname "$0")/../.."
. bench/peers/lib.sh
need linux.uml:user-mode-linux dmsetup:dmsetup fio:fio cc:gcc python3:python3

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
store_mib=$((mib + mib / 100 + 8)) sizes='4096 32768 524288'
cat >"$work/guest.sh" <<GUEST
set -e
dd if=/dev/zero of=/dev/ram0 bs=1M count=$store_mib oflag=direct status=none
dd if=/dev/zero of=/dev/ram1 bs=1M count=$mib oflag=direct status=none
for bytes in $sizes; do
  for repetition in \$(seq $repetitions); do
    dd if=/dev/zero of=/dev/ram0 bs=4096 count=1 oflag=direct status=none
    echo "0 $((mib * 2048)) snapshot /dev/ram1 /dev/ram0 P \$((bytes / 512))" | dmsetup create s --noudevsync
    echo "0 $((mib * 2048)) snapshot-origin /dev/ram1" | dmsetup create o --noudevsync
    dmsetup mknodes o
    # Terse output: 47 is KiB written, 50 the time in ms.
    fio --name=w --filename=/dev/mapper/o --ioengine=libaio --direct=1 --rw=write --bs=512k --iodepth=8 --size=${mib}M \\
      --numjobs=1 --end_fsync=1 --output-format=terse --terse-version=3 | awk -F';' '/^3;/{print "figure", '\$bytes', \$47, \$50}'
    dmsetup status s | grep -qv Invalid
    dmsetup remove o --noudevsync
    dmsetup remove s --noudevsync
  done
done
GUEST
guest() {
  tests/lab/uml.sh -m $((store_mib * 2 + 700)) -k dm-mod -k dm-bufio -k dm-snapshot \
    -k "brd:rd_nr=2:rd_size=$((store_mib * 1024)):max_part=0" "$1"
}
forebay=$(forebay_binary)
echo 'echo "$(uname -r), $(dmsetup targets | grep "^snapshot ")"' >"$work/version.sh"
versions "$forebay --version" 'fio --version' "guest $work/version.sh"
for pair in $(seq "$pairs"); do
  guest "$work/guest.sh" >"$work/kernel"
  awk -v round="$pair" '/^figure /{kib[$2] += $3; ms[$2] += $4} END{for (bytes in kib)
    printf "{\"round\":%d,\"chunk_size\":%d,\"who\":\"dm-snapshot\",\"mib_s\":%.1f}\n", round, bytes, kib[bytes] / 1.024 / ms[bytes]}' \
    "$work/kernel" >>"$work/figures"
  "$forebay" bench kcopyd --size "${mib}M" --dir "$work" --json >"$work/ours"
  python3 - "$pair" "$work/ours" >>"$work/figures" <<'PYTHON'
import json, sys
for row in json.load(open(sys.argv[2]))["rows"]:
    if row["device"] == "ram":
        print(json.dumps({"round": int(sys.argv[1]), "chunk_size": row["chunk_size"], "who": "forebay", "mib_s": row["on_mib_s"]}))
PYTHON
  echo "pair $pair of $pairs done" >&2
done
if [ -n "$json" ]; then cp "$work/figures" "$json"; fi
python3 bench/peers/table.py --group chunk_size --name who --reference forebay --value mib_s --unit MiB/s <"$work/figures"
