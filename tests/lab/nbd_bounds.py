#!/usr/bin/python3
"""Every command of an NBD export at every awkward offset and length, compared with a model of its content.

usage: nbd_bounds.py URI

Needs python3-libnbd. Prints one line of totals; the first difference ends it with a message and status 1.
"""

import errno
import sys

import nbd

KIB, MIB = 1024, 1024 * 1024
LENGTHS = [0, 1, 511, 512, 513, 4096, 65536, MIB, 32 * MIB]
REFUSED = (errno.EINVAL, errno.ENOSPC, errno.EOVERFLOW, errno.ERANGE, errno.EIO)


def main():
    handle = nbd.NBD()
    handle.set_strict_mode(0)
    handle.connect_uri(sys.argv[1])
    size = handle.get_size()
    minimum = max(1, handle.get_block_size(nbd.SIZE_MINIMUM))
    model = bytearray(handle.pread(min(size, 32 * MIB), 0))
    for start in range(32 * MIB, size, 32 * MIB):
        model += handle.pread(min(32 * MIB, size - start), start)
    offsets = [0, 1, 512, 4095, 4096, 65536 - 512, size // 2, size - 32 * MIB, size - 4096, size - 513, size - 512, size - 1]
    offsets += [size, size + 512, 2**62, 2**63 - 1]
    served = refused = 0
    for number, (offset, length) in enumerate((o, n) for o in offsets for n in LENGTHS):
        aligned = offset % minimum == 0 and length % minimum == 0
        inside = offset + length <= size
        for name, command in commands(handle, model, number).items():
            try:
                command(offset, length)
                if not inside:
                    sys.exit(f"{name} of {length} at {offset} was served beyond the end, {size}")
                served += 1
            except nbd.Error as error:
                if inside and aligned and length > 0:
                    sys.exit(f"{name} of {length} at {offset} failed: {error}")
                if error.errnum not in REFUSED:
                    sys.exit(f"{name} of {length} at {offset}: {error}")
                refused += 1
    for start in range(0, size, 32 * MIB):
        end = min(size, start + 32 * MIB)
        if handle.pread(end - start, start) != model[start:end]:
            sys.exit(f"the content differs from the model within {start}..{end}")
    handle.flush()
    handle.shutdown()
    print(f"{served} served, {refused} refused")


def commands(handle, model, number):
    """The commands, each of which also changes or checks the model once the server has served it."""
    pattern = bytes([number % 255 + 1])

    def read(offset, length):
        if handle.pread(length, offset) != model[offset : offset + length]:
            sys.exit(f"read of {length} at {offset} differs from the model")

    def write(flags):
        def command(offset, length):
            handle.pwrite(pattern * length, offset, flags)
            model[offset : offset + length] = pattern * length

        return command

    def zero(flags):
        def command(offset, length):
            handle.zero(length, offset, flags)
            model[offset : offset + length] = bytes(length)

        return command

    def trim(offset, length):
        handle.trim(length, offset)
        # What was trimmed may read as anything that it once was; from here on it is what it reads as now.
        if length > 0:
            model[offset : offset + length] = handle.pread(length, offset)

    return {
        "write": write(0),
        "read": read,
        "write with FUA": write(nbd.CMD_FLAG_FUA),
        "write zeroes": zero(0),
        "write zeroes without a hole": zero(nbd.CMD_FLAG_NO_HOLE),
        "read of zeroes": read,
        "trim": trim,
        "read of trimmed": read,
    }


main()
