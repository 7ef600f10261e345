#!/usr/bin/env bash
# Run a shell script inside a real Linux kernel (Debian's 6.12 cloud image) under QEMU's software emulation.
#
#   vm.sh [-m MIB] [-c CPUS] [-t SECONDS] [-k MODULE]... [-b PROGRAM]... [-f FILE]... [-d DISK]... [-q 'QEMU ARGS'] SCRIPT
#
#   -k  kernel module to load, with what it depends on: dm-writecache dm-snapshot ublk_drv nbd brd null_blk zram …
#   -b  host program to put into the guest's /bin, with its shared libraries
#   -f  host file to put at /files/NAME
#   -d  raw image, or NBD URI, seen as /dev/vda, /dev/vdb… with an honest flush (a guest flush reaches the image as fdatasync)
#   -q  more QEMU arguments, for example a vhost-user-blk device
#   -t  QEMU is ended after so many seconds (600)
#
# SCRIPT runs as root under busybox sh; its output is this program's output, and its exit status is this program's.
# 124: the guest ended without finishing the script. 125: the guest could not be started.
# Under load one boot in a hundred dies in QEMU 7.2's emulation, where the kernel patches its own code: a guest that ends
# before the script begins, or says nothing for four minutes, is started again, twice at most, and the end of its console
# goes to standard error.
# Needs: qemu-system-x86 busybox-static kmod cpio xz-utils, and apt to bring the kernel once into
# ${FOREBAY_LAB_CACHE:-~/.cache/forebay-lab}.
set -euo pipefail
die() { echo "vm.sh: $1" >&2; exit 125; }
# Passes on the lines between the marks as they come, and returns the status that the second mark carries. What comes
# before the first mark is kept in the file $work/console, which is deleted at the mark.
relay() {
  local on= line status=124 patience=240
  : >"$work/console"
  while IFS= read -r -t "$patience" line; do
    line=${line%$'\r'}
    case $line in
      *@@begin) on=1 patience=$limit; rm "$work/console";;
      '@@end '*) status=${line#@@end }; break;;
      *) if [ -n "$on" ]; then printf '%s\n' "$line"; else printf '%s\n' "$line" >>"$work/console"; fi;;
    esac
  done
  [ ! -e "$work/console" ] || kill "$(cat "$work/qemu")" 2>/dev/null || true # it may have ended by itself
  return "$status"
}
mem=512 cpus=2 limit=600 modules=() programs=() files=() disks=() extra=
while getopts m:c:t:k:b:f:d:q: option; do case $option in
  m) mem=$OPTARG;; c) cpus=$OPTARG;; t) limit=$OPTARG;; k) modules+=("$OPTARG");; b) programs+=("$OPTARG");;
  f) files+=("$OPTARG");; d) disks+=("$OPTARG");; q) extra=$OPTARG;; *) exit 2;; esac; done
shift $((OPTIND - 1))
script=${1:?a script to run in the guest}

# The kernel, brought once: downloaded beside its final place and moved there whole, so that two callers cannot mix.
cache=${FOREBAY_LAB_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/forebay-lab}
kernel=$cache/kernel-6.12
if [ ! -d "$kernel" ]; then
  mkdir -p "$cache"
  fresh=$(mktemp -d "$cache/download.XXXXXX")
  trap 'rm -rf "$fresh"' EXIT
  package=$(apt-cache pkgnames linux-image-6.12 | grep -E '^linux-image-6\.12\.[0-9]+\+deb[0-9]+-cloud-amd64-unsigned$' | sort -V | tail -n 1)
  [ -n "$package" ] || die 'apt knows no linux-image-6.12*-cloud-amd64-unsigned; run apt-get update first'
  (cd "$fresh" && apt-get -o APT::Sandbox::User=root download "$package" >/dev/null && dpkg -x "$package"_*.deb . && rm -f "$package"_*.deb) ||
    die "cannot download $package"
  depmod -b "$fresh" "$(basename "$fresh"/lib/modules/*)"
  chmod 755 "$fresh"
  mv -T "$fresh" "$kernel" 2>/dev/null || [ -d "$kernel" ] || die "cannot move the kernel to $kernel"
fi
version=$(basename "$kernel"/lib/modules/*)

work=$(mktemp -d "${TMPDIR:-/tmp}/vm.XXXXXX")
trap 'rm -rf "$work"' EXIT
root=$work/root
mkdir -p "$root"/{bin,applets,dev,proc,sys,tmp,mnt,run,files,modules,lib64}
cp /bin/busybox "$root/bin/"
n=0
for module in virtio_pci virtio_blk ${modules[@]+"${modules[@]}"}; do
  while read -r verb path _; do
    [ "$verb" = insmod ] || continue
    base=$(basename "$path" .xz)
    ls "$root"/modules/*-"$base" >/dev/null 2>&1 && continue
    n=$((n + 1))
    case $path in *.xz) xz -dc "$path";; *) cat "$path";; esac >"$root/modules/$(printf %03d $n)-$base"
  done < <(modprobe --show-depends -d "$kernel" -S "$version" "$module" || die "no module $module")
done
for program in ${programs[@]+"${programs[@]}"}; do
  path=$(command -v "$program") || die "no program $program"
  cp -L "$path" "$root/bin/"
  { ldd "$path" 2>/dev/null || true; } | grep -oE '/[^ ]+' | while read -r library; do
    mkdir -p "$root$(dirname "$library")"
    cp -nL "$library" "$root$library"
  done
done
for file in ${files[@]+"${files[@]}"}; do cp -L "$file" "$root/files/"; done
cp "$script" "$root/script"
cat >"$root/init" <<'INIT'
#!/bin/busybox sh
export PATH=/bin:/applets
/bin/busybox --install -s /applets
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev; mount -t tmpfs tmp /run
ln -s /proc/self/fd /dev/fd; mkdir -p /dev/shm; mount -t tmpfs shm /dev/shm; ip link set lo up 2>/dev/null
for module in /modules/*.ko; do insmod "$module" || echo "vm.sh: cannot load $module"; done
echo; echo "@@begin"
sh /script 2>&1; status=$?
echo; echo "@@end $status"
poweroff -f
INIT
chmod +x "$root/init"
(cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) >"$work/initrd"
drives=()
for disk in ${disks[@]+"${disks[@]}"}; do drives+=(-drive "file=$disk,if=virtio,format=raw,cache=writeback"); done
status=0
for _ in 1 2 3; do
  # shellcheck disable=SC2086 # -q holds several words
  {
    timeout -k 10 "$limit" qemu-system-x86_64 -accel tcg,thread=multi -cpu max,la57=off -smp "$cpus" -m "$mem" -nographic -no-reboot \
      -kernel "$kernel"/boot/vmlinuz-* -initrd "$work/initrd" -append "console=ttyS0 quiet loglevel=1 panic=-1 mitigations=off" \
      ${drives[@]+"${drives[@]}"} $extra </dev/null 2>&1 &
    echo $! >"$work/qemu"
    wait
  } | relay && status=0 || status=$?
  [ -e "$work/console" ] || break
  { echo 'vm.sh: the guest ended before the script began:'; tail -n 8 "$work/console"; } >&2
done
exit "$status"
