#!/usr/bin/env bash
# Run a shell script inside a real Linux 6.1 kernel as an ordinary process (Debian's user-mode-linux), at native speed, one CPU.
#
#   uml.sh [-m MIB] [-t SECONDS] [-k MODULE[:PARAM=VALUE]...]... [-d DISK]... [-w FOLDER] [-p FILE] SCRIPT
#
#   -k  kernel module by file name, in load order: dm-mod dm-bufio dm-writecache dm-log-writes loop brd:rd_nr=2:rd_size=65536 …
#   -d  raw image seen as /dev/ubda, /dev/ubdb…  A guest flush does NOT reach the image: never judge durability on it.
#   -w  host folder, writable at /mnt in the guest; the rest of the host's file system is visible read-only at the same paths.
#       Writes to files there, also through a loop device, reach the host at once: a crash of the guest loses none of them.
#   -p  where to write the guest's process group, which is not this program's: kill -9 of that group is a crash of the guest
#   -t  the guest powers itself off after so many seconds (300).
#
# SCRIPT runs as root; its output is this program's output, line by line, and its exit status is this program's.
# 124: the guest ended without finishing the script. 125: the guest could not be started.
# A guest that ends before the script begins, or hangs until then, is started again, twice at most, unless somebody killed it.
# Needs: user-mode-linux dmsetup and a C compiler. The shim is kept in ${FOREBAY_LAB_CACHE:-~/.cache/forebay-lab}.
set -euo pipefail
die() { echo "uml.sh: $1" >&2; exit 125; }
# Passes on the lines between the marks as they come, and returns the status that the second mark carries. The file
# $work/booting is there until the first mark; a guest that says nothing for two minutes before it is killed.
relay() {
  local on= line status=124 patience=120
  : >"$work/booting"
  while IFS= read -r -t "$patience" line; do
    line=${line%$'\r'}
    case $line in
      *@@begin) on=1 patience=$limit; rm "$work/booting";;
      '@@end '*) status=${line#@@end }; break;;
      *) [ -z "$on" ] || printf '%s\n' "$line";;
    esac
  done
  if [ -e "$work/booting" ] && [ ! -e "$work/ended" ]; then
    : >"$work/hung"
    kill -9 "-$(cat "$work/guest")" "$(cat "$work/guest")" 2>/dev/null || true # it may have ended by itself
  fi
  return "$status"
}
here=$(cd "$(dirname "$0")" && pwd)
mem=512 limit=300 modules=() disks=() share= group=/dev/null
while getopts m:t:k:d:w:p: option; do case $option in
  m) mem=$OPTARG;; t) limit=$OPTARG;; k) modules+=("$OPTARG");; d) disks+=("$(realpath "$OPTARG")");;
  w) share=$(realpath "$OPTARG");; p) group=$OPTARG;; *) exit 2;; esac; done
shift $((OPTIND - 1))
script=$(realpath "${1:?a script to run in the guest}")
command -v linux.uml >/dev/null || die 'linux.uml is missing; install user-mode-linux'

cache=${FOREBAY_LAB_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/forebay-lab}
shim=$cache/uml_xsave_shim.so
mkdir -p "$cache"
if [ "$here/uml_xsave_shim.c" -nt "$shim" ]; then
  cc -shared -fPIC -O2 -o "$shim.$$" "$here/uml_xsave_shim.c" || die 'cannot compile the shim; install gcc'
  mv "$shim.$$" "$shim"
fi

# Not in /run or /dev/shm, which the guest lays its own file systems over.
work=$(mktemp -d "$cache/uml.XXXXXX")
trap 'rm -rf "$work"' EXIT
cp "$script" "$work/script"
{
  echo '#!/bin/sh'
  echo 'export PATH=/usr/sbin:/usr/bin:/sbin:/bin:/mnt TMPDIR=/run HOME=/run'
  echo 'mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t tmpfs tmp /run; cd /run'
  echo 'mkdir -p /dev/shm; mount -t tmpfs shm /dev/shm'
  echo 'off() { echo o >/proc/sysrq-trigger; sleep 5; }'
  echo "(sleep $limit; off) &"
  if [ -n "$share" ]; then echo "mount -t hostfs -o '$share' none /mnt"; fi
  for module in ${modules[@]+"${modules[@]}"}; do
    name=${module%%:*} parameters=
    [ "$module" = "$name" ] || parameters=${module#*:}
    file=$(find /usr/lib/uml/modules -name "$name.ko" | head -n 1)
    [ -n "$file" ] || die "user-mode-linux has no module $name"
    echo "insmod $file ${parameters//:/ } || echo 'uml.sh: cannot load $name'"
  done
  echo 'echo; echo @@begin'
  echo "sh '$work/script' 2>&1; status=\$?"
  echo 'echo; echo "@@end $status"; off'
} >"$work/init"
chmod +x "$work/init"

drives=()
for disk in ${disks[@]+"${disks[@]}"}; do drives+=("ubd${#drives[@]}=$disk"); done
status=0
for _ in 1 2 3; do
  rm -f "$work/ended" "$work/hung"
  {
    LD_PRELOAD=$shim linux.uml mem="${mem}M" root=/dev/root rootfstype=hostfs rootflags=/ ro init="$work/init" \
      con=null con0=fd:0,fd:1 quiet ${drives[@]+"${drives[@]}"} </dev/null 2>/dev/null &
    echo $! | tee "$work/guest" >"$group"
    ended=0
    wait $! || ended=$?
    echo "$ended" >"$work/ended"
  } | relay && status=0 || status=$?
  [ -e "$work/booting" ] || break
  [ -e "$work/hung" ] || [ "$(cat "$work/ended")" != 137 ] || break # 137: killed
  echo 'uml.sh: the guest ended before the script began' >&2
done
exit "$status"
