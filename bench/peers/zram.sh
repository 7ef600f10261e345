#!/usr/bin/env bash
# The compressed RAM disk against the kernel's zram: plain random writes and reads, lz4, data compressible by 60 %.
#
#   zram.sh [-n ROUNDS] [-s MIB] [-j FILE] [-g]
#
#   -n  rounds, in each of which the kernel's disk and then ours do every job (5)
#   -s  MiB of the disk (256)      -j  also write every figure to FILE as JSON lines
#   -g  in a guest, even where this machine has zram
#
# On this machine where it has zram with lz4 and we are root; otherwise in Linux 6.12 under QEMU's emulation, both sides in the
# same guest: its ratios say less, since an emulated processor is not one. The kernel's disk is a fresh one, asked by fio at
# depth 32 (libaio) and by one request at a time (psync, a loop of pread or pwrite); forebay does the same job in its own
# process, on one thread (`bench zram --plain`). Each disk is full before the clock starts.
# Needs: fio python3, and cargo. Installs the packages when it runs as root on Debian.
set -euo pipefail
rounds=5 mib=256 json= guest=
while getopts n:s:j:g option; do case $option in
  n) rounds=$OPTARG;; s) mib=$OPTARG;; j) json=$(realpath -m "$OPTARG");; g) guest=1;; *) exit 2;; esac; done
cd "$(dirname "$0")/../.."
. bench/peers/lib.sh
need fio:fio python3:python3
forebay=$(forebay_binary)
[ -w /sys/class/zram-control/hot_remove ] && grep -q lz4 /sys/block/zram*/comp_algorithm 2>/dev/null || guest=1

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# What runs here or in the guest; figures are lines `figure ROUND JOB WHO MIB_S` and `memory ROUND WHO BYTES`.
cat >"$work/inner.sh" <<INNER
set -e
number=\$(cat /sys/class/zram-control/hot_add)
zram=/sys/block/zram\$number disk=/dev/zram\$number
trap 'echo 1 >\$zram/reset; echo \$number >/sys/class/zram-control/hot_remove' EXIT
[ -b \$disk ] || mknod \$disk b \$(tr : ' ' <\$zram/dev)
echo lz4 >\$zram/comp_algorithm
echo ${mib}M >\$zram/disksize
run() { # ENGINE DEPTH RW BS
  fio --name=z --filename=\$disk --ioengine=\$1 --iodepth=\$2 --rw=\$3 --bs=\$4 --direct=1 --size=${mib}M --loops=2 --thread \\
    --buffer_compress_percentage=60 --buffer_compress_chunk=4096 --output-format=terse --terse-version=3 | grep '^3;'
}
run psync 1 write 128k >/dev/null
for round in \$(seq $rounds); do
  for bs in 4k 128k; do
    # Terse output: KiB and ms are 6 and 9 of reads, 47 and 50 of writes.
    for job in "fio libaio 32" "loop psync 1"; do
      set -- \$job
      run \$2 \$3 randwrite \$bs | awk -F';' -v w="\$round \$bs-write \$1" '{print "figure", w, \$47 / 1.024 / \$50}'
      run \$2 \$3 randread \$bs | awk -F';' -v w="\$round \$bs-read \$1" '{print "figure", w, \$6 / 1.024 / \$9}'
    done
  done
  echo "memory \$round kernel \$(awk '{print \$3 / \$1}' \$zram/mm_stat)"
  echo "ours \$round \$(\$FOREBAY bench zram --plain --size ${mib}M --json)"
done
INNER
if [ -n "$guest" ]; then
  versions "$forebay --version" 'fio --version' 'echo Linux 6.12 under QEMU, both sides'
  sed -i "1i FOREBAY=forebay" "$work/inner.sh"
  cp "$forebay" "$work/forebay"
  PATH=$work:$PATH tests/lab/vm.sh -m $((mib * 2 + 768)) -t 3000 -k zram -b fio -b forebay "$work/inner.sh" >"$work/out"
else
  versions "$forebay --version" 'fio --version'
  FOREBAY=$forebay bash "$work/inner.sh" >"$work/out"
fi
python3 - "$work/out" >"$work/figures" <<'PYTHON'
import json, sys
for line in open(sys.argv[1]):
    words = line.split(None, 4 if line.startswith("figure") else 2)
    if words[:1] == ["figure"]:
        print(json.dumps({"round": int(words[1]), "job": words[2], "who": "zram, " + words[3], "mib_s": float(words[4])}))
    elif words[:1] == ["ours"]:
        for row in json.loads(words[2])["rows"]:
            size = "4k" if row["block_size"] == 4096 else "128k"
            for job in ("write", "read"):
                print(json.dumps({"round": int(words[1]), "job": f"{size}-{job}", "who": "forebay", "mib_s": row[f"{job}_mib_s"]["median"]}))
PYTHON
if [ -n "$json" ]; then cp "$work/figures" "$json"; fi
python3 bench/peers/table.py --group job --name who --reference forebay --value mib_s --unit MiB/s <"$work/figures"
python3 - "$work/out" <<'PYTHON'
import json, sys
kernel = [float(line.split()[3]) for line in open(sys.argv[1]) if line.startswith("memory")]
ours = [row["used_bytes"] / row["original_bytes"] for line in open(sys.argv[1]) if line.startswith("ours") for row in json.loads(line.split(None, 2)[2])["rows"]]
print(f"\nmemory in use / data: zram {min(kernel):.4f} to {max(kernel):.4f}, forebay {min(ours):.4f} to {max(ours):.4f}")
PYTHON
