#!/usr/bin/env bash
# The write cache against the kernel's dm-writecache: 512 KiB random writes at depth 32 into a cache in memory.
#
#   writecache.sh [-n PAIRS] [-s MIB] [-r REPETITIONS] [-j FILE]
#
#   -n  pairs; in each, a kernel boots and does every block size, then forebay does (5)
#   -s  MiB written by a job (400)      -r  repetitions of it that make one figure of the kernel, 2 s or more in all (10)
#   -j  also write every figure to FILE as JSON lines
#
# The kernel is Linux 6.1 in user-mode-linux, its devices are brd. For each block size from 512 to 4096: cache of 2.5 times the
# job, freshly formatted, its memory touched before; the job of fio ends with an fsync, which is inside the time. Watermarks
# are out of reach, so that no writeback falls into it. forebay runs the same job in its own process (`bench writecache`).
# Needs: user-mode-linux dmsetup fio gcc python3, and cargo. Installs the packages when it runs as root on Debian.
set -euo pipefail
pairs=5 mib=400 repetitions=10 json=
while getopts n:s:r:j: option; do case $option in
  n) pairs=$OPTARG;; s) mib=$OPTARG;; r) repetitions=$OPTARG;; j) json=$(realpath -m "$OPTARG");; *) exit 2;; esac; done
cd "$(dirname "$0")/../.."
. bench/peers/lib.sh
need linux.uml:user-mode-linux dmsetup:dmsetup fio:fio cc:gcc python3:python3

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cache_mib=$((mib * 5 / 2)) sizes='512 1024 2048 4096'
sizes_flags=$(printf -- '--block-size %s ' $sizes)
cat >"$work/guest.sh" <<GUEST
set -e
dd if=/dev/zero of=/dev/ram0 bs=1M count=$cache_mib oflag=direct status=none
for bs in $sizes; do
  for repetition in \$(seq $repetitions); do
    dd if=/dev/zero of=/dev/ram0 bs=4096 count=1 oflag=direct status=none
    echo "0 $((mib * 2048)) writecache s /dev/ram1 /dev/ram0 \$bs 4 high_watermark 100 low_watermark 100" | dmsetup create c --noudevsync
    dmsetup mknodes c
    # Terse output: 47 is KiB written, 50 the time in ms.
    fio --name=w --filename=/dev/mapper/c --ioengine=libaio --direct=1 --rw=randwrite --bs=512k --iodepth=32 --size=${mib}M \\
      --numjobs=1 --end_fsync=1 --output-format=terse --terse-version=3 | awk -F';' '/^3;/{print "figure", '\$bs', \$47, \$50}'
    dmsetup remove c --noudevsync
  done
done
GUEST
guest() {
  tests/lab/uml.sh -m $((cache_mib + mib + 700)) -k dm-mod -k dm-bufio -k dm-writecache \
    -k "brd:rd_nr=2:rd_size=$((cache_mib * 1024)):max_part=0" "$1"
}
forebay=$(forebay_binary)
echo 'echo "$(uname -r), $(dmsetup targets | grep writecache)"' >"$work/version.sh"
versions "$forebay --version" 'fio --version' "guest $work/version.sh"
for pair in $(seq "$pairs"); do
  guest "$work/guest.sh" >"$work/kernel"
  awk -v round="$pair" '/^figure /{kib[$2] += $3; ms[$2] += $4} END{for (bs in kib)
    printf "{\"round\":%d,\"block_size\":%d,\"who\":\"dm-writecache\",\"mib_s\":%.1f}\n", round, bs, kib[bs] / 1.024 / ms[bs]}' \
    "$work/kernel" >>"$work/figures"
  # shellcheck disable=SC2086 # one option for each size
  "$forebay" bench writecache --size "${mib}M" --json ${sizes_flags} >"$work/ours"
  python3 - "$pair" "$work/ours" $sizes >>"$work/figures" <<'PYTHON'
import json, sys
rows = {row["block_size"]: row for row in json.load(open(sys.argv[2]))["rows"]}
for size in map(int, sys.argv[3:]):
    print(json.dumps({"round": int(sys.argv[1]), "block_size": size, "who": "forebay", "mib_s": rows[size]["on_mib_s"]}))
PYTHON
  echo "pair $pair of $pairs done" >&2
done
if [ -n "$json" ]; then cp "$work/figures" "$json"; fi
python3 bench/peers/table.py --group block_size --name who --reference forebay --value mib_s --unit MiB/s <"$work/figures"
