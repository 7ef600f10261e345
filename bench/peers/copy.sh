#!/usr/bin/env bash
# Copying a file to a file: forebay copy beside dd, qemu-img convert, nbdcopy and cp.
#
#   copy.sh [-n ROUNDS] [-m MIB] [-d DIR] [-j FILE]
#
#   -n  rounds; in each, every tool copies once (5)      -m  size of the file (1024)
#   -d  folder for the files, on the disk to be measured (a temporary one)
#   -j  also write every figure to FILE as JSON lines
#
# A file of random bytes to a preallocated file, with direct I/O where the tool has it, no offload, no shared blocks, every
# tool ending durable, the page cache dropped before each. `forebay x3` copies to three such files at once, and its figure is
# what it reads. `limit` is the write leg of fio reading the one and writing the other file side by side, as large.
# Needs: root (to drop caches), fio qemu-utils libnbd-bin python3, and cargo. Installs the packages on Debian.
set -euo pipefail
rounds=5 mib=1024 folder= json=
while getopts n:m:d:j: option; do case $option in
  n) rounds=$OPTARG;; m) mib=$OPTARG;; d) folder=$(realpath "$OPTARG");; j) json=$(realpath -m "$OPTARG");; *) exit 2;; esac; done
cd "$(dirname "$0")/../.."
. bench/peers/lib.sh
need fio:fio qemu-img:qemu-utils nbdcopy:libnbd-bin python3:python3
[ "$(id -u)" = 0 ] || { echo "copy.sh: only root may drop caches" >&2; exit 1; }

work=$(mktemp -d ${folder:+-p "$folder"})
trap 'rm -rf "$work"' EXIT
forebay=$(forebay_binary)
versions "$forebay --version" 'dd --version' 'qemu-img --version' 'nbdcopy --version' 'cp --version' 'fio --version'
echo "file system: $(stat -f -c %T "$work")"
echo

source=$work/source
head -c "${mib}M" /dev/urandom >"$source"
for to in a b c; do fallocate -l "${mib}M" "$work/$to" && dd if=/dev/zero of="$work/$to" bs=1M count="$mib" conv=notrunc status=none; done

tool() {
  case $1 in
    forebay) "$forebay" copy --no-offload "$source" "$work/a";;
    'forebay x3') "$forebay" copy --no-offload "$source" "$work/a" "$work/b" "$work/c";;
    dd) dd if="$source" of="$work/a" bs=1M iflag=direct oflag=direct conv=notrunc,fsync status=none;;
    qemu-img) qemu-img convert -n -t none -T none -m 16 -W -f raw -O raw "$source" "$work/a" && sync "$work/a";;
    nbdcopy) nbdcopy --flush "$source" "$work/a" && sync "$work/a";;
    # cp makes a new file: it empties one that is there.
    cp) cp --reflink=never --sparse=never "$source" "$work/cp" && sync "$work/cp" "$work";;
    limit) fio --direct=1 --ioengine=io_uring --iodepth=16 --bs=512k --size="${mib}M" --end_fsync=1 --output-format=terse \
      --terse-version=3 --name=r --filename="$source" --rw=read --name=w --filename="$work/b" --rw=write >"$work/fio";;
  esac
}
for round in $(seq "$rounds"); do
  for name in forebay dd qemu-img nbdcopy cp 'forebay x3' limit; do
    rm -f "$work/cp"
    sync
    echo 3 >/proc/sys/vm/drop_caches
    begun=$(date +%s%N)
    tool "$name"
    ns=$(($(date +%s%N) - begun))
    # Terse output: 47 is KiB written, 50 the time in ms.
    if [ "$name" = limit ]; then ns=$(awk -F';' '/^3;/ && $47 > 0 {print $50 * 1000000}' "$work/fio"); fi
    if [ "$name" = forebay ] || [ "$name" = 'forebay x3' ]; then cmp "$source" "$work/a"; fi
    awk -v round="$round" -v name="$name" -v mib="$mib" -v ns="$ns" \
      'BEGIN{printf "{\"round\":%d,\"job\":\"%d MiB\",\"tool\":\"%s\",\"mib_s\":%.1f}\n", round, mib, name, mib * 1e9 / ns}' >>"$work/figures"
  done
  echo "round $round of $rounds done" >&2
done
if [ -n "$json" ]; then cp "$work/figures" "$json"; fi
python3 bench/peers/table.py --group job --name tool --reference forebay --value mib_s --unit MiB/s <"$work/figures"
