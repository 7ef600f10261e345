#!/usr/bin/env bash
# NBD servers on memory, side by side: forebay, nbdkit's memory plugin (default and malloc allocator), qemu-nbd on tmpfs.
#
#   nbd.sh [-n ROUNDS] [-s SECONDS] [-m MIB] [-b SIZES] [-c CONNECTIONS] [-j FILE]
#
#   -n  rounds; in each, every server does every job once (5)      -s  seconds a job runs (3)
#   -m  size of each device (1024)                                 -j  also write every figure to FILE as JSON lines
#   -b  block sizes ("4k 64k 512k")                                -c  numbers of connections ("1 2")
#
# Jobs: fio's nbd engine over a unix socket, random read and random write, depth 32 for each connection. Printed per job and
# server: median (lowest, highest) MiB/s, the ratio of forebay to the server round by round, and the server's processor seconds
# per GiB. `limit` is forebay over its null device, which moves no data of its own: what fio and the socket allow.
# Every device is written once before the first round, so that no figure pays for the first touch of memory.
# Needs: fio nbdkit qemu-utils libnbd-bin python3, and cargo. Installs the packages when it runs as root on Debian.
set -euo pipefail
rounds=5 seconds=3 mib=1024 sizes="4k 64k 512k" connections="1 2" json=
while getopts n:s:m:b:c:j: option; do case $option in
  n) rounds=$OPTARG;; s) seconds=$OPTARG;; m) mib=$OPTARG;; b) sizes=$OPTARG;; c) connections=$OPTARG;; j) json=$(realpath -m "$OPTARG");; *) exit 2;; esac; done
cd "$(dirname "$0")/../.."
. bench/peers/lib.sh
need fio:fio nbdkit:nbdkit qemu-nbd:qemu-utils nbdcopy:libnbd-bin python3:python3

work=$(mktemp -d)
image=$(mktemp /dev/shm/forebay-bench.XXXXXX)
pids=()
cleanup() { for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done; rm -rf "$work" "$image"; }
trap cleanup EXIT

forebay=$(forebay_binary)
servers=(forebay nbdkit nbdkit-malloc qemu-nbd limit)
start() { # NAME COMMAND...: starts a server whose socket is $work/NAME and waits for it
  local name=$1
  shift
  "$@" >"$work/$name.log" 2>&1 &
  pids+=($!)
  echo $! >"$work/$name.pid"
  for _ in $(seq 200); do [ -S "$work/$name" ] && return; sleep 0.05; done
  echo "nbd.sh: $name did not start: $(cat "$work/$name.log")" >&2
  exit 1
}
start forebay "$forebay" serve --table "0 $((mib * 2048)) linear ram:${mib}M 0" --export "nbd+unix:///?socket=$work/forebay" --control "$work/control"
start limit "$forebay" serve --table "0 $((mib * 2048)) linear null:${mib}M 0" --export "nbd+unix:///?socket=$work/limit" --control "$work/limit.control"
start nbdkit nbdkit -f -U "$work/nbdkit" memory "${mib}M"
start nbdkit-malloc nbdkit -f -U "$work/nbdkit-malloc" memory "${mib}M" allocator=malloc
truncate -s "${mib}M" "$image"
start qemu-nbd qemu-nbd -f raw -k "$work/qemu-nbd" -t -e 8 --discard=unmap --cache=writeback "$image"

versions "$forebay --version" 'fio --version' 'nbdkit --version' 'qemu-nbd --version' 'nbdcopy --version'
head -c "${mib}M" /dev/urandom >"$work/content"
for name in "${servers[@]}"; do nbdcopy "$work/content" "nbd+unix:///?socket=$work/$name"; done
rm "$work/content"

used() { # processor time of a server so far, in clock ticks, user and system
  sed 's/.*) //' "/proc/$(cat "$work/$1.pid")/stat" | awk '{print $12 + $13}'
}
ticks=$(getconf CLK_TCK)
job() { # ROUND SIZE DIRECTION CONNECTIONS SERVER: runs it and notes its figures
  local before after line
  before=$(used "$5")
  # Terse output: 6 and 7 are KiB read and KiB/s, 47 and 48 the same for writes.
  line=$(fio --name=b --ioengine=nbd --uri="nbd+unix:///?socket=$work/$5" --rw="$3" --bs="$2" --iodepth=32 --numjobs="$4" \
    --group_reporting --size="${mib}M" --norandommap --randrepeat=0 --time_based --runtime="$seconds" \
    --output-format=terse --terse-version=3)
  after=$(used "$5")
  echo "$line" | awk -F';' -v round="$1" -v job="$4 x $3 $2" -v name="$5" -v ticks="$((after - before))" -v hz="$ticks" \
    '/^3;/{kib = $6 + $47; printf "{\"round\":%d,\"job\":\"%s\",\"server\":\"%s\",\"mib_s\":%.1f,\"cpu_s_per_gib\":%.4f}\n",
      round, job, name, ($7 + $48) / 1024, ticks / hz / (kib / 1048576)}' >>"$work/figures"
}
for round in $(seq "$rounds"); do
  for count in $connections; do
    for bs in $sizes; do
      for rw in randread randwrite; do
        for name in "${servers[@]}"; do job "$round" "$bs" "$rw" "$count" "$name"; done
      done
    done
  done
  echo "round $round of $rounds done" >&2
done
if [ -n "$json" ]; then cp "$work/figures" "$json"; fi
python3 bench/peers/table.py --group job --name server --reference forebay --value mib_s --unit MiB/s --extra cpu_s_per_gib <"$work/figures"
