"""Another process on the same GPU: takes and gives back memory when it is told to, a line of stdin each.

    take BYTES -> ok, or the driver's error        give -> ok

Started by its path with nothing of ours to import: it is somebody else.
"""

from __future__ import annotations

import sys

from cuda.bindings import driver


def call(name: str, *arguments: object) -> object:
    """Return what the driver's function gives. Raises RuntimeError with its error."""
    code, *values = getattr(driver, name)(*arguments)
    if code != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"{name}: {code}")
    return values[0] if values else None


def main() -> None:
    """Answer until stdin ends; the process's end frees everything."""
    call("cuInit", 0)
    call("cuCtxSetCurrent", call("cuDevicePrimaryCtxRetain", call("cuDeviceGet", 0)))
    held: list[object] = []
    print("ok", flush=True)
    for line in sys.stdin:
        verb, *numbers = line.split()
        try:
            if verb == "take":
                held.append(call("cuMemAlloc", int(numbers[0])))
            while verb == "give" and held:
                call("cuMemFree", held.pop())
        except RuntimeError as error:
            print(error, flush=True)
        else:
            print("ok", flush=True)


if __name__ == "__main__":
    main()
