#!/usr/bin/env bash
# The resync of a mirror against the kernel's dm-mirror: two legs in memory, everything out of sync.
#
#   mirror.sh [-n PAIRS] [-s MIB] [-j FILE]
#
#   -n  pairs; in each, a kernel boots and does every size of regions, then forebay does (5)
#   -s  MiB of a leg (256)      -j  also write every figure to FILE as JSON lines
#
# The kernel is Linux 6.1 in user-mode-linux, its legs are brd, its log is in memory, its resync is not throttled; the clock
# runs from the making of the device until its status says that all regions are in sync, looked at every 10 ms. forebay
# does the same in its own process over memory (the example mirror_resync), with a plain copy of one leg to the other by 1 MiB
# requests beside it. All memory is touched before.
# Needs: user-mode-linux dmsetup gcc python3, and cargo. Installs the packages when it runs as root on Debian.
set -euo pipefail
pairs=5 mib=256 json=
while getopts n:s:j: option; do case $option in
  n) pairs=$OPTARG;; s) mib=$OPTARG;; j) json=$(realpath -m "$OPTARG");; *) exit 2;; esac; done
cd "$(dirname "$0")/../.."
. bench/peers/lib.sh
need linux.uml:user-mode-linux dmsetup:dmsetup cc:gcc python3:python3

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
regions='128 1024 8192'
cat >"$work/guest.sh" <<GUEST
set -e
for leg in 0 1; do dd if=/dev/zero of=/dev/ram\$leg bs=1M count=$mib oflag=direct status=none; done
for region in $regions; do
  all=\$(($mib * 2048 / region))
  began=\$(date +%s%N)
  echo "0 $((mib * 2048)) mirror core 1 \$region 2 /dev/ram0 0 /dev/ram1 0" | dmsetup create m --noudevsync
  until dmsetup status m | grep -q " \$all/\$all "; do sleep 0.01; done
  echo "figure \$region \$((\$(date +%s%N) - began))"
  dmsetup remove m --noudevsync
done
GUEST
guest() {
  tests/lab/uml.sh -m $((mib * 2 + 300)) -k dm-mod -k dm-log -k dm-region-hash -k dm-mirror \
    -k "brd:rd_nr=2:rd_size=$((mib * 1024)):max_part=0" "$1"
}
cargo build --release -q -p forebay --example mirror_resync
ours=${CARGO_TARGET_DIR:-target}/release/examples/mirror_resync
echo 'echo "$(uname -r), $(dmsetup targets | grep mirror)"' >"$work/version.sh"
versions "guest $work/version.sh"
for pair in $(seq "$pairs"); do
  guest "$work/guest.sh" >"$work/kernel"
  awk -v round="$pair" -v mib="$mib" '/^figure /{
    printf "{\"round\":%d,\"region_sectors\":%d,\"who\":\"dm-mirror\",\"mib_s\":%.1f}\n", round, $2, mib * 1e9 / $3}' \
    "$work/kernel" >>"$work/figures"
  # shellcheck disable=SC2086 # one word for each size
  "$ours" "$mib" 1 $regions | python3 -c '
import json, sys
for line in sys.stdin:
    row = json.loads(line)
    for who, field in (("forebay", "resync_mib_s"), ("a plain copy", "copy_mib_s")):
        print(json.dumps({"round": int(sys.argv[1]), "region_sectors": row["region_sectors"], "who": who, "mib_s": row[field]}))
' "$pair" >>"$work/figures"
  echo "pair $pair of $pairs done" >&2
done
if [ -n "$json" ]; then cp "$work/figures" "$json"; fi
python3 bench/peers/table.py --group region_sectors --name who --reference forebay --value mib_s --unit MiB/s <"$work/figures"
